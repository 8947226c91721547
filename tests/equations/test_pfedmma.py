"""pFedMMA: an adapter's number by hand, both towers by a straight loop, and what is averaged."""

from __future__ import annotations

import pytest
import torch
from clips import DIGITS, clip_of, drawn, gradients, noise
from torch import nn

from fedray.algorithms.prompts.pfedmma import AdaptedClip, Adapter
from fedray.errors import UserError
from fedray.models import Pixels
from fedray.models.prompted.texts import unit

IMAGES = Pixels(noise(6, 3, 8, 8))


def test_an_adapter_and_its_gradients_by_hand():
    """z = (1, -1), W_d = (1, -1; 1, 1), W_s = (2, 0; -1, 0), W_u = (3, 5; 7, 1), alpha = 0.1.

    relu(W_d z) = (2, 0), relu(W_s (2, 0)) = (4, 0), W_u (4, 0) = (12, 28). The sum's gradient in
    W_u[0] is (4, 0) without alpha; in z it is alpha (3 + 7) 2 (1, -1) = (2, -2).
    """
    adapter, shared = Adapter(2, 2, 0.1), nn.Linear(2, 2)
    weights = {
        adapter.down: [[1.0, -1.0], [1.0, 1.0]],
        shared: [[2.0, 0.0], [-1.0, 0.0]],
        adapter.up: [[3.0, 5.0], [7.0, 1.0]],
    }
    for layer, weight in weights.items():
        layer.weight.data = torch.tensor(weight)
        layer.bias.data.zero_()
    z = torch.tensor([[[1.0, -1.0]]], requires_grad=True)
    out = adapter(nn.Identity(), shared, z)
    assert out.flatten().tolist() == pytest.approx([1.2, 2.8])
    out.sum().backward()
    assert adapter.up.weight.grad[0].tolist() == pytest.approx([4.0, 0.0])
    assert z.grad.flatten().tolist() == pytest.approx([2.0, -2.0])


def looped(model):
    """Features of images and texts by the official code's blocks: x + attention, + mlp + y."""

    def blocks(tower, x, adapters, mask=None):
        first = 3 - len(adapters)
        for i, block in enumerate(tower.transformer.resblocks):
            y = 0
            if i >= first:
                adapter, shared = adapters[i - first], model.shared[i - first]
                y = adapter.up(shared(adapter.down(block.ln_1(x)).relu()).relu()) * adapter.scale
            x = x + block.attention(block.ln_1(x), attn_mask=mask)
            x = x + block.mlp(block.ln_2(x)) + y
        return x

    visual, text = model.clip.towers.values()
    x = blocks(visual, model.clip.vision.embed(IMAGES.values), model.vision)
    image = unit(visual.ln_post(x[:, 0]) @ visual.proj)
    texts = model.class_texts()
    n = texts.embeddings.shape[1]
    x = texts.embeddings + text.positional_embedding[:n]
    x = text.ln_final(blocks(text, x, model.text, text.attn_mask[:n, :n]))
    return image, unit(x[torch.arange(5), texts.tokens.read] @ text.text_projection)


@pytest.mark.parametrize("depth", [1, None, 3])
def test_features_of_both_towers_are_those_of_a_straight_loop(tiny_clip, depth):
    model = drawn(AdaptedClip(clip_of(tiny_clip), DIGITS, 4, 0.5, depth))
    assert len(model.shared) == (depth or 2)
    found = model.image_features(IMAGES), model.text_features()
    for features, expected in zip(found, looped(model), strict=True):
        torch.testing.assert_close(features, expected, rtol=0, atol=1e-5)
    assert (found[0] - unit(model.encode(IMAGES))).abs().max() > 1e-2
    assert (found[1] - model.fixed_texts()).abs().max() > 1e-2
    gradient = gradients(model, model(IMAGES).logits.logsumexp(1).sum())
    assert all(float(value.abs().max()) > 0 for value in gradient.values())


def test_only_the_shared_layers_are_averaged(run):
    done = run("pfedmma", {"algorithm.width": 4, "rounds": 2, "algorithm.scale": 0.1})
    names = {f"shared.{i}.{part}" for i in (0, 1) for part in ("weight", "bias")}
    assert set(done.servers[-1]["model"]) == names
    first, second = done.models[0], done.models[1]
    assert not names & first.keys()
    assert all(not torch.equal(first[name], second[name]) for name in first)


def test_a_depth_beyond_the_towers_is_refused(tiny_clip):
    with pytest.raises(UserError, match=r"algorithm\.depth to 3 or less"):
        AdaptedClip(clip_of(tiny_clip), DIGITS, 4, 0.5, 4)
