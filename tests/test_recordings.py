"""Recordings compare what they say, and cover every method; the table of mutants can be read."""

from __future__ import annotations

import math

import pytest

from fedray.core import algorithms
from tools.mutants.table import read_table
from tools.recordings import cases, names
from tools.recordings.compare import differences


def test_recordings_and_mutants_cover_the_package():
    assert sorted(cases.METHODS) == sorted(algorithms.names())
    assert len(cases.EXPERIMENTS) == 40
    assert set(cases.ON_RAY) < set(cases.EXPERIMENTS)
    assert len(read_table()) >= 150


@pytest.mark.parametrize(
    ("old", "new", "tolerance", "count"),
    [
        ({"a": 1.0, "b": [1, 2]}, {"a": 1.0, "b": [1, 2]}, 0.0, 0),
        ({"a": 1.0}, {"a": 1.0 + 1e-12}, 0.0, 1),
        ({"a": 1.0}, {"a": 1.0 + 1e-6}, 1e-5, 0),
        ({"a": 1.0}, {}, 0.0, 1),
        ({"a": 1.0}, {"a": math.nan}, 1e-5, 1),
        ({"a": math.nan}, {"a": math.nan}, 1e-5, 1),  # nothing was compared
        ({"a": [1.0, math.nan]}, {"a": [1.0, 2.0]}, 1e-5, 1),
        ({"a: hash": "x"}, {"a: hash": "y"}, 0.0, 1),
        ({"a: hash": "x"}, {"a: hash": "y"}, 1e-5, 0),
    ],
)
def test_a_difference_is_one_line(old, new, tolerance, count):
    assert len(list(differences(old, new, tolerance))) == count


def test_settings_are_tried_with_both_names(monkeypatch):
    monkeypatch.setattr(names, "KEYS", {"rounds": "number_of_rounds", "gone": None})
    monkeypatch.setattr(names, "ENTRIES", {"fedavg": "mean"})
    as_written, new, old = names.spellings({"rounds": 2, "gone": 1, "algorithm": "fedavg"})
    assert as_written == {"rounds": 2, "gone": 1, "algorithm": "fedavg"}
    assert new == {"number_of_rounds": 2, "algorithm": "mean"}
    assert [*names.spellings(new)][2] == {"rounds": 2, "algorithm": "fedavg"}
    assert old == as_written
