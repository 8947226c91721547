"""Epsilon: published numbers, closed forms, and what is counted."""

from __future__ import annotations

import math

import dp_accounting as dp
import pytest
from scipy.stats import norm

from fedray.evaluation.accountant import (
    Accountant,
    gaussian_epsilon,
    renyi_epsilon,
    sampled_epsilon,
)

DELTA = 1e-5


def accountant(mode: str = "central") -> Accountant:
    return Accountant(mode, 2.0, DELTA)


@pytest.mark.parametrize(
    ("n", "batch", "sigma", "epochs", "delta", "published"),
    [
        (60_000, 150, 1.3, 15, 1e-5, 0.7242234026109595),
        (100_000, 100, 1.0, 30, 1e-7, 1.4154988495444845),
    ],
)
def test_the_published_examples_of_dp_sgd(n, batch, sigma, epochs, delta, published):
    """MNIST's size and another, as in compute_dp_sgd_privacy_lib_test of TensorFlow Privacy."""
    step = dp.PoissonSampledDpEvent(batch / n, dp.GaussianDpEvent(sigma))
    event = dp.SelfComposedDpEvent(step, math.ceil(epochs * n / batch))
    found = renyi_epsilon(event, delta, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert found == pytest.approx(published, rel=1e-9)


@pytest.mark.parametrize(("sigma", "times"), [(2.0, 1), (2.0, 20), (8.0, 20), (30.0, 3)])
def test_the_closed_form_of_gaussian_mechanisms(sigma, times):
    """Balle and Wang 2018, Thm. 8, for k of them with sensitivity 2 S: mu = 2 sqrt(k) / sigma."""
    epsilon, mu = gaussian_epsilon(sigma, times, DELTA), 2 * math.sqrt(times) / sigma
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(DELTA, rel=1e-6)
    rounds = (((7, 7, 1), times),)  # all of 7 clients in every round; Rényi's bound is no smaller
    assert epsilon <= sampled_epsilon(sigma, rounds, DELTA) <= 1.2 * epsilon


def test_sampling_without_replacement_by_hand():
    """Wang et al. 2019, Thm. 27, at order 2: log(1 + q² min(4 (e^r - 1), 2 e^r)), r = 2 / (2 z²).

    Epsilon is the best over orders, so it is at most that of order 2.
    """
    sigma, q, rounds = 20.0, 0.1, 50
    r = 2 / (2 * (sigma / 2) ** 2)
    of_order_2 = rounds * math.log1p(q**2 * min(4 * math.expm1(r), 2 * math.exp(r)))
    accountant = dp.rdp.RdpAccountant([2.0], dp.NeighboringRelation.REPLACE_ONE)
    event = dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(sigma / 2))
    accountant.compose(event, rounds)
    bound, _ = dp.rdp.compute_epsilon([2.0], [of_order_2], DELTA)
    assert accountant.get_epsilon(DELTA) == pytest.approx(bound)
    assert sampled_epsilon(sigma, (((10, 100, 1), rounds),), DELTA) <= bound


def test_no_release_costs_nothing():
    assert accountant().spent(0) == (0, 0, 0)


def test_central_privacy_gains_from_sampling_unless_it_is_known_who_took_part():
    counted = accountant()
    for round_ in range(1, 21):
        counted.add(round_, [range(10)], range(10), 100)  # always the same ten, by bad luck
    spent = counted.spent(20)
    assert spent.total == pytest.approx(6.0846799044218045)
    assert spent.if_known == pytest.approx(gaussian_epsilon(2.0, 20, DELTA))
    assert spent.of_round < spent.total < spent.if_known


def test_local_privacy_counts_the_busiest_client_and_gains_nothing_from_sampling():
    counted = accountant("local")
    for round_, clients in enumerate([(0, 1), (0, 2), (0, 3)], 1):
        counted.add(round_, [clients], clients, 100)
    assert counted.spent(3).total == gaussian_epsilon(2.0, 3, DELTA)
    assert counted.spent(3).of_round == gaussian_epsilon(2.0, 1, DELTA)


def test_steps_of_a_round_share_its_sample():
    """Two uploads of the same ten clients cost more than two rounds that draw ten anew."""
    same, anew = accountant(), accountant()
    same.add(1, [range(10), range(10)], range(10), 100)
    for round_ in (1, 2):
        anew.add(round_, [range(10)], range(10), 100)
    assert anew.spent(2).total < same.spent(1).total
    one = dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 2)
    event = dp.SampledWithoutReplacementDpEvent(100, 10, one)
    expected = renyi_epsilon(event, DELTA, dp.NeighboringRelation.REPLACE_ONE)
    assert same.spent(1).total == min(expected, gaussian_epsilon(2.0, 2, DELTA))


def test_everybody_is_no_sample():
    counted = accountant()
    counted.add(0, [range(50)], (), 100)  # others than participants: all may be among them
    assert counted.spent(0).total == gaussian_epsilon(2.0, 1, DELTA)
