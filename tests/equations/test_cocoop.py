"""CoCoOp: the official code's loop over images, and its gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from clips import clip_of, drawn, gradients, noise, prompted

from fedray.algorithms.prompts import cocoop
from fedray.models import ImageFeatures


def model_of(folder):
    return drawn(prompted("cocoop", clip_of(folder)))


def test_the_logits_are_those_of_a_loop_over_images_and_all_is_trained(tiny_clip, monkeypatch):
    model, plain = model_of(tiny_clip), prompted("promptfl", clip_of(tiny_clip), length=4)
    features = noise(6, model.clip.dim)
    logits, bias = [], model.second(F.relu(model.first(F.normalize(features, dim=-1))))
    for image, pi in zip(F.normalize(features, dim=-1), bias, strict=True):
        plain.context.data = (model.context + pi).detach()
        logits.append(model.clip.scale * plain.text_features() @ image)
    found = model(ImageFeatures(features))
    torch.testing.assert_close(found.logits, torch.stack(logits))
    found = gradients(model, F.cross_entropy(found.logits, torch.arange(6) % 5))
    assert all(float(gradient.abs().max()) > 0 for gradient in found.values())
    monkeypatch.setattr(cocoop, "MOST_TEXTS", 10)  # two images at once
    torch.testing.assert_close(model(ImageFeatures(features)).logits, torch.stack(logits))
