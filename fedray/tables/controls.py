"""Controls: does the method's gain need what its explanation says?

A control leaves out what is said to help. It explains a gain away where it is nearer to the method
than to the row over which the gain is; it does not where the method is better than it. Both may be
so: then most of the gain is there without, and not all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedray.report.statistics import Interval, t_interval
from fedray.tables.claims import Claim, Side
from fedray.tables.comparing import Compare, Comparison, compared, needed_of, verdict_of
from fedray.tables.plan import TablePlan

Reading = Literal[
    "explains it away",
    "explains most of it",
    "does not explain it away",
    "open",
    "there is no gain to explain",
]


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
        gain: of `of` over it, on the seeds that the control has too; None without a baseline.
        middle: the control minus the middle between method and baseline, on these seeds; None where
            `of` is claimed to be better than no row.
    """

    row: str
    of: str
    refutes: str
    comparison: Comparison
    baseline: str | None
    gain: Interval | None
    middle: Comparison | None

    @property
    def share(self) -> float | None:
        """The part of the gain that the control has as well; None where the gain may be chance."""
        if self.gain is None or self.middle is None or self.middle.interval is None:
            return None
        return 0.5 + self.middle.interval.mean / self.gain.mean if self.gain.low > 0 else None


@dataclass(frozen=True)
class ControlRead:
    """A control as read.

    Attributes:
        asked: what was asked.
        corrected: p of the method's distance, corrected.
        corrected_middle: p of the distance from the middle, corrected.
        reading: see there.
        needed: how many seeds would decide it.
    """

    asked: Asked
    corrected: float | None
    corrected_middle: float | None
    reading: Reading
    needed: int | None


def ask(plan: TablePlan, claims: Sequence[Claim], compare: Compare) -> list[Asked]:
    """What is asked of each control of a table."""
    return [
        _asked(name, row.of, row.control, plan, claims, compare)
        for name, row in plan.rows.items()
        if row.control and row.of
    ]


def whole_side(plan: TablePlan, row: str) -> Side:
    """A row by its mean, or by its only column."""
    return Side(row, None if len(plan.columns) > 1 else next(iter(plan.columns)))


def _asked(
    row: str, of: str, refutes: str, plan: TablePlan, claims: Sequence[Claim], compare: Compare
) -> Asked:
    def against(other: str) -> Comparison:
        return compare(whole_side(plan, of), whole_side(plan, other), 0.0, plan.metrics[0])

    distance, over = against(row), plan.rows[row].over
    gains = {name: against(name) for name in ([over] if over else _beaten(of, plan, claims))}
    means = {name: each.interval.mean for name, each in gains.items() if each.interval is not None}
    baseline = min(means, key=lambda name: means[name], default=None)
    if baseline is None:  # it is asked all the same where a row has no number yet
        empty = compared(distance.better, distance.worse, {}, plan.confidence) if gains else None
        return Asked(row, of, refutes, distance, None, None, empty)
    gained = gains[baseline].differences
    middle = {
        seed: gained[seed] / 2 - below
        for seed, below in distance.differences.items()
        if seed in gained
    }
    sides = whole_side(plan, row), whole_side(plan, baseline)
    found = compared(*sides, middle, plan.confidence)
    gain = t_interval([gained[seed] for seed in middle], plan.confidence) if middle else None
    return Asked(row, of, refutes, distance, baseline, gain, found)


def _beaten(row: str, plan: TablePlan, claims: Sequence[Claim]) -> list[str]:
    """The rows that a row is claimed to be better than, controls apart."""
    of_first = [claim for claim in claims if claim.metric == plan.metrics[0] == claim.than]
    found = [claim.worse.row for claim in of_first if claim.better.row == row]
    return [name for name in dict.fromkeys(found) if name != row and not plan.rows[name].control]


def read(
    asked: Asked, p: float | None, p_middle: float | None, level: float, alpha: float
) -> ControlRead:
    """Read a control.

    Args:
        asked: what is asked of it.
        p: of the method's distance, corrected.
        p_middle: of the distance from the middle, corrected.
        level: one minus below what p decides.
        alpha: the level that the number of seeds is worked out for.
    """
    is_below = verdict_of(asked.comparison, p, 1 - level)
    is_near = "undecided"
    if asked.middle is not None:
        is_near = verdict_of(asked.middle, p_middle, 1 - level)
    reading: Reading = "open"
    if asked.gain is not None and asked.gain.mean <= 0:
        reading = "there is no gain to explain" if asked.gain.high <= 0 else "open"
    elif is_near == "holds":
        reading = "explains most of it" if is_below == "holds" else "explains it away"
    elif is_below == "refuted":
        reading = "explains it away"
    elif is_below == "holds":
        reading = "does not explain it away"
    needed = None
    if reading == "open":
        both = [asked.comparison]
        if asked.middle is not None and asked.middle.interval and asked.middle.interval.mean > 0:
            both.append(asked.middle)  # below the middle, it decides nothing
        numbers = [n for each in both if (n := needed_of(each, alpha)) is not None]
        needed = min(numbers, default=None)
    return ControlRead(asked, p, p_middle, reading, needed)
