"""Hyper-parameters and models that a method cannot work with are one line that names the key."""

from __future__ import annotations

import pytest
from lab import refused

CNN2 = {"model.group": "cnn2"}
CNN3 = {"model.group": "cnn3"}
PROJECTED = {**CNN3, "model.projector": 24}
NO_PROMPT = {"algorithm.text_length": 0, "algorithm.visual_length": 0}
TWO_WORDS = {"algorithm.length": 4, "algorithm.words": "a photo"}
HALF_TRAINED = {"algorithm.blocks": 1, "text.encoder": {"name": "random"}}


@pytest.mark.parametrize(
    ("method", "changes", "named"),
    [
        ("dp2fl", {}, "data.validation_fraction"),
        ("fedavg", {}, "model.group"),
        ("fedconcat", {**CNN3, "algorithm.clusters": 5}, "algorithm.clusters=5"),
        ("fedconcat", {**CNN3, "algorithm.cluster_rounds": 3}, "algorithm.cluster_rounds=3"),
        ("fedfa_augmentation", {"model.group": "mlp"}, "model.group"),
        ("fedglcl", {**PROJECTED, "model.feature_dim": 20}, "model.feature_dim=20"),
        ("fedglcl", {"finetune_epochs": 2}, "finetune_epochs=2"),
        ("fedglcl_l", {**PROJECTED, "algorithm.blocks": 3}, "algorithm.blocks=3"),
        ("fedglcl_l", {**PROJECTED, **HALF_TRAINED}, "cannot be trained in part"),
        ("fedmgp", {"algorithm.selected": 6}, "selected=6"),
        ("fedmgp", {"algorithm.group": 5}, "group=5"),
        ("fedmgp", NO_PROMPT, "text_length"),
        ("fedotp", {"model.clip.path": "/nowhere"}, "model.clip"),
        ("fedpgp", {"data.novel": True}, "novel=true"),
        ("fedprox", {**CNN2, "algorithm.mu": -1}, "algorithm.mu"),
        ("fedprox", {**CNN2, "algorithm.nu": 1}, "'nu'"),
        ("fedtsp", {"algorithm.prompt_length": 9}, "prompt_length=9"),  # the text has 8 tokens
        ("fedtsp", {"model.feature_dim": 24}, "model.feature_dim=24"),
        (
            "fedtsp",
            {"text.encoder": {"name": "orthogonal", "dim": 16}},
            "algorithm.prompt_length=0",
        ),
        ("pfedme", {**CNN2, "algorithm.eta": 0.1}, "eta=0.1"),
        ("promptfl", TWO_WORDS, "length=4"),
        ("vpt", {"algorithm.depth": 4}, "algorithm.depth"),
        ("ivlp", {"algorithm.depth": 4}, "algorithm.depth"),
        ("pfedmma", {"algorithm.depth": 4}, "algorithm.depth"),
        ("maple_fedavg", {"algorithm.depth": 4}, "algorithm.depth"),
        ("pfedmoap", {"algorithm.gating_dim": 10}, "gating_dim"),
        ("pfedmoap", {"algorithm.heads": 5}, "gating_dim"),
        ("flexlora", {"algorithm.ranks": [17]}, "algorithm.ranks"),
        ("fedpha", {"algorithm.local_lengths": []}, "local_lengths"),
        ("fedpha", {"algorithm.local_lengths": [0]}, "local_lengths"),
        ("kgcoop", {"algorithm.template": "a photo"}, "algorithm.template"),
        ("alignfed", {"algorithm.lambda_end": 0}, "lambda_end=0"),
        ("fedmrl", {"algorithm.small_dim": 17}, "small_dim=17"),
        ("fedgen", {"batch_size": 1}, "batch_size=1"),
        ("zero_shot", {"algorithm.template": "a photo"}, "algorithm.template"),
        ("zero_shot", {"algorithm.template": "{} {}"}, "algorithm.template"),
        ("zero_shot", {"algorithm.template": "{name}"}, "algorithm.template"),
        ("zero_shot", {"algorithm.template": "{} }"}, "algorithm.template"),
    ],
)
def test_it_is_refused(run, method, changes, named):
    refused(lambda: run(method, changes), named)
