"""CoCoOp: the official code's loop over images, a shift by hand, and its gradients."""

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


def test_the_shift_by_hand(tiny_clip):
    model = model_of(tiny_clip)  # d = 24, so one hidden unit
    with torch.no_grad():
        model.first.weight.zero_()[0, 0] = 2.0
        model.first.bias.fill_(-1.0)
        model.second.weight.fill_(3.0)
        model.second.bias.fill_(0.5)
    image = torch.zeros(2, 24)
    image[0, 0], image[1, 1] = 1.0, 1.0  # relu(2 - 1) = 1 and relu(-1) = 0
    assert model.shifts(image)[:, 0].tolist() == [3.5, 0.5]
    moved = model.contexts(image) - model.context
    torch.testing.assert_close(moved[0], torch.full((4, 16), 3.5))


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
