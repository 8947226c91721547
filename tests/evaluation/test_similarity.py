"""How alike class representations are, against SciPy and numbers by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr

from fedray.evaluation.similarity import matrix_agreement, retrieval_top1


def test_retrieval_by_hand():
    cosines = torch.tensor([[0.9, 0.1, 0.0], [0.8, 0.2, 0.1], [0.0, 0.3, 0.4]])
    assert retrieval_top1(cosines) == pytest.approx(2 / 3)
    assert retrieval_top1(cosines.T) == pytest.approx(2 / 3)
    assert retrieval_top1(torch.eye(4)) == 1
    assert retrieval_top1(torch.eye(4).roll(1, 0)) == 0


@given(st.integers(3, 12), st.integers(0, 100))
def test_agreement_is_scipys_on_the_upper_triangle(classes, seed):
    random = np.random.default_rng(seed)
    a, b = random.standard_normal((2, classes, classes)).astype(np.float32)
    a, b = a + a.T, b + b.T + a
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    x, y = ([m[i, j] for i, j in pairs] for m in (a, b))
    pearson, spearman = matrix_agreement(torch.from_numpy(a), torch.from_numpy(b))
    assert pearson == pytest.approx(pearsonr(x, y).statistic, abs=1e-6)
    assert spearman == pytest.approx(spearmanr(x, y).statistic, abs=1e-6)


def test_agreement_ignores_the_diagonal_and_knows_constants():
    matrix = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 5.0], [2.0, 5.0, 0.0]])
    other = 3 * matrix - 1 + 100 * torch.eye(3)
    assert matrix_agreement(matrix, other) == pytest.approx((1, 1))
    assert matrix_agreement(matrix, -other) == pytest.approx((-1, -1))
    assert matrix_agreement(matrix, torch.ones(3, 3)) == (0.0, 0.0)
