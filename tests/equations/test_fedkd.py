"""FedKD by hand: adaptive losses, ranks, factors, and the mean of the updates."""

from __future__ import annotations

import pytest
import torch
from tensors import gaussian

from fedray.algorithms.distillation.fedkd import (
    adaptive_loss,
    energy,
    energy_rank,
    factorise,
    restore,
)


def test_the_adaptive_loss_by_hand():
    task, other, distance = (torch.tensor(x, requires_grad=True) for x in (1.0, 2.0, 0.6))
    loss = adaptive_loss(task, other, distance)
    assert loss.item() == pytest.approx(1.2)
    loss.backward()
    assert float(distance.grad) == pytest.approx(1 / 3)
    assert float(task.grad) == pytest.approx(1 - 0.6 / 9)
    zero = torch.tensor(0.0)
    assert float(adaptive_loss(zero, zero, zero)) == 0.0  # not 0/0


def test_the_first_round_has_the_first_energy(assemble):
    """The squares of the singular values are 16, 9 and 1; round 2 of 2 is half-way to all."""
    keys = {"rounds": 2, "algorithm.energy_start": 0.5, "algorithm.energy_end": 1.0}
    method = assemble("fedkd", keys).algorithm
    update = torch.diag(torch.tensor([4.0, 3.0, 1.0, *[0.0] * 9]))
    ranks = [len(method.factors(update, round_)["s"]) for round_ in (0, 1, 2)]
    assert ranks == [1, 1, 2]


@pytest.mark.parametrize(("done", "expected"), [(0, 0.5), (0.25, 0.6), (1, 0.9)])
def test_the_energy_rises_linearly(done, expected):
    assert energy(0.5, 0.9, done) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.6, 1), (0.7, 2), (0.84, 3), (0.99, 3), (1.0, 3)]
)
def test_the_smallest_rank_with_enough_energy_by_hand(share, expected):
    assert energy_rank(torch.tensor([2.0, 1.0, 1.0]), share) == expected  # 4/6, 5/6, 6/6


def test_a_flat_spectrum_needs_the_full_rank_not_none():
    assert energy_rank(torch.ones(10), 0.95) == 10
    assert energy_rank(torch.ones(1), 0.95) == 1  # a 1x1 kernel


def test_factors_hold_the_energy_and_are_smaller():
    matrix = gaussian(20, 2) @ gaussian(2, 30, seed=1)
    found = factorise(matrix, 1 - 1e-6)
    assert {n: tuple(t.shape) for n, t in found.items()} == {"u": (20, 2), "s": (2,), "v": (2, 30)}
    torch.testing.assert_close(restore(found), matrix, atol=1e-4, rtol=1e-4)
    noisy = matrix + 0.3 * gaussian(20, 30, seed=2)
    for share in (0.5, 0.8, 0.95):
        lost = noisy - restore(factorise(noisy, share))
        assert float(lost.square().sum()) < (1 - share) * float(noisy.square().sum())


def test_a_convolution_is_factorised_as_one_matrix():
    layer = (gaussian(6, 1) @ gaussian(1, 100, seed=1)).reshape(6, 4, 5, 5)
    found = factorise(layer, 0.9999)
    assert [tuple(t.shape) for t in found.values()] == [(6, 1), (1,), (1, 100)]
    torch.testing.assert_close(restore(found), layer.flatten(1), atol=1e-4, rtol=1e-4)
    assert torch.equal(restore(factorise(layer, None)), layer.flatten(1))


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(5.0), torch.zeros(8, 8), torch.eye(10), gaussian(4, 3, 1, 1)],
    ids=["vector", "zero", "flat", "1x1 kernels"],
)
def test_what_factors_would_not_make_smaller_travels_whole(tensor):
    assert torch.equal(factorise(tensor, 0.99)["whole"], tensor)
    assert list(factorise(tensor, None)) == ["whole"]
