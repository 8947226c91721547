"""DP-FPL: factors and gradients of the official code's loops, the noise, and a whole round."""

from __future__ import annotations

from math import log, sqrt

import pytest
import torch
from clips import noise

from fedray.algorithms.prompts.dp_fpl import factors, local_gradient, private

SHORT = {"algorithm.length": 4, "algorithm.rank": 2}


def stream():
    return torch.Generator().manual_seed(3)


def orthogonalised(matrix):
    """The columns of the official code's loop."""
    columns = []
    for column in matrix.T:
        for other in columns:
            column = column - (other @ column) * other
        columns.append(column / column.norm())
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("rank", [1, 3, 9])
def test_the_factors_span_what_the_official_loop_spans(rank):
    context, columns = noise(4, 16), min(rank, 4)
    u, v = factors(context, rank, stream())
    theirs = orthogonalised(context @ torch.randn(16, columns, generator=stream()))
    there = orthogonalised(context.T @ theirs).T
    torch.testing.assert_close(u @ u.T, theirs @ theirs.T)
    torch.testing.assert_close(v.T @ v, there.T @ there)  # signs have no effect
    torch.testing.assert_close(u.T @ u, torch.eye(columns))


def test_the_gradient_by_hand():
    """G = [[1, 2], [3, 4]], u = (1, 0)^T, v = (0, 1): du = (2, 4)^T, dv = (1, 2)."""
    u, v = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0, 1.0]])
    whole = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    du, dv = whole @ v.T, u.T @ whole
    assert (du.tolist(), dv.tolist()) == ([[2.0], [4.0]], [[1.0, 2.0]])
    # (du) v = [[0, 2], [0, 4]], u (dv) = [[1, 2], [0, 0]], u u^T (du) v = [[0, 2], [0, 0]]
    assert local_gradient(u, v, du, dv).tolist() == [[1.0, 6.0], [0.0, 4.0]]


def test_the_noise_reaches_the_own_contexts(run):
    changes = {**SHORT, "rounds": 1, "batch_size": 8}
    plain, noisy = run("dp_fpl", changes), run("dp_fpl", {**changes, "algorithm.epsilon": 1.0})
    pairs = [(noisy.models[k]["local_context"], plain.models[k]["local_context"]) for k in (0, 1)]
    assert all(float((a - b).abs().max()) > 1e-3 for a, b in pairs)


def test_private_gradients_are_clipped_and_noisy(assemble):
    large, small = torch.full((2, 2), 3.0), torch.full((2, 2), 0.1)
    torch.testing.assert_close(private(large, 1.0, 0.0, stream()), torch.full((2, 2), 0.5))
    assert torch.equal(private(small, 1.0, 0.0, stream()), small)
    assert torch.equal(private(0 * small, 1.0, 0.0, stream()), 0 * small)
    drawn = private(torch.zeros(200, 200), 1.0, 0.7, stream())
    assert float(drawn.std()) == pytest.approx(0.7, rel=0.02)
    keys = {"rounds": 4, "batch_size": 8, "algorithm.epsilon": 0.2, "algorithm.clip": 5.0}
    method = assemble("dp_fpl", keys).algorithm
    assert method.noise_std() == pytest.approx(sqrt(4 * log(1e5)) / 0.2 * 5.0 / 8)
    assert assemble("dp_fpl", {"rounds": 4}).algorithm.noise_std() == 0
