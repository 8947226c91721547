"""A gate on image features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from clips import DIGITS, clip_of, drawn, gradients, noise

from fedray.models import ImageFeatures
from fedray.models.prompted import AdapterClip, ZeroShotClip


def test_a_constant_gate_is_zero_shot(tiny_clip):
    model = AdapterClip(clip_of(tiny_clip), DIGITS)
    features = ImageFeatures(noise(6, model.clip.dim))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        plain = ZeroShotClip(model.clip, DIGITS)(features).logits
        torch.testing.assert_close(model(features).logits, plain)
        assert (drawn(model)(features).logits - plain).abs().max() > 1e-3


def test_the_gate_by_its_formula(tiny_clip):
    model = drawn(AdapterClip(clip_of(tiny_clip), DIGITS))
    image = F.normalize(noise(3, model.clip.dim), dim=-1)
    w1, b1, w2, b2 = model.parameters()
    gate = torch.softmax(torch.tanh(image @ w1.T + b1) @ w2.T + b2, dim=-1)
    expected = F.normalize(gate * image, dim=-1)
    torch.testing.assert_close(model.image_features(ImageFeatures(3.0 * image)), expected)


def test_all_of_the_adapter_learns(tiny_clip):
    model = drawn(AdapterClip(clip_of(tiny_clip), DIGITS))
    loss = F.cross_entropy(model(ImageFeatures(noise(5, model.clip.dim))).logits, torch.arange(5))
    assert all(float(value.abs().max()) > 0 for value in gradients(model, loss).values())
