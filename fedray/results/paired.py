"""Paired comparisons over seeds: intervals, tests, corrections.

Every ± of fedray is half of the 95 % interval of `t_interval`. SciPy takes a second to import and
is imported where it is used.

Sources: Student's paired t-test; Holm, "A simple sequentially rejective multiple test procedure"
(1979).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

ROUNDING = 1e-12
"""Differences below this share of the subtracted numbers are rounding."""
FEW = 4
"""Below this number of values, sweeps show a range instead of an interval."""
ALPHA = 0.05
"""Default level of a test."""
Verdict = Literal["holds", "refuted", "undecided", "not asked"]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, or other independent values, with its confidence interval.

    Attributes:
        mean: mean of the values.
        low: lower end; -inf for one value.
        high: upper end; inf for one value.
        std: sample standard deviation; 0 for one value.
        n: number of values.
        values: the values, if known.
    """

    mean: float
    low: float
    high: float
    std: float
    n: int
    values: tuple[float, ...] = field(default=(), compare=False)

    @property
    def half(self) -> float:
        """Half of the interval's width, printed after ±."""
        return (self.high - self.low) / 2

    @property
    def spread(self) -> tuple[float, float]:
        """The ends that sweeps show: of the interval, or below `FEW` values of their range.

        The interval of two or three values is many times as wide as their range, and says little.
        """
        if self.n < FEW and self.values:
            return min(self.values), max(self.values)
        return self.low, self.high

    @classmethod
    def of(cls, mean: float, std: float, n: int, level: float = 0.95) -> Interval:
        """Return Student's t interval of `n` values; NaN around the mean of a single value."""
        if n < 2:
            return cls(mean, math.nan, math.nan, math.nan, n)
        from scipy.special import stdtrit  # three times faster than scipy.stats.t.ppf

        half = float(stdtrit(n - 1, (1 + level) / 2)) * std / math.sqrt(n)
        return cls(mean, mean - half, mean + half, std, n)


def remove_rounding(differences: Sequence[float], size: float) -> list[float]:
    """Remove rounding errors from differences that are equal up to rounding.

    Otherwise rounding errors would look like a small but certain difference.

    Args:
        differences: at least one difference.
        size: the largest absolute value of the subtracted numbers.
    """
    first, bound = differences[0], ROUNDING * size
    if any(abs(difference - first) > bound for difference in differences):
        return list(differences)
    return [0.0 if abs(first) <= bound else first] * len(differences)


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return the mean with Student's t interval; equal values give an interval of width 0.

    Args:
        values: at least one independent value.
        level: coverage probability of the interval.
    """
    array = np.asarray(values, dtype=float)
    mean, n = float(array.mean()), len(array)
    if array.min() == array.max():  # the mean may differ in its last digit
        interval = Interval.of(float(array[0]), 0.0, n, level)
    else:
        interval = Interval.of(mean, float(array.std(ddof=1)), n, level)
    return replace(interval, values=tuple(array.tolist()))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm-correct p-values, so that the probability of any false rejection is at most alpha.

    Of m values in ascending order, the k-th (from 0) is multiplied by m - k; results are monotone
    and at most 1. A missing p-value counts as 1 and stays missing, so that the family size does not
    depend on results.
    """
    complete = [1.0 if p is None else p for p in ps]
    corrected: list[float | None] = [None] * len(ps)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda index: complete[index])):
        running = max(running, min(1.0, (len(ps) - rank) * complete[index]))
        corrected[index] = None if ps[index] is None else running
    return corrected


