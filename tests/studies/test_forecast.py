"""The time that a sweep still takes, on simulated sweeps of unequal trials."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fedray.sweep.cost import starting_order
from fedray.sweep.forecast import Course, Forecast, fit

COLD, WARM = 8.0, 0.7
"""Seconds of a trial's start in a new process, and in one that was warm."""


def simulate(
    paces: Sequence[float],
    rounds: Sequence[int],
    weights: Sequence[float],
    places: int,
    stop: Callable[[int], int] | None = None,
) -> list[tuple[float, float | None]]:
    """Run trials in this order; returns after every report the time and what was said to be left.

    The last element is the end.
    """
    courses = [Course(w, n) for w, n in zip(weights, rounds, strict=True)]
    forecast = Forecast(places, stops=stop is not None)
    said: list[tuple[float, float | None]] = []
    waiting = list(range(len(paces)))
    events: list[tuple[float, int, int, bool]] = []

    def begin(now: float, warm: bool) -> None:
        if waiting:
            number = waiting.pop(0)
            forecast.begin(courses[number], now)
            heapq.heappush(events, (now + (WARM if warm else COLD), number, 0, warm))

    for _ in range(places):
        begin(0.0, False)
    now = 0.0
    while events:
        now, number, done, _ = heapq.heappop(events)
        course = courses[number]
        course.done = done
        course.reports.append((done, now))
        last = rounds[number] if stop is None else min(rounds[number], stop(number))
        if done == last:
            course.ended = now
            begin(now, True)
        else:
            heapq.heappush(events, (now + paces[number], number, done + 1, True))
        said.append((now, forecast.left(courses, now)))
    said.append((now, 0.0))
    return said


def errors(said: list[tuple[float, float | None]]) -> list[float]:
    """How wrong the end was foretold, relative to what was left.

    From a quarter of the time on, until a tenth is left.
    """
    end = said[-1][0]
    found = []
    for now, left in said[:-1]:
        if end / 4 <= now <= 0.9 * end:
            assert left is not None
            found.append(abs(left - (end - now)) / (end - now))
    return found


def ordered(paces: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """All in the order in which a grid's trials begin."""
    order = starting_order(list(paces * others[0]))
    return [each[order] for each in (paces, *others)]


@pytest.mark.parametrize("places", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_unequal_trials_are_foretold_within_a_quarter(places, seed):
    rng = np.random.default_rng(seed)
    weights = rng.choice([0.5, 1.0, 2.0, 8.0], size=16)
    paces = 0.3 + 0.6 * weights * rng.uniform(0.9, 1.1, 16)  # the server's share is the same
    rounds = rng.choice([5, 10], size=16).astype(float)
    paces, rounds, weights = ordered(paces, rounds, weights)
    said = simulate(list(paces), list(map(int, rounds)), list(weights), places)
    assert max(errors(said)) < 0.25


@pytest.mark.parametrize("places", [1, 2])
def test_equal_trials_are_foretold_within_a_quarter(places):
    said = simulate([1.3] * 8, [10] * 8, [1.0] * 8, places)
    assert max(errors(said)) < 0.25


def test_trials_that_asha_stops_are_expected_to_stop():
    rng = np.random.default_rng(0)
    last = rng.choice([3, 12], size=40, p=[0.7, 0.3])
    said = simulate([1.0] * 40, [12] * 40, [1.0] * 40, 2, lambda number: int(last[number]))
    found = errors(said)
    assert np.median(found) < 0.25


def test_nothing_is_said_before_a_round_has_been_timed():
    course = Course(1.0, 5)
    forecast = Forecast(2)
    forecast.begin(course, 0.0)
    assert forecast.left([course], 1.0) is None
    course.reports.append((0, 4.0))
    assert forecast.left([course], 4.0) is None
    course.reports.append((1, 6.0))
    course.done = 1
    assert forecast.left([course], 6.0) == pytest.approx(8.0)
    assert forecast.left([course], 7.0) == pytest.approx(7.0)


def test_a_line_without_negative_parts():
    assert fit([(1.0, 2.0), (2.0, 3.0)])(4.0) == pytest.approx(5.0)
    assert fit([(1.0, 2.0)])(4.0) == pytest.approx(8.0)
    steep = fit([(1.0, 1.0), (2.0, 4.0)])
    assert (steep.at, steep.by > 0) == (0.0, True)
    falling = fit([(1.0, 4.0), (2.0, 1.0)])
    assert falling.by == 0 < falling.at


def test_the_longest_begin_first_and_a_shortest_second():
    assert starting_order([1.0, 5.0, 3.0, 5.0, 0.5]) == [1, 4, 3, 2, 0]
    assert starting_order([2.0, 2.0, 2.0]) == [0, 1, 2]
    assert starting_order([]) == []
