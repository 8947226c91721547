"""`text.precision` and `model.clip_precision`: frozen towers whose linear maps are bfloat16."""

from __future__ import annotations

import pytest
import torch
from clips import frozen
from tensors import CPU
from torch.nn.functional import cosine_similarity

from fedray.config import component
from fedray.language.tower import TextTower

TEXTS = [["a photo of a cat : fur"], ["a photo of a dog : an animal with fur"]]


def towers(choice):
    return (TextTower(choice, TEXTS, CPU, half=half) for half in (False, True))


def passed(tower):
    """Prototypes under prompts, and the gradient of their first numbers."""
    drawn = torch.randn(2, 2, tower.token_width, generator=torch.Generator().manual_seed(0))
    prompts = drawn.requires_grad_()
    out = tower.prototypes(prompts)
    [gradient] = torch.autograd.grad(out[:, 0].sum(), prompts)
    return out.detach(), gradient


def test_a_bert_in_bfloat16_is_near_float32_and_trains_float32_prompts(bert_folder):
    choice = component("text encoder", "bert", path=str(bert_folder)).build()
    whole, half = towers(choice)
    for exact, rounded in zip(passed(whole), passed(half), strict=True):
        assert rounded.dtype == torch.float32
        assert not torch.equal(exact, rounded)
        assert float(cosine_similarity(exact.flatten(), rounded.flatten(), 0)) > 0.999
    assert torch.equal(whole.frozen_prototypes(), half.frozen_prototypes())


def test_open_clips_text_tower_in_bfloat16_is_near_float32(tiny_clip):
    whole, half = frozen(tiny_clip).text, frozen(tiny_clip).text.in_half()
    tokens = whole.tokenize([text for texts in TEXTS for text in texts])
    exact, rounded = (each.encode(each.embed(tokens), tokens) for each in (whole, half))
    assert rounded.dtype == torch.float32
    assert not torch.equal(exact, rounded)
    assert float(cosine_similarity(exact.flatten(), rounded.flatten(), 0)) > 0.999


def test_both_keys_change_a_runs_numbers_slightly_and_its_identity(run, assemble):
    for method, key in (("fedtsp", "text.precision"), ("fedmgp", "model.clip_precision")):
        exact, rounded = (
            run(method, {"rounds": 1, key: precision}) for precision in ("float32", "bfloat16")
        )
        losses = [done.results[-1].metrics["train_loss"] for done in (exact, rounded)]
        assert losses[0] != losses[1]
        assert losses[1] == pytest.approx(losses[0], rel=0.15)
        records = [done.assembly.experiment.record() for done in (exact, rounded)]
        section, name = key.split(".")
        assert [record[section].get(name) for record in records] == [None, "bfloat16"]