@dataclass(frozen=True)
class PairedTest:
    """Student's two-sided t-test of whether a mean difference over seeds is 0.

    Attributes:
        confidence: 1 minus the level alpha.
        looks: number of looks at the verdicts, this one included, for a Bonferroni correction.
    """

    confidence: float = 1 - ALPHA
    looks: int = 1

    @property
    def alpha(self) -> float:
        """Level at or below which a corrected p decides."""
        return 1 - self.confidence

    @property
    def interval_level(self) -> float:
        """Coverage probability of the intervals of `interval`."""
        return 1 - self.alpha / self.looks

    def p_value(self, differences: Sequence[float], size: float = 1.0) -> float | None:
        """Return p, corrected for looks; None for fewer than two differences.

        Differences that are equal up to rounding do not estimate their own error: accuracies have
        steps, and a few seeds agree by chance. Their p is the probability that n signs agree,
        2^(1 - n), or 1 for differences of 0.

        Args:
            differences: one difference per seed.
            size: magnitude of the subtracted numbers, see `remove_rounding`.
        """
        from scipy import stats

        if len(differences) < 2:
            return None
        interval = t_interval(remove_rounding(differences, size))
        if interval.std > 0:
            t = interval.mean / (interval.std / math.sqrt(interval.n))
            p = 2 * float(stats.t.sf(abs(t), interval.n - 1))
        else:
            p = 2.0 ** (1 - interval.n) if interval.mean else 1.0
        return min(1.0, self.looks * p)

    def decidable(self, interval: Interval, comparisons: int) -> float | None:
        """Return the least mean difference that such differences decide; None without a spread.

        The level is that of the first step of Holm's correction.
        """
        from scipy import stats

        if interval.n < 2 or interval.std == 0:
            return None
        alpha = self.alpha / max(1, comparisons) / self.looks
        critical = float(stats.t.isf(alpha / 2, interval.n - 1))
        return critical * interval.std / math.sqrt(interval.n)

    def interval(self, values: Sequence[float]) -> Interval:
        """Return the mean with the interval of all values that the test does not reject.

        Of equal differences, which do not estimate their own error, the test rejects all other
        values or none (see `p_value`).
        """
        interval = t_interval(values, self.interval_level)
        if interval.std == 0 and self.looks * 2.0 ** (1 - interval.n) > self.alpha:
            return replace(interval, low=-math.inf, high=math.inf)
        return interval


# --- two sides ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        row: the name of a table's row.
        column: a column's name; None for the mean over all columns.
        other: a second row: the side is the mean of both rows.
    """

    row: str
    column: str | None
    other: str | None = None

    @property
    def rows(self) -> list[str]:
        """The row, or the two rows."""
        return [self.row] if self.other is None else [self.row, self.other]

    def __str__(self) -> str:
        name = self.row if self.other is None else f"mean({self.row}, {self.other})"
        return name if self.column in (None, "all") else f"{name} @ {self.column}"


@dataclass(frozen=True)
class Comparison:
    """A paired comparison of two sides.

    Attributes:
        better: the side that is subtracted from.
        worse: the side that is subtracted.
        differences: difference by seed, minus the margin.
        test: the test of the mean difference.
        interval: interval of the mean difference; None without a pair.
        p: two-sided p, corrected only for looks; None for fewer than two pairs.
    """

    better: Side
    worse: Side
    differences: Mapping[int, float]
    test: PairedTest
    interval: Interval | None = None
    p: float | None = None

    @property
    def is_same(self) -> bool:
        """True if the difference is 0 on every seed, with at least two seeds."""
        interval = self.interval
        return interval is not None and interval.n > 1 and interval.mean == interval.std == 0


def compare(
    better: Side,
    worse: Side,
    values: tuple[Mapping[int, float], Mapping[int, float]],
    test: PairedTest,
    margin: float = 0.0,
) -> Comparison:
    """Return the comparison of two sides on their common seeds.

    Args:
        better: the side that is subtracted from.
        worse: the side that is subtracted.
        values: the numbers of both sides by seed.
        test: the test that gives interval and p.
        margin: subtracted from each difference.
    """
    a, b = values
    differences = {seed: a[seed] - b[seed] - margin for seed in a if seed in b}
    if not differences:
        return Comparison(better, worse, {}, test)
    size = max(map(abs, [*a.values(), *b.values()]))
    rounded = remove_rounding(list(differences.values()), size)
    by_seed = dict(zip(differences, rounded, strict=True))
    p = test.p_value(rounded, size)
    return Comparison(better, worse, by_seed, test, test.interval(rounded), p)


def verdict_of(comparison: Comparison, p: float | None) -> Verdict:
    """Return the verdict on the claim that the mean difference is above 0.

    Args:
        comparison: the differences.
        p: corrected p-value; decides if at most the level of the comparison's test.
    """
    if comparison.interval is None:
        return "not asked"
    if p is None or p > comparison.test.alpha:
        return "undecided"
    return "holds" if comparison.interval.mean > 0 else "refuted"
