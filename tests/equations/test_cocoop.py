"""CoCoOp: the official code's loop over images, and its gradients."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from clips import DIGITS, clip_of, drawn, gradients, noise

from fedray.algorithms.prompts import cocoop
from fedray.algorithms.prompts.cocoop import ConditionalClip
from fedray.models import ImageFeatures
from fedray.models.prompted import ContextClip


def model_of(folder):
    return drawn(ConditionalClip(clip_of(folder), DIGITS, 4, "a photo of a"))


def test_the_logits_are_those_of_a_loop_over_images_and_all_is_trained(tiny_clip, monkeypatch):
    model, plain = model_of(tiny_clip), ContextClip(clip_of(tiny_clip), DIGITS, 4)
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
