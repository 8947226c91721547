"""Seconds and bytes as they are read."""

from __future__ import annotations

import pytest

from fedray.base.units import size_of, time_of


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (65_960, "66.0 kB"),
        (999_949, "999.9 kB"),
        (999_999, "1.0 MB"),
        (1_234_000, "1.2 MB"),
        (123_456_789, "123.5 MB"),
        (7.8e9, "7.8 GB"),
    ],
)
def test_bytes(count, said):
    assert size_of(count) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (250, "4 min 10 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_seconds(seconds, said):
    assert time_of(seconds) == said
