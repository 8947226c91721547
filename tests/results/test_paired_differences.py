"""Intervals, tests and corrections: numbers by hand, scipy's, and what must hold of any."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedray.results.paired import (
    MOST_SEEDS,
    PRIOR,
    PairedTest,
    SeedRange,
    Side,
    compare,
    holm,
    remove_rounding,
    seeds_to_decide,
    t_interval,
)

p_value = PairedTest().p_value
power = PairedTest().power

numbers = st.lists(st.integers(-1000, 1000).map(lambda n: n / 8), min_size=2, max_size=8)
shares = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def test_one_value_has_an_interval_without_ends():
    found = t_interval([4.0])
    assert (found.mean, found.n) == (4.0, 1)
    assert all(map(math.isnan, (found.low, found.high, found.std)))
    assert p_value([4.0]) is None


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


@given(numbers, st.floats(1, 1e9))
def test_values_that_differ_are_left_as_they_are(values, size):
    small = [value / 8 * size for value in values]
    if len(set(small)) > 1:
        assert remove_rounding(small, 1000 * size) == small


def test_rounding_is_no_difference():
    assert remove_rounding([1e-15, -1e-15], 1.0) == [0.0, 0.0]
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


def test_seeds_by_a_table():
    # Cohen's d = 0.5, 80 %, two-sided 5 %: 34 pairs (any textbook's table of the paired t-test)
    assert PairedTest().seeds_for(0.5, 0.05) == 34
    assert PairedTest().seeds_for(1.0, 0.05) == 10
    assert PairedTest().detectable(34, 0.05) == pytest.approx(0.5, abs=0.01)
    assert PairedTest().detectable(10, 0.05) == pytest.approx(1.0, abs=0.01)
    assert PairedTest().detectable(1, 0.05) is None
    assert PairedTest("anytime").detectable(3, 0.05) is None  # no t of three differences decides


@given(st.floats(0.1, 5), st.sampled_from([0.05, 0.01]), st.sampled_from(["fixed", "anytime"]))
@settings(max_examples=30)
def test_seeds_are_enough_and_one_less_is_not(effect, alpha, kind):
    test = PairedTest(kind)
    n = test.seeds_for(effect, alpha)
    if n is None:
        assert test.power(effect, MOST_SEEDS, alpha) < 0.8
        return
    assert test.power(effect, n, alpha) >= 0.8
    assert n == 2 or test.power(effect, n - 1, alpha) < 0.8


def compared(*values, kind="fixed", looks=1):
    test = PairedTest(kind, looks=looks)
    return compare(Side("a", None), Side("b", None), dict(enumerate(values)), test, 100.0)


def test_seeds_that_would_decide_are_a_range_from_the_ends_of_the_interval():
    # mean 2, deviation 1.414, interval 2 -+ 1.756 (t = 2.776): effects 2.656 and 0.173; decided at
    # 5 % already, so at 10 comparisons and one more look: 0.25 %
    found = compared(0.0, 1.0, 2.0, 3.0, 4.0)
    interval, test = t_interval([0.0, 1.0, 2.0, 3.0, 4.0]), PairedTest(looks=2)
    assert interval.low == pytest.approx(2 - 2.776445 * math.sqrt(2.5 / 5), abs=1e-5)
    ends = [test.seeds_for(end / interval.std, 0.005) for end in (interval.high, interval.low)]
    assert seeds_to_decide(found, 10) == SeedRange(*[end and max(6, end) for end in ends])
    assert ends[0] > 6
    assert ends[1] is None


def test_the_range_needs_more_seeds_than_there_are_and_a_direction():
    assert seeds_to_decide(compared(1.0)) is None
    assert seeds_to_decide(compared(0.0, 0.0, 0.0)) is None
    assert seeds_to_decide(compared(-1.0, 1.1, 0.2, -0.4)) is None  # p = 0.96
    wide = seeds_to_decide(compared(-0.5, 2.0, 1.0, 1.5))  # p = 0.16: the interval holds 0
    assert wide is not None
    assert (wide.least, wide.most) == (5, None)


def test_equal_differences_are_decided_by_their_signs_alone():
    # 2^(1 - n) <= 0.05 / 2, for one more look, from n = 7 on; 0.05, of the anytime test, from 6 on
    assert seeds_to_decide(compared(0.5, 0.5, 0.5)) == SeedRange(7, 7)
    assert seeds_to_decide(compared(0.5, 0.5, 0.5, kind="anytime")) == SeedRange(6, 6)


def test_a_range_in_words():
    assert str(SeedRange(8, 21)) == "8 to 21 seeds would decide"
    assert str(SeedRange(8, 8)) == "8 seeds would decide"
    assert str(SeedRange(8, None)) == "8 to more than 40 seeds would decide"
    assert str(SeedRange(None, None)) == "more than 40 seeds would decide"


# --- looks ----------------------------------------------------------------------------------------


def test_looks_multiply_p_and_widen_the_interval():
    values = [1.0, 3.0, 2.5, 2.0]
    once, thrice = compared(*values), compared(*values, looks=3)
    assert thrice.p == pytest.approx(3 * once.p)
    expected = t_interval(values, 1 - 0.05 / 3)
    assert (thrice.interval.low, thrice.interval.high) == pytest.approx(
        (expected.low, expected.high)
    )
    assert compared(-1.0, 1.0, 0.5, looks=3).p == 1.0
    assert compared(0.5, 0.5, 0.5, looks=3).p == 0.75


def test_the_anytime_p_is_one_over_the_bayes_factor_by_hand():
    # n = 2, t = 2, g = 4: (1 + 8)^(1/2) (1 + 4 / 9) / (1 + 4) = 13 / 15
    assert PRIOR == 4
    assert PairedTest("anytime").p_value([1.0, 3.0]) == pytest.approx(13 / 15)


@pytest.mark.parametrize(("t", "n"), [(0.0, 3), (2.5, 5), (-6.0, 8)])
def test_the_bayes_factor_is_the_integral_over_effects(t, n):
    # t of n differences with effect d has the noncentral t density with shift d sqrt(n)
    effects = np.linspace(-16, 16, 4001)
    weights = stats.norm.pdf(effects, scale=np.sqrt(PRIOR))
    densities = stats.nct.pdf(t, n - 1, effects * np.sqrt(n)) * weights
    factor = np.nansum(densities) * (effects[1] - effects[0]) / stats.t.pdf(t, n - 1)
    assert PairedTest("anytime").p_of_t(t, n) == pytest.approx(min(1, 1 / factor), rel=1e-3)


@given(numbers, st.sampled_from([0.05, 0.2]), st.integers(1, 3), st.booleans())
def test_an_interval_holds_exactly_the_means_that_are_not_rejected(values, alpha, looks, anytime):
    test = PairedTest("anytime" if anytime else "fixed", 1 - alpha, looks)
    found = test.interval(values)
    if np.std(values) == 0 or not math.isfinite(found.half):
        return
    for end in (found.low, found.high):
        assert test.p_value([value - end for value in values]) == pytest.approx(alpha, rel=1e-6)


def test_an_interval_of_few_differences_is_unbounded_where_nothing_is_rejected():
    found = PairedTest("anytime").interval([1.0, 2.0, 3.0])
    assert (found.mean, found.low, found.high) == (2.0, -math.inf, math.inf)
    assert math.isinf(PairedTest("anytime").critical(3, 0.05))


@pytest.mark.parametrize(("kind", "least", "most"), [("fixed", 0.15, 1), ("anytime", 0, 0.05)])
def test_errors_of_looks_after_each_of_forty_seeds(kind, least, most):
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=(4000, 40))
    wrong = np.zeros(4000, dtype=bool)
    for n in range(2, 41):
        t = drawn[:, :n].mean(1) / (drawn[:, :n].std(1, ddof=1) / np.sqrt(n))
        wrong |= PairedTest(kind).p_of_t(t, n) <= 0.05
    assert least <= wrong.mean() <= most


def test_the_power_of_the_anytime_test_is_what_repeated_tests_find():
    drawn = np.random.default_rng(0).normal(2.0, 1.0, size=(20_000, 8))
    t = drawn.mean(1) / (drawn.std(1, ddof=1) / np.sqrt(8))
    found = np.mean(PairedTest("anytime").p_of_t(t, 8) <= 0.05)
    assert PairedTest("anytime").power(2.0, 8, 0.05) == pytest.approx(found, abs=0.01)
    assert found > 0.85
