"""Similarities that methods share, by hand and under autocast."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fedray.algorithms.losses import cosine_matrix


def test_cosines_by_hand_and_of_zero_vectors():
    a = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    b = torch.tensor([[5.0, 0.0], [0.0, -2.0]])
    torch.testing.assert_close(cosine_matrix(a, b), torch.tensor([[0.6, -0.8], [0.0, 0.0]]))


def test_autocast_does_not_round_cosines():
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, 512, generator=random) for n in (64, 10))
    exact = F.normalize(a.double(), dim=1) @ F.normalize(b.double(), dim=1).T
    with torch.autocast("cpu", torch.bfloat16):
        found = cosine_matrix(a, b)
        low = cosine_matrix(a.bfloat16(), b)
    assert found.dtype == low.dtype == torch.float32
    assert torch.equal(found, cosine_matrix(a, b))
    assert float((found - exact).abs().max()) / 0.01 < 1e-3  # logits at the temperature 0.01
