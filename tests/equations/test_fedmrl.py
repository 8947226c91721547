"""FedMRL by hand: two heads on one feature, and the width of the small model."""

from __future__ import annotations

from math import exp, log

import pytest
import torch

from fedray.algorithms.distillation.fedmrl import matryoshka_loss


def test_the_loss_of_both_heads_by_hand():
    logits, small = torch.tensor([[log(3), 0.0]]), torch.tensor([[0.0, 1.0]])
    expected = log(4 / 3) + log(1 + exp(1))
    assert float(matryoshka_loss(logits, small, torch.tensor([0]))) == pytest.approx(expected)


def test_the_small_models_width(assemble):
    assert assemble("fedmrl", {"model.feature_dim": 512}).algorithm.auxiliary_dim() == 128
    assert assemble("fedmrl", {"algorithm.small_dim": 16}).algorithm.auxiliary_dim() == 16
