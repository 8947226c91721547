"""Epsilon: closed forms, bounds by hand, and what is counted."""

from __future__ import annotations

import math

import dp_accounting as dp
import pytest
from scipy.stats import norm

from fedray.evaluation.accountant import ORDERS, Accountant, gaussian_epsilon, sampled_epsilon

DELTA = 1e-5


def accountant(mode: str = "central") -> Accountant:
    return Accountant(mode, 2.0, DELTA)


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
    assert set(accountant().spent().values()) == {0}


def test_central_privacy_gains_from_sampling_unless_it_is_known_who_took_part():
    counted = accountant()
    for _ in range(20):
        counted.add([range(10)], range(10), 100)  # always the same ten, by bad luck
    spent = counted.spent()
    assert spent["epsilon"] == pytest.approx(6.0846799044218045)
    known = spent["epsilon_known_participants"]
    assert known == pytest.approx(gaussian_epsilon(2.0, 20, DELTA))
    assert spent["epsilon_round"] < spent["epsilon"] < known


def test_local_privacy_counts_the_busiest_client_and_gains_nothing_from_sampling():
    counted = accountant("local")
    for clients in [(0, 1), (0, 2), (0, 3)]:
        counted.add([clients], clients, 100)
    assert counted.spent()["epsilon"] == gaussian_epsilon(2.0, 3, DELTA)
    assert counted.spent()["epsilon_round"] == gaussian_epsilon(2.0, 1, DELTA)


def test_steps_of_a_round_share_its_sample():
    """Two uploads of the same ten clients cost more than two rounds that draw ten anew."""
    same, anew = accountant(), accountant()
    same.add([range(10), range(10)], range(10), 100)
    for _ in range(2):
        anew.add([range(10)], range(10), 100)
    assert anew.spent()["epsilon"] < same.spent()["epsilon"]
    one = dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 2)
    library = dp.rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    library.compose(dp.SampledWithoutReplacementDpEvent(100, 10, one))
    expected = library.get_epsilon(DELTA)
    assert same.spent()["epsilon"] == min(expected, gaussian_epsilon(2.0, 2, DELTA))


def test_everybody_is_no_sample():
    counted = accountant()
    counted.add([range(50)], (), 100)  # others than participants: all may be among them
    assert counted.spent()["epsilon"] == gaussian_epsilon(2.0, 1, DELTA)
