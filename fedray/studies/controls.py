"""Controls: test whether a method's gain needs the idea that is said to cause it.

A control is the method without that idea. Two tests are read together: whether the control is
nearer to the method than to the baseline (then it explains the gain away), and whether the method
is better than the control (then it does not). If both hold, the control explains most of the gain
but not all of it. If the gain itself may be chance, the control cannot be read yet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from fedray.results.paired import Comparison, SeedRange, Side, seeds_to_decide, verdict_of
from fedray.results.paired import compare as compare_sides
from fedray.studies.claims import Claim
from fedray.studies.plan import StudyPlan


class Compare(Protocol):
    """A function that compares two sides by one metric, or by one metric each."""

    def __call__(
        self, better: Side, worse: Side, margin: float, metric: str, than: str | None = None
    ) -> Comparison:
        """Return the comparison; `than` is the worse side's metric, None for the same."""
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
class ControlQuestion:
    """The comparisons that a control is read from.

    Attributes:
        row: the control.
        of: the method, the row whose gain the control tries to explain.
        refutes: the statement that the control would refute.
        comparison: the method minus the control.
        baseline: the row over which the method gains: the control's `over`, or else the best row
            that the method is claimed to beat; None if no such row has a number.
        gain: the method minus the baseline, on the seeds that the control has too; None if the
            method is claimed to beat no row.
        is_gain: True if the gain is above 0 by its test, not corrected.
        middle: the control minus the midpoint between method and baseline, on the same seeds; None
            without a gain.
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
        """Share of the gain that the control reaches too; None if the gain may be chance."""
        gain = None if self.gain is None else self.gain.interval
        middle = None if self.middle is None else self.middle.interval
        if gain is None or middle is None or not self.is_gain:
            return None
        return 0.5 + middle.mean / gain.mean


@dataclass(frozen=True)
class ControlResult:
    """The result of a control.

    Attributes:
        question: the comparisons.
        corrected: corrected p-value of `question.comparison`.
        corrected_middle: corrected p-value of `question.middle`.
        reading: what the control shows.
        needed: how many seeds would decide an open reading, or an open gain; None if the reading is
            decided or no number can be given.
        columns: in a table of several columns, the reading of each column, not corrected.
    """

    question: ControlQuestion
    corrected: float | None
    corrected_middle: float | None
    reading: Reading
    needed: SeedRange | None
    columns: Mapping[str, Reading] = field(default_factory=dict)

    def columns_that_differ(self) -> dict[Reading, list[str]]:
        """Return the columns grouped by reading, if some column clearly differs from the mean.

        A column differs if it is decided otherwise, or if only some columns have a gain.
        """
        open_ones = ("open", "open: whether there is a gain", self.reading)
        decided = any(reading not in open_ones for reading in self.columns.values())
        gains = {reading not in GAINLESS for reading in self.columns.values()}
        columns: dict[Reading, list[str]] = {}
        for column, reading in self.columns.items() if decided or len(gains) > 1 else ():
            columns.setdefault(reading, []).append(column)
        return columns


def control_questions(
    plan: StudyPlan, claims: Sequence[Claim], compare: Compare
) -> list[ControlQuestion]:
    """Return the comparisons for each control of a table."""
    return [
        _question(name, row.of, plan, claims, compare)
        for name, row in plan.rows.items()
        if row.control and row.of
    ]


def whole_side(plan: StudyPlan, row: str) -> Side:
    """Return a row's mean over columns, or its only column, as a side of a comparison."""
    return Side(row, None if len(plan.columns) > 1 else next(iter(plan.columns)))


def _question(
    row: str, of: str, plan: StudyPlan, claims: Sequence[Claim], compare: Compare
) -> ControlQuestion:
    def against(other: str) -> Comparison:
        return compare(whole_side(plan, of), whole_side(plan, other), 0.0, plan.metrics[0])

    over = plan.rows[row].over
    gains = {name: against(name) for name in ([over] if over else _beaten(of, plan, claims))}
    means = {
        name: comparison.interval.mean
        for name, comparison in gains.items()
        if comparison.interval is not None
    }
    baseline = min(means, key=lambda name: means[name], default=None)
    if baseline is not None:
        return _over(baseline, row, of, whole_side(plan, of).column, plan, compare)
    distance = against(row)  # count the tests now, so that their number does not depend on results
    no_gain = (
        compare_sides(distance.better, distance.worse, {}, distance.test, 0.0) if gains else None
    )
    return ControlQuestion(
        row, of, plan.rows[row].control or "", distance, None, no_gain, False, no_gain
    )


