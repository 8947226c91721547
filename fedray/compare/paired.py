"""Paired comparisons over seeds: intervals, tests, their correction, seeds that would decide.

Every ± of fedray is half of the 95 % interval of `t_interval`. SciPy takes a second to import and
is imported where it is used.

Sources: Student's paired t-test; Holm, "A simple sequentially rejective multiple test procedure"
(1979); Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice"
(NeurIPS 2021): interquartile means with stratified bootstrap intervals.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MOST_SEEDS = 1000
"""If more seeds would be needed, none are suggested: the difference is too small to matter."""
RESAMPLES = 2000
"""Draws of a bootstrap."""
ROUNDING = 1e-12
"""Differences below this share of the subtracted numbers are rounding."""
ALPHA = 0.05
"""The level of a test, unless a table has another confidence."""
Verdict = Literal["holds", "refuted", "undecided", "not asked"]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds, or other independent values, with its confidence interval.

    Attributes:
        mean: of the values.
        low: lower end; -inf for one value.
        high: upper end; inf for one value.
        std: sample standard deviation; 0 for one value.
        n: how many values.
    """

    mean: float
    low: float
    high: float
    std: float
    n: int

    @property
    def half(self) -> float:
        """Half of the interval's width: what stands after ±."""
        return (self.high - self.low) / 2

    @classmethod
    def of(cls, mean: float, std: float, n: int, level: float = 0.95) -> Interval:
        """Return the interval by Student's t of `n` values with this mean and deviation."""
        if n < 2:
            return cls(mean, -math.inf, math.inf, 0.0, n)
        from scipy import stats

        half = float(stats.t.ppf((1 + level) / 2, n - 1)) * std / math.sqrt(n)
        return cls(mean, mean - half, mean + half, std, n)


def is_rounding(difference: float, size: float) -> bool:
    """Return True if a difference is rounding alone.

    Args:
        difference: of two numbers.
        size: of these numbers, the larger one.
    """
    return abs(difference) <= ROUNDING * size


def without_rounding(differences: Sequence[float], size: float) -> list[float]:
    """Return differences without rounding: equal ones become equal, and zeros become 0.

    Otherwise rounding alone would look like a small but certain difference.

    Args:
        differences: at least one.
        size: see `is_rounding`.
    """
    first = differences[0]
    if not all(is_rounding(each - first, size) for each in differences):
        return list(differences)
    return [0.0 if is_rounding(first, size) else first] * len(differences)


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return the mean with its interval by Student's t; equal values have no width.

    Args:
        values: at least one, independent.
        level: the probability that the interval holds the mean.
    """
    array = np.asarray(values, dtype=float)
    mean, n = float(array.mean()), len(array)
    if array.min() == array.max():  # numpy's mean may differ from them in its last digit
        return Interval.of(float(array[0]), 0.0, n, level)
    return Interval.of(mean, float(array.std(ddof=1)), n, level)


def p_value(differences: Sequence[float], size: float = 1.0) -> float | None:
    """Return p of the two-sided t-test for a mean difference of 0; None for fewer than two.

    Differences without spread, up to rounding, say nothing about their error: accuracies have
    steps, and a few seeds agree by chance. Their p is that of all n signs agreeing, 2^(1 - n); 1
    for differences of 0.

    Args:
        differences: seed by seed.
        size: of what was subtracted, which says what is rounding.
    """
    if len(differences) < 2:
        return None
    interval = t_interval(without_rounding(differences, size))
    if interval.std == 0:
        return 2.0 ** (1 - interval.n) if interval.mean else 1.0
    from scipy import stats

    t = interval.mean / (interval.std / math.sqrt(interval.n))
    return float(2 * stats.t.sf(abs(t), interval.n - 1))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Correct p-values by Holm, so that any of them errs with probability alpha at most.

    Of m values in ascending order the k-th (from 0) is multiplied by m - k; none becomes smaller
    than one before it, nor larger than 1. A missing p-value counts as 1 and stays missing: the
    size of the family does not depend on which questions could be answered.
    """
    known = [1.0 if p is None else p for p in ps]
    corrected: list[float | None] = [None] * len(ps)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda index: known[index])):
        running = max(running, min(1.0, (len(ps) - rank) * known[index]))
        corrected[index] = None if ps[index] is None else running
    return corrected


