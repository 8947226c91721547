"""Paired comparisons, seed by seed, and what they decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fedray.report.statistics import (
    Interval,
    p_value,
    seeds_needed,
    t_interval,
    without_rounding,
)
from fedray.studies.claims import Side, Verdict


@dataclass(frozen=True)
class Comparison:
    """A paired comparison of two sides.

    Attributes:
        better: the side that is subtracted from.
        worse: the one that is subtracted.
        differences: by seed, the margin subtracted too.
        size: of the numbers that were subtracted, which says what is rounding.
        interval: of the mean difference; None without a pair.
        p: two-sided, not corrected; None for fewer than two pairs.
    """

    better: Side
    worse: Side
    differences: Mapping[int, float]
    size: float
    interval: Interval | None
    p: float | None

    @property
    def is_same(self) -> bool:
        """Whether the difference is 0 on every seed, of two at least."""
        found = self.interval
        return found is not None and found.n > 1 and found.mean == found.std == 0


class Compare(Protocol):
    """Compares two sides by a metric, or by two."""

    def __call__(
        self, better: Side, worse: Side, margin: float, metric: str, than: str | None = None
    ) -> Comparison:
        """The comparison; `than` is the worse side's metric, None: the same."""
        ...


def compared(
    better: Side, worse: Side, differences: Mapping[int, float], level: float, size: float
) -> Comparison:
    """A comparison whose differences are known.

    Args:
        better: the side that was subtracted from.
        worse: the one that was subtracted.
        differences: by seed.
        level: of the interval.
        size: of the numbers that were subtracted, which says what is rounding.
    """
    if not differences:
        return Comparison(better, worse, {}, size, None, None)
    values = without_rounding(list(differences.values()), size)
    found = dict(zip(differences, values, strict=True))
    return Comparison(better, worse, found, size, t_interval(values, level), p_value(values, size))


def verdict_of(comparison: Comparison, p: float | None, alpha: float) -> Verdict:
    """Whether the mean difference is above 0.

    Args:
        comparison: the differences.
        p: corrected.
        alpha: below which it is decided.
    """
    if comparison.interval is None:
        return "not asked"
    if p is None or p > alpha:
        return "undecided"
    return "holds" if comparison.interval.mean > 0 else "refuted"


def needed_of(comparison: Comparison, alpha: float) -> int | None:
    """How many seeds would decide; more than there are.

    Args:
        comparison: the differences.
        alpha: the level of a test; that of the first step of Holm's correction errs on the safe
            side.
    """
    found = comparison.interval
    if found is None or found.n < 2:
        return None
    needed = seeds_needed(found.mean, found.std, alpha)
    return None if needed is None else max(needed, found.n + 1)
