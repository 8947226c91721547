"""Intervals, tests and corrections: numbers by hand, scipy's, and what must hold of any."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedray.results.paired import (
    PairedTest,
    Side,
    compare,
    holm,
    remove_rounding,
    t_interval,
)

p_value = PairedTest().p_value

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


@given(numbers, st.integers(1, 3), st.sampled_from([1, 10]))
def test_the_least_difference_that_seeds_could_have_shown_is_just_decided(values, looks, count):
    test, found = PairedTest(looks=looks), t_interval(values)
    least = test.decidable(found, count)
    if found.std == 0:
        assert least is None
        return
    shifted = [value - found.mean + least for value in values]
    assert count * test.p_value(shifted) == pytest.approx(0.05, rel=1e-6)
    assert test.decidable(t_interval([1.0]), 1) is None


# --- looks ----------------------------------------------------------------------------------------


def compared(*values, looks=1):
    test = PairedTest(looks=looks)
    pairs = {seed: 50 + value for seed, value in enumerate(values)}, dict.fromkeys(range(9), 50.0)
    return compare(Side("a", None), Side("b", None), pairs, test)


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


@given(numbers, st.sampled_from([0.05, 0.2]), st.integers(1, 3))
def test_an_interval_holds_exactly_the_means_that_are_not_rejected(values, alpha, looks):
    test = PairedTest(1 - alpha, looks)
    found = test.interval(values)
    if np.std(values) == 0 or not math.isfinite(found.half):
        return
    for end in (found.low, found.high):
        assert test.p_value([value - end for value in values]) == pytest.approx(alpha, rel=1e-6)
