"""Several seeds in one number."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedray.sweep.seeds import mean_and_std


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9))
def test_mean_and_sample_deviation(values):
    mean, deviation = mean_and_std(values)
    assert mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert deviation == pytest.approx(statistics.stdev(values), abs=1e-9)


def test_one_value_has_no_deviation():
    assert mean_and_std([0.5]) == (0.5, 0.0)
