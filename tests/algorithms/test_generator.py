"""A generated context: out of the class names, whatever their order."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from clips import DIGITS, clip_of, drawn, gradients, noise

from fedray.algorithms.prompts.fedtpg import GeneratorClip, PromptGenerator
from fedray.models import ImageFeatures


@pytest.fixture
def model(tiny_clip):
    return drawn(GeneratorClip(clip_of(tiny_clip), DIGITS, 4))


def test_the_context_is_that_of_pytorchs_own_attention():
    generator = PromptGenerator(3, 16, 16)
    generator.initialise(torch.Generator().manual_seed(0))
    names = noise(5, 16)
    attention = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    maps = (generator.to_queries, generator.to_keys, generator.to_values)
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([layer.weight for layer in maps]))
        attention.in_proj_bias.copy_(torch.cat([layer.bias for layer in maps]))
        attention.out_proj.load_state_dict(generator.out.state_dict())
        normed = F.layer_norm(names, (16,))
        x = attention(F.layer_norm(generator.queries, (16,)), normed, normed)[0]
        wide, gate = generator.widen(F.layer_norm(x, (16,))).chunk(2, dim=-1)
        expected = generator.narrow(wide * F.gelu(gate)) + x
        torch.testing.assert_close(generator(names), expected)
    bound = (6 / (3 * 16 + 16)) ** 0.5
    assert 0.9 * bound < float(attention.in_proj_weight.detach().abs().max()) <= bound


def test_the_order_of_the_names_does_not_matter_and_the_set_does(model):
    names = model.fixed_texts("{}")
    context = model.generator(names)
    torch.testing.assert_close(model.generator(names[[3, 0, 4, 1, 2]]), context)
    assert (model.generator(names[:3]) - context).abs().max() > 1e-5


def test_the_classes_in_scope_write_the_context(model):
    with torch.no_grad(), model.class_subset((1, 3)):
        context = model.generator(model.fixed_texts("{}"))
        alone = GeneratorClip(model.clip, ("one", "three"), 4)
        alone.load_state_dict(model.state_dict())
        torch.testing.assert_close(model.texts(), alone.texts())
        expected = model.class_texts("X X X X {}.").encode(context)
        torch.testing.assert_close(model.texts(), expected)


def test_every_part_of_the_network_learns_and_nothing_else(model):
    logits = model(ImageFeatures(noise(5, model.clip.dim))).logits
    found = gradients(model, F.cross_entropy(logits, torch.arange(5)))
    assert all(name.startswith("generator.") for name in found)
    # Softmax does not see what is added to all keys.
    still = {name for name, value in found.items() if float(value.abs().max()) < 1e-9}
    assert still <= {"generator.to_keys.bias"}
    assert {"generator.queries", "generator.to_keys.weight", "generator.narrow.weight"} <= {*found}
