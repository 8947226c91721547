"""FedLC's calibration by hand, where it is FedAvg, and what clients remember."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedray.algorithms.averaging.fedlc import calibrate


def test_calibration_by_hand():
    f, n, y = torch.tensor([[2.0, 1.0]]), torch.tensor([16, 1]), torch.tensor([1])
    g = calibrate(f, n, 1.0)
    assert g.tolist() == [[1.5, 0.0]]
    assert F.cross_entropy(g, y).item() == pytest.approx(1.701413, abs=1e-6)


def test_tau_scales_the_margin_and_a_missing_class_has_one_of_100():
    margins = -calibrate(torch.zeros(1, 3), torch.tensor([0, 1, 16]), 0.5)
    torch.testing.assert_close(margins, torch.tensor([[50.0, 0.5, 0.25]]))