def _over(
    baseline: str, row: str, of: str, column: str | None, plan: StudyPlan, compare: Compare
) -> ControlQuestion:
    """Return the comparisons for the gain over `baseline`, in a column or on the mean (None)."""
    method, control, base = (Side(name, column) for name in (of, row, baseline))
    distance = compare(method, control, 0.0, plan.metrics[0])
    total = compare(method, base, 0.0, plan.metrics[0])
    gained = {
        seed: difference
        for seed, difference in total.differences.items()
        if seed in distance.differences
    }
    middle = {
        seed: difference / 2 - distance.differences[seed] for seed, difference in gained.items()
    }
    size = max(distance.size, total.size)
    gain = compare_sides(method, base, gained, total.test, size)
    is_gain = verdict_of(gain, gain.p) == "holds"
    refutes = plan.rows[row].control or ""
    near = compare_sides(control, base, middle, total.test, size)
    return ControlQuestion(row, of, refutes, distance, baseline, gain, is_gain, near)


def _beaten(row: str, plan: StudyPlan, claims: Sequence[Claim]) -> list[str]:
    """Return the rows that `row` is claimed to be better than, without controls."""
    of_first = [claim for claim in claims if claim.metric == plan.metrics[0] == claim.than]
    rows = [claim.worse.row for claim in of_first if claim.better.row == row]
    return [name for name in dict.fromkeys(rows) if name != row and not plan.rows[name].control]


def read_control(
    question: ControlQuestion, p: float | None, p_middle: float | None, comparisons: int
) -> ControlResult:
    """Return the result of a control.

    Args:
        question: the comparisons.
        p: corrected p-value of `question.comparison`.
        p_middle: corrected p-value of `question.middle`.
        comparisons: how many comparisons are corrected together.
    """
    if question.gain is not None and not question.is_gain:
        gain = question.gain.interval
        if gain is not None and gain.high <= 0:
            return ControlResult(question, p, p_middle, "there is no gain to explain", None)
        needed = seeds_to_decide(question.gain)
        return ControlResult(question, p, p_middle, "open: whether there is a gain", needed)
    is_below = verdict_of(question.comparison, p)
    is_near = "undecided" if question.middle is None else verdict_of(question.middle, p_middle)
    reading: Reading = "open"
    if is_near == "holds":
        reading = "explains most of it" if is_below == "holds" else "explains it away"
    elif is_below == "refuted":
        reading = "explains it away"
    elif is_below == "holds":
        reading = "does not explain it away"
    needed = _needed(question, comparisons) if reading == "open" else None
    return ControlResult(question, p, p_middle, reading, needed)


def _needed(question: ControlQuestion, comparisons: int) -> SeedRange | None:
    """Return how many seeds would decide an open reading, by the test that needs fewer."""
    candidates = [question.comparison]
    if (
        question.middle is not None
        and question.middle.interval
        and question.middle.interval.mean > 0
    ):
        candidates.append(question.middle)  # a control below the middle decides nothing
    ranges = [
        seed_range
        for comparison in candidates
        if (seed_range := seeds_to_decide(comparison, comparisons))
    ]
    return min(
        ranges,
        key=lambda seed_range: (seed_range.least or math.inf, seed_range.most or math.inf),
        default=None,
    )


def read_columns(
    question: ControlQuestion, plan: StudyPlan, compare: Compare
) -> dict[str, Reading]:
    """Return a control's reading in each column by itself, not corrected.

    The baseline is that of the mean. The result is empty for a table of one column and for a
    control without a baseline.
    """
    if question.baseline is None or len(plan.columns) < 2:
        return {}
    readings = {}
    for column in plan.columns:
        column_question = _over(question.baseline, question.row, question.of, column, plan, compare)
        near = None if column_question.middle is None else column_question.middle.p
        readings[column] = read_control(
            column_question, column_question.comparison.p, near, 1
        ).reading
    return readings
