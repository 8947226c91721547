"""Intervals, tests and corrections: numbers by hand, scipy's, and what must hold of any."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedray.compare.paired import (
    MOST_SEEDS,
    bootstrap_iqm,
    holm,
    iqm,
    p_value,
    power,
    seeds_needed,
    t_interval,
    without_rounding,
)

numbers = st.lists(st.integers(-1000, 1000).map(lambda n: n / 8), min_size=2, max_size=8)
shares = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_t_interval_by_hand():
    # mean 2, deviation 1, t(0.975, 2 degrees) = 4.302653: 4.302653 / sqrt(3) = 2.484138
    found = t_interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.std == 1.0
    assert found.low == pytest.approx(2 - 2.484138, abs=1e-6)
    assert found.high == pytest.approx(2 + 2.484138, abs=1e-6)


def test_one_value_has_an_interval_without_ends():
    found = t_interval([4.0])
    assert (found.mean, found.low, found.high, found.n) == (4.0, -math.inf, math.inf, 1)
    assert p_value([4.0]) is None


def test_p_by_hand():
    # two differences 1 and 3: t = 2 / (sqrt 2 / sqrt 2) = 2 with one degree of freedom, whose
    # distribution is Cauchy's: p = 2 (1/2 - arctan(2) / pi)
    assert p_value([1.0, 3.0]) == pytest.approx(1 - 2 * math.atan(2) / math.pi, abs=1e-12)


@given(numbers)
def test_p_and_interval_are_scipys(values):
    if np.std(values) == 0:
        return
    assert p_value(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=1e-12)
    low, high = stats.t.interval(0.9, len(values) - 1, np.mean(values), stats.sem(values))
    found = t_interval(values, 0.9)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))


@given(numbers, st.integers(-50, 50))
def test_a_shift_of_all_values_shifts_the_interval(values, shift):
    before, after = t_interval(values), t_interval([value + shift for value in values])
    assert after.mean == pytest.approx(before.mean + shift)
    assert after.half == pytest.approx(before.half, abs=1e-9)


@given(numbers)
def test_a_difference_and_its_opposite_are_as_likely(values):
    assert p_value(values) == pytest.approx(p_value([-value for value in values]))


@pytest.mark.parametrize(
    ("values", "p"), [([0.5] * 3, 0.25), ([0.5] * 6, 1 / 32), ([0.0, 0.0], 1.0)]
)
def test_differences_without_spread_are_worth_the_agreement_of_their_signs(values, p):
    assert p_value(values) == p


def test_an_interval_of_equal_values_has_no_width():
    assert np.std([0.1] * 3) > 0  # numpy's mean of them is another number
    found = t_interval([0.1] * 3)
    assert (found.mean, found.low, found.high, found.std) == (0.1, 0.1, 0.1, 0.0)


@given(numbers, st.floats(1, 1e9))
def test_values_that_differ_are_left_as_they_are(values, size):
    small = [value / 8 * size for value in values]
    if len(set(small)) > 1:
        assert without_rounding(small, 1000 * size) == small


def test_rounding_is_no_difference():
    assert without_rounding([1e-15, -1e-15], 1.0) == [0.0, 0.0]
    assert p_value([1e-15, 1e-15], size=50.0) == 1.0


# --- Holm -----------------------------------------------------------------------------------------


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.03, 0.04: times 4, 3, 2, 1 = 0.04, 0.06, 0.06, 0.04, kept from falling
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.7]) == [0.7]
    assert holm([]) == []


def test_a_question_without_an_answer_counts_as_one_of_the_family():
    assert holm([0.01, None, 0.04]) == [pytest.approx(0.03), None, pytest.approx(0.08)]


@given(shares)
def test_holm_keeps_the_order_and_lies_between_p_and_bonferroni(ps):
    corrected = holm(ps)
    for p, found in zip(ps, corrected, strict=True):
        assert min(p, 1) - 1e-12 <= found <= min(1, len(ps) * p) + 1e-12
    by_p = [found for _, found in sorted(zip(ps, corrected, strict=True))]
    assert by_p == sorted(by_p)


@given(shares, st.randoms(use_true_random=False))
def test_holm_does_not_depend_on_the_order(ps, random):
    order = list(range(len(ps)))
    random.shuffle(order)
    corrected, shuffled = holm(ps), holm([ps[index] for index in order])
    assert shuffled == pytest.approx([corrected[index] for index in order])


# --- how many seeds -------------------------------------------------------------------------------


def test_power_is_what_repeated_tests_find():
    rng = np.random.default_rng(0)
    drawn = rng.normal(1.0, 1.0, size=(20_000, 6))
    found = np.mean(stats.ttest_1samp(drawn, 0, axis=1).pvalue < 0.05)
    assert power(1.0, 6, 0.05) == pytest.approx(found, abs=0.015)


@pytest.mark.parametrize("effect", [0.3, 1.0, 4.0, 8.0, 15.0, 50.0])
@pytest.mark.parametrize("n", [2, 3, 5, 10])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 10, 0.05 / 80])
def test_power_is_the_integral_over_spreads(effect, n, alpha):
    # of n normal differences the mean and the variance, chi square, are independent
    share = (np.arange(20_000) + 0.5) / 20_000
    spread = np.sqrt(stats.chi2.ppf(share, n - 1) / (n - 1))
    critical, shift = stats.t.ppf(1 - alpha / 2, n - 1), effect * np.sqrt(n)
    both = stats.norm.sf(critical * spread - shift) + stats.norm.cdf(-critical * spread - shift)
    assert power(effect, n, alpha) == pytest.approx(both.mean(), abs=1e-3)


def test_seeds_needed_by_a_table():
    # Cohen's d = 0.5, 80 %, two-sided 5 %: 34 pairs (any textbook's table of the paired t-test)
    assert seeds_needed(0.5, 1.0) == 34
    assert seeds_needed(1.0, 1.0) == 10


@given(st.floats(0.1, 5), st.floats(0.05, 5), st.sampled_from([0.05, 0.01, 0.002]))
def test_seeds_needed_are_enough_and_one_less_is_not(mean, std, alpha):
    n = seeds_needed(mean, std, alpha)
    if n is None:
        assert power(mean / std, MOST_SEEDS, alpha) < 0.8
        return
    assert power(mean / std, n, alpha) >= 0.8
    assert n == 2 or power(mean / std, n - 1, alpha) < 0.8


def test_no_number_of_seeds_shows_what_is_not_there():
    assert seeds_needed(0.0, 1.0) is None
    assert seeds_needed(0.001, 1.0) is None
    assert seeds_needed(0.5, 0.0) == 6  # 2^-5 is below 0.05, 2^-4 is not


# --- interquartile means --------------------------------------------------------------------------


def test_iqm_by_hand():
    assert iqm(np.array([[100.0, 1.0], [2.0, -7.0]])) == 1.5
    assert iqm(np.array([3.0, 1.0, 2.0])) == 2.0


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30))
def test_iqm_is_scipys_trimmed_mean(values):
    assert iqm(np.array(values)) == pytest.approx(stats.trim_mean(values, 0.25))


def test_the_bootstrap_draws_within_columns():
    # columns without a spread of their own: every draw is the same, however far they are apart
    found = bootstrap_iqm([[1.0, 1.0], [9.0, 9.0]])
    assert (found.low, found.mean, found.high) == (5.0, 5.0, 5.0)


def test_the_bootstrap_is_the_same_every_time_and_shifts_with_its_values():
    strata = [[1.0, 2.0, 4.0], [3.0, 3.5, 7.0]]
    found, again = bootstrap_iqm(strata), bootstrap_iqm(strata)
    assert found == again
    shifted = bootstrap_iqm([[value + 10 for value in column] for column in strata])
    assert shifted.low == pytest.approx(found.low + 10)
    assert shifted.high == pytest.approx(found.high + 10)
    assert found.low < found.mean < found.high


def test_the_bootstrap_of_one_column_covers_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(100):
        values = rng.normal(0.0, 1.0, size=20).tolist()
        found = bootstrap_iqm([values], resamples=300, seed=trial)
        hits += found.low <= 0.0 <= found.high
    assert 85 <= hits <= 100
