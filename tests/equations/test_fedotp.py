"""Unbalanced optimal transport: plans by hand, their marginals, no gradient through them."""

from __future__ import annotations

from math import exp

import pytest
import torch
from clips import clip_of, drawn, noise, prompted

from fedray.algorithms.prompts import fedotp
from fedray.algorithms.prompts.fedotp import transport_plan
from fedray.models import PatchFeatures


def real_costs(patches: int = 196, texts: int = 2) -> torch.Tensor:
    """Costs 1 - cos around 0.75, as CLIP's are: [3, 5, texts, patches]."""
    return 0.75 + 0.1 * noise(3, 5, texts, patches)


def test_a_plan_by_hand_with_and_without_a_full_row():
    """One text, two patches, C = (0, 1), eps = 1: mass goes in the ratio 1 : e^-1, at most 1/2."""
    cost, share = torch.tensor([[0.0, 1.0]]), 1 / (1 + exp(-1))
    free = transport_plan(cost, 0.6, 1.0, threshold=1e-7)
    torch.testing.assert_close(free, torch.tensor([[0.6 * share, 0.6 * (1 - share)]]))
    assert 0.8 * share > 0.5
    full = transport_plan(cost, 0.8, 1.0, threshold=1e-7)
    torch.testing.assert_close(full, torch.tensor([[0.5, 0.3]]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("gamma", [1.0, 0.8, 0.2])
def test_columns_carry_gamma_over_n_and_rows_at_most_their_part(gamma, epsilon):
    plan = transport_plan(real_costs(), gamma, epsilon, threshold=1e-6, iterations=2000)
    assert (plan >= 0).all()
    columns, rows = plan.sum(-1), plan.sum(-2)
    torch.testing.assert_close(columns, torch.full_like(columns, gamma / 2), rtol=0, atol=1e-5)
    assert (rows <= (1 + 1e-3) / 196).all()
    if gamma == 1 and epsilon > 0.01:  # balanced
        torch.testing.assert_close(rows, torch.full_like(rows, 1 / 196), rtol=1e-2, atol=0)


def test_a_tiny_epsilon_does_not_underflow():
    cost = 1.5 + 0.4 * noise(2, 2, 50).clamp(-1, 1)
    assert float((-cost / 0.005).exp().max()) == 0  # what the plain iterations would divide by
    plan = transport_plan(cost, 0.8, 0.005)
    torch.testing.assert_close(plan.sum((-2, -1)), torch.full((2,), 0.8), rtol=1e-4, atol=0)


def model_of(tiny_clip, **hparams):
    return drawn(prompted("fedotp", clip_of(tiny_clip), length=4, **hparams))


def test_images_in_parts_have_the_same_logits(tiny_clip, monkeypatch):
    model = model_of(tiny_clip, threshold=1e-6)
    patches = noise(5, model.clip.vision.patches, model.clip.dim)
    with torch.no_grad():
        whole = model(PatchFeatures(patches)).logits
        monkeypatch.setattr(fedotp, "MAX_ENTRIES", 2 * 2 * 5 * model.clip.vision.patches)
        torch.testing.assert_close(
            model(PatchFeatures(patches)).logits, whole, rtol=1e-4, atol=1e-4
        )
