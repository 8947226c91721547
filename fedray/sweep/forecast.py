"""How long a sweep still takes: from what trials have cost, and what those to come are like."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median


@dataclass
class Course:
    """What one trial has done in this invocation; times are those of one clock, in seconds.

    Attributes:
        weight: what a round is estimated to cost, in any unit that all trials share.
        rounds: how many it has, the one before training apart.
        began: when its actor was there; None before.
        reports: the round and the time of each report.
        done: rounds that need not be run any more.
        ended: when it was over; None before.
        cold: whether no trial had run in its process before.
    """

    weight: float
    rounds: int
    began: float | None = None
    reports: list[tuple[int, float]] = field(default_factory=list)
    done: int = 0
    ended: float | None = None
    cold: bool = True

    @property
    def pace(self) -> float | None:
        """Seconds of a round; None while no two reports are there."""
        if len(self.reports) < 2:
            return None
        (first, started), (last, now) = self.reports[0], self.reports[-1]
        return (now - started) / max(last - first, 1)

    @property
    def startup(self) -> float | None:
        """Seconds until its first report."""
        return self.reports[0][1] - self.began if self.reports and self.began is not None else None


class Forecast:
    """Seconds left, at any time of a sweep.

    A round of a trial that has not begun is taken to cost what its weight says by a straight line
    through the trials that have; one that runs keeps its own pace. The trials that are left are
    then given, in order, to whichever place is free first.

    Args:
        places: how many trials run at a time.
        stops: whether trials may be ended before their last round (ASHA); then those to come are
            taken to end as early as those that are over.
    """

    def __init__(self, places: int, *, stops: bool = False) -> None:
        self._places = places
        self._stops = stops
        self._warm = 0

    def begin(self, course: Course, now: float) -> None:
        """A trial's actor is there, for the first time or again."""
        course.began, course.reports, course.ended = now, [], None
        course.cold, self._warm = self._warm < self._places, self._warm + 1

    def left(self, courses: Sequence[Course], now: float) -> float | None:
        """Seconds until all are over; None while no trial has a pace.

        Args:
            courses: all trials, in the order in which they begin.
            now: the time.
        """
        measured = [(each.weight, each.pace) for each in courses if each.pace is not None]
        if not measured:
            return None
        line = fit(measured)
        startup, share = self._startup(courses, fmean(p for _, p in measured)), self._share(courses)

        def rest(course: Course) -> float:
            pace = course.pace or line(course.weight)
            rounds = max(course.rounds * share - course.done, 0.0)
            if course.began is None:
                return startup + pace * rounds
            last = course.reports[-1][1] if course.reports else course.began
            begin = 0.0 if course.reports else startup
            return max(begin + pace * rounds - (now - last), 0.0)

        running = [rest(each) for each in courses if each.began is not None and each.ended is None]
        waiting = [rest(each) for each in courses if each.began is None and each.ended is None]
        return _last_end(running, waiting, self._places)

    def _startup(self, courses: Sequence[Course], pace: float) -> float:
        """What a trial to come takes to its first report: its process is warm."""
        warm = [each.startup for each in courses if not each.cold and each.startup is not None]
        return median(warm) if warm else pace

    def _share(self, courses: Sequence[Course]) -> float:
        """The share of its rounds that a trial to come is likely to run."""
        over = [each.done / each.rounds for each in courses if each.ended is not None]
        return fmean(over) if self._stops and over else 1.0


@dataclass(frozen=True)
class Line:
    """What a round costs by its weight: at + by * weight, neither below 0."""

    at: float
    by: float

    def __call__(self, weight: float) -> float:
        """Seconds of a round."""
        return self.at + self.by * weight


def fit(measured: Sequence[tuple[float, float]]) -> Line:
    """The straight line nearest to (weight, seconds), by squares of its relative errors."""
    scale = [1 / seconds**2 if seconds > 0 else 1.0 for _, seconds in measured]
    total = sum(scale)
    mean_weight = sum(s * w for s, (w, _) in zip(scale, measured, strict=True)) / total
    mean_seconds = sum(s * t for s, (_, t) in zip(scale, measured, strict=True)) / total
    spread = sum(s * (w - mean_weight) ** 2 for s, (w, _) in zip(scale, measured, strict=True))
    if spread > 1e-3 * total * mean_weight**2:
        joint = sum(
            s * (w - mean_weight) * (t - mean_seconds)
            for s, (w, t) in zip(scale, measured, strict=True)
        )
        by = joint / spread
        at = mean_seconds - by * mean_weight
        if by >= 0 and at >= 0:
            return Line(at, by)
        if by < 0:
            return Line(mean_seconds, 0.0)
    return Line(0.0, mean_seconds / mean_weight) if mean_weight > 0 else Line(mean_seconds, 0.0)


def _last_end(running: Sequence[float], waiting: Sequence[float], places: int) -> float:
    """When the last is over, where each takes the place that is free first."""
    free = sorted(running)[-places:] if len(running) > places else list(running)
    free += [0.0] * (places - len(free))
    heapq.heapify(free)
    for seconds in waiting:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return max(free)
