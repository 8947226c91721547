"""How alike class representations are, against numbers by hand."""

from __future__ import annotations

import pytest
import torch

from fedray.evaluation.similarity import matrix_agreement, retrieval_top1


def test_retrieval_by_hand():
    cosines = torch.tensor([[0.9, 0.1, 0.0], [0.8, 0.2, 0.1], [0.0, 0.3, 0.4]])
    assert retrieval_top1(cosines) == pytest.approx(2 / 3)
    assert retrieval_top1(cosines.T) == pytest.approx(2 / 3)
    assert retrieval_top1(torch.eye(4)) == 1
    assert retrieval_top1(torch.eye(4).roll(1, 0)) == 0


def test_agreement_ignores_the_diagonal_and_knows_constants():
    matrix = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 5.0], [2.0, 5.0, 0.0]])
    other = 3 * matrix - 1 + 100 * torch.eye(3)
    assert matrix_agreement(matrix, other) == pytest.approx((1, 1))
    assert matrix_agreement(matrix, -other) == pytest.approx((-1, -1))
    assert matrix_agreement(matrix, torch.ones(3, 3)) == (0.0, 0.0)
