"""Controls: does the method's gain need what its explanation says?

A control leaves out what is said to help. It explains a gain away where it is nearer to the method
than to the row over which the gain is; it does not where the method is better than it. Both may be
so: then most of the gain is there without, and not all. Where the gain itself may be chance there
is nothing to read yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from fedray.compare.paired import Comparison, SeedRange, Side, seeds_to_decide, verdict_of
from fedray.compare.paired import compare as compared
from fedray.studies.claims import Claim
from fedray.studies.plan import StudyPlan


class Compare(Protocol):
    """Compares two sides by a metric, or by two."""

    def __call__(
        self, better: Side, worse: Side, margin: float, metric: str, than: str | None = None
    ) -> Comparison:
        """Return the comparison; `than` is the worse side's metric, None: the same."""
        ...


Reading = Literal[
    "explains it away",
    "explains most of it",
    "does not explain it away",
    "open",
    "open: whether there is a gain",
    "there is no gain to explain",
]
GAINLESS = ("open: whether there is a gain", "there is no gain to explain")


@dataclass(frozen=True)
class Asked:
    """What is asked of a control.

    Attributes:
        row: the control.
        of: the row that it is to explain.
        refutes: what it would refute.
        comparison: `of` minus the control.
        baseline: the row over which the gain is: as said, or the nearest one that `of` is claimed
            to be better than; None: none has a number.
        gain: of `of` over it, on the seeds that the control has too; None where `of` is claimed to
            be better than no row.
        is_gain: whether it is above 0 by its test, which is not corrected.
        middle: the control minus the middle between method and baseline, on these seeds; None
            where there is no gain to ask about.
    """

    row: str
    of: str
    refutes: str
    comparison: Comparison
    baseline: str | None
    gain: Comparison | None
    is_gain: bool
    middle: Comparison | None

    @property
    def share(self) -> float | None:
        """The part of the gain that the control has as well; None where the gain may be chance."""
        gain = None if self.gain is None else self.gain.interval
        middle = None if self.middle is None else self.middle.interval
        if gain is None or middle is None or not self.is_gain:
            return None
        return 0.5 + middle.mean / gain.mean


@dataclass(frozen=True)
class ControlRead:
    """A control as read.

    Attributes:
        asked: what was asked.
        corrected: p of the method's distance, corrected.
        corrected_middle: p of the distance from the middle, corrected.
        reading: see there.
        needed: how many seeds would decide it; where it is open whether there is a gain, this; None
            where that is open or not asked.
        columns: of several, the reading in each by itself, not corrected.
    """

    asked: Asked
    corrected: float | None
    corrected_middle: float | None
    reading: Reading
    needed: SeedRange | None
    columns: Mapping[str, Reading] = field(default_factory=dict)

    def columns_that_differ(self) -> dict[Reading, list[str]]:
        """Return all columns by their reading, where one says clearly something else than the mean.

        That is: another reading that is not open, or a gain in some of them only.
        """
        open_ones = ("open", "open: whether there is a gain", self.reading)
        decided = any(each not in open_ones for each in self.columns.values())
        gains = {each not in GAINLESS for each in self.columns.values()}
        found: dict[Reading, list[str]] = {}
        for column, reading in self.columns.items() if decided or len(gains) > 1 else ():
            found.setdefault(reading, []).append(column)
        return found


def ask(plan: StudyPlan, claims: Sequence[Claim], compare: Compare) -> list[Asked]:
    """Return what is asked of each control of a table."""
    return [
        _asked(name, row.of, plan, claims, compare)
        for name, row in plan.rows.items()
        if row.control and row.of
    ]


def whole_side(plan: StudyPlan, row: str) -> Side:
    """Return a row by its mean, or by its only column."""
    return Side(row, None if len(plan.columns) > 1 else next(iter(plan.columns)))


