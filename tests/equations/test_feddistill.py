"""FedDistill by hand: mean outputs, teachers, the regulariser."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from tensors import CPU

from fedray.algorithms.distillation.feddistill import ClassSums, distillation_loss


def test_the_mean_output_of_every_label_by_hand():
    sums = ClassSums(3, CPU)
    sums.add(torch.tensor([[1.0, 2, 3], [5, 0, 0]]), torch.tensor([2, 0]))
    sums.add(torch.tensor([[3.0, 0, 1]]), torch.tensor([2]))
    classes, means = sums.means()
    assert classes.tolist() == [0, 2]
    assert means.tolist() == [[5.0, 0, 0], [2, 1, 2]]


LOGITS = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
KNOWN = torch.tensor([[0.25, 0.75], [0.5, 0.5]])


def test_the_regulariser_by_hand():
    # -log p of the first image: log(1 + e^-1) and log(1 + e); of the second: log(1 + e^2), ...
    first = 0.25 * log(1 + exp(-1)) + 0.75 * log(1 + exp(1))
    second = 0.5 * log(1 + exp(2)) + 0.5 * log(1 + exp(-2))
    labels = torch.tensor([0, 1])
    found = distillation_loss(LOGITS, labels, KNOWN, torch.tensor([True, True]))
    assert float(found) == pytest.approx((first + second) / 2)
    found = distillation_loss(LOGITS, labels, KNOWN, torch.tensor([True, False]))
    assert float(found) == pytest.approx(first / 2)