def power(effect: float, n: int, alpha: float) -> float:
    """Return the probability that a two-sided paired t-test of n differences decides.

    Args:
        effect: mean over standard deviation of the differences.
        n: how many differences.
        alpha: the test's level.
    """
    from scipy import stats

    critical = float(stats.t.ppf(1 - alpha / 2, n - 1))
    shift = abs(effect) * math.sqrt(n)
    upper = float(stats.nct.sf(critical, n - 1, shift))
    lower = float(stats.nct.cdf(-critical, n - 1, shift))  # NaN in scipy where it is next to 0
    upper = upper if math.isfinite(upper) else 1.0  # as for huge shifts, which overflow
    return upper + (lower if math.isfinite(lower) else 0.0)


def seeds_needed(mean: float, std: float, alpha: float = 0.05, wanted: float = 0.8) -> int | None:
    """Return the number of seeds that would decide, if mean and spread are as estimated.

    Args:
        mean: of the differences.
        std: their sample standard deviation.
        alpha: the level of the test, after correction.
        wanted: the probability to decide.

    Returns:
        None where more than `MOST_SEEDS` would be needed.
    """
    if std <= 0:
        return 1 + math.ceil(-math.log2(alpha)) if mean else None
    if mean == 0:
        return None
    effect = abs(mean) / std
    numbers = range(2, MOST_SEEDS + 1)
    enough = bisect_left(numbers, wanted, key=lambda n: power(effect, n, alpha))
    return numbers[enough] if enough < len(numbers) else None


def iqm(scores: NDArray[np.floating]) -> float:
    """Return the mean of the middle half of all values."""
    from scipy import stats

    return float(stats.trim_mean(np.asarray(scores, dtype=float), 0.25, axis=None))


def bootstrap_iqm(
    strata: Sequence[Sequence[float]],
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Return the interquartile mean over columns and seeds, with a stratified bootstrap interval.

    Args:
        strata: the seeds' values of each column; drawn with replacement, column by column.
        level: the probability of the percentile interval.
        resamples: the number of draws.
        seed: the seed of the draws.
    """
    from scipy import stats

    groups = [np.asarray(values, dtype=float) for values in strata if len(values)]
    every = np.concatenate(groups)
    rng = np.random.default_rng(seed)
    drawn = np.concatenate(
        [group[rng.integers(len(group), size=(resamples, len(group)))] for group in groups], axis=1
    )
    means = stats.trim_mean(drawn, 0.25, axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    std = float(every.std(ddof=1)) if len(every) > 1 else 0.0
    return Interval(iqm(every), float(low), float(high), std, len(every))


# --- two sides ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Attributes:
        row: the name of a table's row.
        column: a column's name; None for the mean over all columns.
    """

    row: str
    column: str | None

    def __str__(self) -> str:
        return self.row if self.column in (None, "all") else f"{self.row} @ {self.column}"


@dataclass(frozen=True)
class Comparison:
    """A paired comparison of two sides.

    Attributes:
        better: the side that is subtracted from.
        worse: the side that is subtracted.
        differences: by seed, less the margin.
        size: of the subtracted numbers; says which differences are rounding.
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
        """Return True if the difference is 0 on every seed, of two at least."""
        interval = self.interval
        return interval is not None and interval.n > 1 and interval.mean == interval.std == 0


def compare(
    better: Side, worse: Side, differences: Mapping[int, float], level: float, size: float
) -> Comparison:
    """Return the comparison of two sides, from their differences.

    Args:
        better: the side that was subtracted from.
        worse: the side that was subtracted.
        differences: by seed.
        level: of the interval.
        size: of the subtracted numbers; says which differences are rounding.
    """
    if not differences:
        return Comparison(better, worse, {}, size, None, None)
    values = without_rounding(list(differences.values()), size)
    by_seed = dict(zip(differences, values, strict=True))
    return Comparison(
        better, worse, by_seed, size, t_interval(values, level), p_value(values, size)
    )


def verdict_of(comparison: Comparison, p: float | None, alpha: float) -> Verdict:
    """Return whether the mean difference is above 0.

    Args:
        comparison: the differences.
        p: corrected.
        alpha: the level below which p decides.
    """
    if comparison.interval is None:
        return "not asked"
    if p is None or p > alpha:
        return "undecided"
    return "holds" if comparison.interval.mean > 0 else "refuted"


def needed_of(comparison: Comparison, alpha: float) -> int | None:
    """Return how many seeds would decide, more than there are; None where no number would.

    Args:
        comparison: the differences.
        alpha: the level of a test; that of the first step of Holm's correction errs on the safe
            side.
    """
    interval = comparison.interval
    if interval is None or interval.n < 2:
        return None
    needed = seeds_needed(interval.mean, interval.std, alpha)
    return None if needed is None else max(needed, interval.n + 1)
