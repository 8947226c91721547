"""What all prompted models have in common: classes in scope, types of input."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from clips import DIGITS, clip_of, drawn, noise, prompted
from torch import nn

from fedray.models import ImageFeatures, PatchFeatures, Pixels
from fedray.models.prompted import ContextClip

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "fixed": ("zero_shot", {}),
    "adapter": ("fedclip", {}),
    "context": ("promptfl", {"length": 4}),
    "portfolio": ("promptfolio", {"length": 4}),
    "transport": ("fedotp", {"length": 4}),
    "low_rank": ("fedpgp", {"length": 4, "rank": 2}),
    "generator": ("fedtpg", {"length": 4}),
    "dual": ("maple_fedavg", {}),
    "updates": ("lora", {}),
    "experts": ("pfedmoap", {"length": 4, "gating_dim": 12, "heads": 3}),
    "groups": ("fedmgp", {"groups": 3}),
    "groups_of_texts": ("fedmgp", {"groups": 3, "visual_length": 0}),
}
TAKEN = {
    **{name: {Pixels, ImageFeatures} for name in MODELS},
    "transport": {Pixels, PatchFeatures},
    **{name: {Pixels} for name in ("dual", "updates", "groups")},
}


def model_of(name, folder):
    """A model with initial values."""
    method, hparams = MODELS[name]
    return drawn(prompted(method, clip_of(folder), **hparams))


def inputs_of(clip):
    """The same four images as every type of input."""
    pixels = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with torch.no_grad():
        embedded = clip.vision.embed(pixels)
        image, patches = clip.vision.encode(embedded)
    return (Pixels(pixels), PatchFeatures(patches), ImageFeatures(image))


@pytest.mark.parametrize("name", MODELS)
def test_every_type_of_input_is_read_alike_or_refused(tiny_clip, name):
    model = model_of(name, tiny_clip).eval()
    inputs = inputs_of(model.clip)
    assert model.reads in TAKEN[name]
    with torch.no_grad():
        expected = model(inputs[0])
        for x in inputs:
            if type(x) in TAKEN[name]:
                assert torch.equal(model(x).logits, expected.logits)
                assert torch.equal(model(x).features, expected.features)
            else:
                with pytest.raises(TypeError, match=f"found {type(x).__name__}$"):
                    model(x)
    with pytest.raises(TypeError, match=r"found Tensor$"):
        model(inputs[0].values)
    assert expected.logits.shape == (4, 5)


@pytest.mark.parametrize("name", MODELS)
def test_the_columns_are_the_classes_in_scope(tiny_clip, name):
    model = model_of(name, tiny_clip).eval()
    pixels = inputs_of(model.clip)[0]
    with torch.no_grad(), model.class_subset((3, 1)):
        assert model.classes == (3, 1)
        assert model(pixels).logits.shape == (4, 2)
    assert model.classes == (0, 1, 2, 3, 4)


def test_text_features_are_kept_until_a_prompt_changes(tiny_clip):
    model = model_of("context", tiny_clip)
    with torch.no_grad():
        before = model.texts()
        assert model.texts() is before
        with model.class_subset((1, 0)):
            assert torch.allclose(model.texts(), before[[1, 0]], atol=1e-6)
        model.context.add_(noise(*model.context.shape))
        assert not torch.allclose(model.texts(), before, atol=1e-3)


def test_fixed_texts_are_those_of_the_classes_in_scope(tiny_clip):
    model = model_of("context", tiny_clip)
    everything = model.fixed_texts()
    with model.class_subset((3, 1)):
        assert torch.equal(model.fixed_texts(), everything[[3, 1]])


def test_parameters_and_layers_of_ones_own_keep_their_values(tiny_clip):
    class Own(ContextClip):
        def make_prompts(self, hparams):
            super().make_prompts(hparams)
            self.mix, self.norm = nn.Parameter(torch.tensor(0.5)), nn.LayerNorm(3)

    model = drawn(Own(clip_of(tiny_clip), DIGITS, SimpleNamespace(length=2)))
    assert (float(model.mix), model.norm.weight.tolist()) == (0.5, [1, 1, 1])
    assert model.context.abs().sum() > 0


LEARNING = [name for name in MODELS if name not in ("fixed", "adapter", "experts")]


def two_sets(model):
    """Two sets of prompts with equal versions."""
    first = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    return first, {name: tensor + 0.5 for name, tensor in first.items()}


def logits_with(model, prompts, x):
    return torch.func.functional_call(model, prompts, (x,)).logits


def logits_loaded(model, prompts, x):
    other = deepcopy(model)
    other._cached = None
    other.load_state_dict(prompts)
    with torch.no_grad():
        return other(x).logits


@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, torch.no_grad) for name in LEARNING), ("context", torch.inference_mode)],
)
def test_prompts_of_a_functional_call_are_those_that_count(tiny_clip, name, mode):
    model = model_of(name, tiny_clip).eval()
    x = inputs_of(model.clip)[0]
    first, second = two_sets(model)
    with mode():
        third = {name: tensor - 0.5 for name, tensor in first.items()}
        sets = [first, second, third, first]
        given = [logits_with(model, prompts, x) for prompts in sets]
    for prompts, logits in zip(sets, given, strict=True):
        assert torch.equal(logits, logits_loaded(model, prompts, x))
    assert not torch.equal(given[0], given[1])


def test_prompts_of_a_functional_call_have_their_own_gradients(tiny_clip):
    model = model_of("context", tiny_clip).eval()
    x = inputs_of(model.clip)[0]
    gradients = []
    for prompts in two_sets(model):
        with torch.no_grad():
            model(x)
        leaf = {name: tensor.requires_grad_() for name, tensor in prompts.items()}
        logits = logits_with(model, leaf, x)
        gradients.append(torch.autograd.grad(logits.logsumexp(1).sum(), [*leaf.values()])[0])
    assert gradients[0].abs().sum() > 0
    assert not torch.equal(*gradients)


def test_a_copy_has_its_own_text_features(tiny_clip):
    model = model_of("context", tiny_clip).eval()
    x = inputs_of(model.clip)[0]
    with torch.no_grad():
        for _ in range(3):
            model.context.add_(0.1)
        model(x)
        copied = deepcopy(model)
        while copied.context._version < model.context._version:  # a copy begins with version 0
            copied.context.add_(0.1)
        assert torch.equal(copied(x).logits, logits_loaded(copied, copied.state_dict(), x))
        assert not torch.equal(copied(x).logits, model(x).logits)


def test_text_features_in_bfloat16_are_not_those_in_float32(tiny_clip):
    model = model_of("context", tiny_clip).eval()
    x = inputs_of(model.clip)[0]
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            model(x)
        assert torch.equal(model(x).logits, logits_loaded(model, model.state_dict(), x))
