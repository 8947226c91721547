"""VPT and IVLP: prompts of the image tower by a straight loop; how those of both start."""

from __future__ import annotations

import pytest
import torch
from clips import clip_of, drawn, gradients, noise, prompted

from fedray.models import Pixels
from fedray.models.prompted.texts import unit, word_embeddings

IMAGES = Pixels(noise(6, 3, 8, 8))


def looped(model):
    """Image features as MaPLe has them: prompts pass ln_pre; those of later blocks replace them."""
    visual = model.clip.towers["image tower"]
    x = visual.conv1(((IMAGES.values + 1) / 2 - model.clip.vision.mean) / model.clip.vision.std)
    x = x.flatten(2).permute(0, 2, 1)
    x = torch.cat([visual.class_embedding.expand(6, 1, -1), x], 1) + visual.positional_embedding
    x = visual.ln_pre(torch.cat([x, model.visual[0].expand(6, -1, -1)], 1))
    for i, block in enumerate(visual.transformer.resblocks):
        if 0 < i < len(model.visual):
            kept = x[:, : x.shape[1] - model.visual.shape[1]]
            x = torch.cat([kept, model.visual[i].expand(6, -1, -1)], 1)
        x = block(x)
    return unit(visual.ln_post(x[:, 0]) @ visual.proj)


@pytest.mark.parametrize("depth", [1, 2, None])
def test_image_features_are_those_of_a_straight_loop(tiny_clip, depth):
    model = drawn(prompted("vpt", clip_of(tiny_clip), length=2, depth=depth))
    assert len(model.visual) == (depth or 3)
    with torch.no_grad():
        model.visual.mul_(20)
        features = model.image_features(IMAGES)
        torch.testing.assert_close(features, looped(model), rtol=0, atol=1e-5)
        assert (features - unit(model.encode(IMAGES))).abs().max() > 1e-2
    assert torch.equal(model.text_features(), model.fixed_texts())
    gradient = gradients(model, model(IMAGES).logits.logsumexp(1).sum())["visual"]
    assert float(gradient.abs().amax((1, 2)).min()) > 0


def test_prompts_of_both_towers_start_as_words_and_noise(tiny_clip):
    model = drawn(prompted("ivlp", clip_of(tiny_clip), depth=1))
    assert torch.equal(model.text[0], word_embeddings(model.clip.text, "a photo of a", 2))
    torch.testing.assert_close(model.text_features(), model.fixed_texts(), rtol=0, atol=1e-5)
    torch.testing.assert_close(model.image_features(IMAGES), looped(model), rtol=0, atol=1e-5)
    deep = drawn(prompted("ivlp", model.clip))
    assert 0.01 < deep.text[1:].std() < 0.03
    assert 0.01 < deep.visual.std() < 0.03
    assert not torch.allclose(deep.text_features(), deep.fixed_texts(), atol=1e-3)
    for gradient in gradients(deep, deep(IMAGES).logits.logsumexp(1).sum()).values():
        assert float(gradient.abs().amax((1, 2)).min()) > 0