def _asked(row: str, of: str, plan: StudyPlan, claims: Sequence[Claim], compare: Compare) -> Asked:
    def against(other: str) -> Comparison:
        return compare(whole_side(plan, of), whole_side(plan, other), 0.0, plan.metrics[0])

    over = plan.rows[row].over
    gains = {name: against(name) for name in ([over] if over else _beaten(of, plan, claims))}
    means = {name: each.interval.mean for name, each in gains.items() if each.interval is not None}
    baseline = min(means, key=lambda name: means[name], default=None)
    if baseline is not None:
        return _over(baseline, row, of, whole_side(plan, of).column, plan, compare)
    distance = against(row)  # it is asked all the same where a row has no number yet
    none = compared(distance.better, distance.worse, {}, distance.test, 0.0) if gains else None
    return Asked(row, of, plan.rows[row].control or "", distance, None, none, False, none)


def _over(
    baseline: str, row: str, of: str, column: str | None, plan: StudyPlan, compare: Compare
) -> Asked:
    """Return what is asked about the gain over a row; in a column, or on the mean."""
    method, control, base = (Side(each, column) for each in (of, row, baseline))
    distance = compare(method, control, 0.0, plan.metrics[0])
    whole = compare(method, base, 0.0, plan.metrics[0])
    gained = {seed: one for seed, one in whole.differences.items() if seed in distance.differences}
    middle = {seed: one / 2 - distance.differences[seed] for seed, one in gained.items()}
    size = max(distance.size, whole.size)
    gain = compared(method, base, gained, whole.test, size)
    is_gain = verdict_of(gain, gain.p) == "holds"
    refutes = plan.rows[row].control or ""
    near = compared(control, base, middle, whole.test, size)
    return Asked(row, of, refutes, distance, baseline, gain, is_gain, near)


def _beaten(row: str, plan: StudyPlan, claims: Sequence[Claim]) -> list[str]:
    """Return the rows that a row is claimed to be better than, controls apart."""
    of_first = [claim for claim in claims if claim.metric == plan.metrics[0] == claim.than]
    found = [claim.worse.row for claim in of_first if claim.better.row == row]
    return [name for name in dict.fromkeys(found) if name != row and not plan.rows[name].control]


def read(asked: Asked, p: float | None, p_middle: float | None, comparisons: int) -> ControlRead:
    """Read a control.

    Args:
        asked: what is asked of it.
        p: of the method's distance, corrected.
        p_middle: of the distance from the middle, corrected.
        comparisons: how many are corrected together.
    """
    if asked.gain is not None and not asked.is_gain:
        gain = asked.gain.interval
        if gain is not None and gain.high <= 0:
            return ControlRead(asked, p, p_middle, "there is no gain to explain", None)
        needed = seeds_to_decide(asked.gain)
        return ControlRead(asked, p, p_middle, "open: whether there is a gain", needed)
    is_below = verdict_of(asked.comparison, p)
    is_near = "undecided" if asked.middle is None else verdict_of(asked.middle, p_middle)
    reading: Reading = "open"
    if is_near == "holds":
        reading = "explains most of it" if is_below == "holds" else "explains it away"
    elif is_below == "refuted":
        reading = "explains it away"
    elif is_below == "holds":
        reading = "does not explain it away"
    needed = _needed(asked, comparisons) if reading == "open" else None
    return ControlRead(asked, p, p_middle, reading, needed)


def _needed(asked: Asked, comparisons: int) -> SeedRange | None:
    """Return how many seeds would decide an open reading, by the test that needs fewer."""
    both = [asked.comparison]
    if asked.middle is not None and asked.middle.interval and asked.middle.interval.mean > 0:
        both.append(asked.middle)  # below the middle, it decides nothing
    ranges = [found for each in both if (found := seeds_to_decide(each, comparisons))]
    return min(ranges, key=lambda one: (one.least or math.inf, one.most or math.inf), default=None)


def read_columns(asked: Asked, plan: StudyPlan, compare: Compare) -> dict[str, Reading]:
    """Return a control's reading in each of several columns by itself, not corrected.

    The gain is that over the row of the mean. Empty where there is one column, or no such row.
    """
    if asked.baseline is None or len(plan.columns) < 2:
        return {}
    found = {}
    for column in plan.columns:
        here = _over(asked.baseline, asked.row, asked.of, column, plan, compare)
        near = None if here.middle is None else here.middle.p
        found[column] = read(here, here.comparison.p, near, 1).reading
    return found
