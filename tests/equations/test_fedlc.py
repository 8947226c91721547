"""FedLC's margins by hand."""

from __future__ import annotations

import torch

from fedray.algorithms.averaging.fedlc import calibrate


def test_tau_scales_the_margin_and_a_missing_class_has_one_of_100():
    margins = -calibrate(torch.zeros(1, 3), torch.tensor([0, 1, 16]), 0.5)
    torch.testing.assert_close(margins, torch.tensor([[50.0, 0.5, 0.25]]))
