"""Hyper-parameters and models that a method cannot work with are one sentence with the key."""

from __future__ import annotations

import pytest

from fedray.base.errors import UserError

CNN2 = {"model.group": "cnn2"}
CNN3 = {"model.group": "cnn3"}
PROJECTED = {**CNN3, "model.projector": 24}
ORTHOGONAL = {"text.encoder": {"name": "orthogonal", "dim": 16}}


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("dp2fl", {}, r"data\.validation_fraction"),
        ("fedavg", {}, r"2 architectures \(cnn2, mlp\); set model\.group to one architecture"),
        (
            "fedconcat",
            {**CNN3, "algorithm.clusters": 5},
            r"algorithm\.clusters=5 exceeds data\.clients=4",
        ),
        (
            "fedconcat",
            {**CNN3, "algorithm.cluster_rounds": 3},
            r"algorithm\.cluster_rounds=3 exceeds rounds=2",
        ),
        (
            "fedfa_augmentation",
            {"model.group": "mlp"},
            r"model\.group: mlp has no convolutions",
        ),
        (
            "fedglcl",
            {**PROJECTED, "model.feature_dim": 20},
            r"width 16, but model\.feature_dim=20; set model\.f",
        ),
        ("fedglcl", {"finetune_epochs": 2}, r"finetune_epochs=2 trains heads, but fedglcl's model"),
        (
            "fedglcl_l",
            {**PROJECTED, "algorithm.blocks": 3},
            r"algorithm\.blocks=3, but the text tower has 2 blocks",
        ),
        (
            "fedglcl_l",
            {**PROJECTED, "algorithm.blocks": 1, "text.encoder": {"name": "random"}},
            "ControlEncoder cannot be trained in part",
        ),
        (
            "fedmgp",
            {"algorithm.selected": 6},
            r"selected=6 to at most groups=5",
        ),
        (
            "fedotp",
            {"model.clip.path": "/nowhere"},
            r"model\.clip: /nowhere lacks a configuration",
        ),
        ("fedpgp", {"data.novel": True}, "data: novel=true tests on official test images"),
        ("fedmgp", {"algorithm.group": 5}, "group=5 to less than groups=5"),
        (
            "fedmgp",
            {"algorithm.text_length": 0, "algorithm.visual_length": 0},
            "no prompt is trained; set text_length",
        ),
        ("fedprox", {**CNN2, "algorithm.mu": -1}, r"algorithm\.mu: input should be greater than"),
        ("fedprox", {**CNN2, "algorithm.nu": 1}, r"unknown key 'nu' in algorithm\. Valid: .*mu"),
        (
            "fedtsp",  # "[CLS] a photo of a zero . [SEP]" has 8 tokens
            {"algorithm.prompt_length": 9},
            r"prompt_length=9 .* \(8 tokens\); set algorithm\.prompt_length to 8 or less",
        ),
        (
            "fedtsp",
            {"model.feature_dim": 24},
            r"of width 16, but model\.feature_dim=24; set model\.feature_dim=16",
        ),
        (
            "fedtsp",
            ORTHOGONAL,
            r"encoder=orthogonal reads no tokens.*; set algorithm\.prompt_length=0",
        ),
        ("pfedme", {**CNN2, "algorithm.eta": 0.1}, r"eta=0\.1 exceeds 1 / lambda"),
        (
            "promptfl",
            {"algorithm.length": 4, "algorithm.words": "a photo"},
            r"length=4, but 'a photo' has only 2 tokens.*length to 2 or",
        ),
        *(
            (method, {"algorithm.depth": 4}, r"algorithm\.depth to 3 or less")
            for method in ("vpt", "ivlp", "pfedmma", "maple_fedavg")
        ),
        *(
            ("pfedmoap", {f"algorithm.{key}": n}, "gating_dim")
            for key, n in (("gating_dim", 10), ("heads", 5))
        ),
        ("flexlora", {"algorithm.ranks": [17]}, r"algorithm\.ranks, is 17, .* 16 wide"),
        *(
            ("fedpha", {"algorithm.local_lengths": lengths}, "local_lengths")
            for lengths in ([], [0])
        ),
        ("kgcoop", {"algorithm.template": "a photo"}, r"algorithm\.template"),
        (
            "alignfed",
            {"algorithm.lambda_end": 0},
            "lambda_end=0 is not reached geometrically",
        ),
        (
            "fedmrl",
            {"algorithm.small_dim": 17},
            r"small_dim=17 .* model\.feature_dim=16",
        ),
        ("fedgen", {"batch_size": 1}, "batch_size=1 has no batch statistics"),
        *(
            (
                "zero_shot",
                {"algorithm.template": template},
                r"algorithm\.template",
            )
            for template in ("a photo", "{} {}", "{name}", "{} }")
        ),
    ],
)
def test_it_is_refused(run, method, changes, message):
    with pytest.raises(UserError, match=message):
        run(method, changes)
