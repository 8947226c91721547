"""FedPAC's targets and its quadratic programme, by hand."""

from __future__ import annotations

import pytest
import torch
from tensors import gaussian

from fedray.algorithms.personalised.fedpac import (
    alignment_targets,
    head_weights,
    simplex_minimum,
)
from fedray.algorithms.prototypes.fedproto import FedProto


def gram(k, rank, seed):
    root = gaussian(k, rank, seed=seed).double()
    return root @ root.T


def test_targets_are_the_servers_then_the_own_prototypes():
    h, labels = torch.tensor([[1.0, 1.0], [0.5, 0.0], [0.0, 0.0]]), torch.tensor([0, 0, 0, 1])
    server = FedProto.down(torch.full((3, 2), 7.0), torch.tensor([True, False, False]))
    targets = alignment_targets(server, h, labels)
    assert targets.vectors[:2].tolist() == [[7.0, 7.0], [2.0, 0.0]]
    assert targets.present.tolist() == [True, True, False]
    none = FedProto.down(torch.zeros(3, 2), torch.zeros(3, dtype=torch.bool))
    assert not alignment_targets(none, h, labels).present.any()


# --- the weights of the heads --------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize(("k", "rank"), [(2, 2), (6, 3), (12, 12), (40, 60)])
def test_the_simplex_minimum_is_optimal(k, rank, scale):
    matrix = gram(k, rank, seed=k) * scale
    a = simplex_minimum(matrix)
    assert float(a.min()) >= 0
    assert float(a.sum()) == pytest.approx(1.0)
    # Karush, Kuhn, Tucker: no vertex goes down, and all that is used is level
    slope = matrix @ a
    value = float(a @ slope)
    tolerance = 1e-9 * float(matrix.trace())
    assert float(slope.min()) >= value - tolerance
    torch.testing.assert_close(
        slope[a > 1e-8], torch.full_like(slope[a > 1e-8], value), rtol=0, atol=tolerance
    )


def test_small_weights_go_and_the_others_fill_up():
    alike, variances = torch.zeros(3, 1, 1), torch.tensor([1.0, 1.0, 8.0])
    assert head_weights(alike, variances, 0, 0.0).tolist() == pytest.approx(
        [8 / 17, 8 / 17, 1 / 17]
    )
    assert head_weights(alike, variances, 0, 0.1).tolist() == pytest.approx([0.5, 0.5, 0.0])
    # all are small: all stay
    assert head_weights(alike, torch.ones(3), 0, 0.5).tolist() == pytest.approx([1 / 3] * 3)
