"""Fragile verdicts, by worked numbers."""

from __future__ import annotations

import pytest
from scipy import stats

from fedray.results.fragile import MEDIAN, fragility, sign_flip_p
from fedray.results.paired import PairedTest, Side, compare


def compared(*values):
    sides = Side("a", None), Side("b", None)
    return compare(*sides, dict(enumerate(values)), PairedTest(), 100.0)


def test_a_clear_verdict_is_not_fragile_and_an_open_one_has_nothing_to_undo():
    assert fragility([compared(1.0, 1.1, 0.9, 1.0, 1.05)]) == [[]]
    assert fragility([compared(1.0, -1.1, 0.9)]) == [[]]
    assert fragility([compared()]) == [[]]
    assert fragility([]) == []


def test_one_seed_that_undoes_a_verdict_is_named():
    # p is 0.025 of all four; without one of them 0.006, 0.102, 0.101 and 0.089
    found = fragility([compared(0.4, 1.5, 1.4, 1.8)])
    assert found == [["undecided without seed 1, 2 or 3"]]


def test_a_verdict_that_is_solid_alone_may_be_fragile_in_a_family():
    # p is 0.0045 of all five, and 0.022 without the second, third or last, 0.021 without the fourth
    solid, open_one = compared(0.4, 1.5, 1.4, 1.6, 1.5), compared(1.0, -1.0, 2.0, -2.0, 0.1)
    assert fragility([solid]) == [[]]
    assert fragility([solid, open_one]) == [[], []]  # twice 0.022 is still below 0.05
    reasons = ["undecided without seed 1, 2, 3 or 4"]
    assert fragility([solid, open_one, open_one]) == [reasons, [], []]


def test_a_median_on_the_other_side_is_said():
    # eight of -0.01 and, far above, seven of 1: the mean is above 0 and decided, the median below
    values = [-0.01] * 8 + [1.0] * 7
    assert stats.ttest_1samp(values, 0).pvalue < 0.05
    assert MEDIAN in fragility([compared(*values)])[0]


def test_sign_flips_by_hand():
    # of the 8 signs of 1, 2, 4 two have a sum as large as 7, and four one of at least 5
    assert sign_flip_p([1.0, 2.0, 4.0]) == 2 / 8
    assert sign_flip_p([-1.0, 2.0, 4.0]) == 4 / 8
    assert sign_flip_p([1.0] * 8) == 2**-7
    assert sign_flip_p([0.1, 0.2, -0.3]) == 1.0


def test_sign_flips_are_scipys():
    values = [0.3, 1.2, -0.4, 0.8, 0.7, 1.9, -0.1, 0.2]
    found = stats.permutation_test(
        (values,), lambda x, axis: x.sum(axis), permutation_type="samples", n_resamples=10_000
    )
    assert sign_flip_p(values) == pytest.approx(found.pvalue)
