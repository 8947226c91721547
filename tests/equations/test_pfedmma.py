"""pFedMMA: an adapter's numbers by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedray.algorithms.prompts.pfedmma import Adapter


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
