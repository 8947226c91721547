"""Intervals, paired tests, their correction, and how many seeds would decide.

scipy takes a second to import, and so is imported where it is used.

Sources: Student's paired t-test; Holm, "A simple sequentially rejective multiple test procedure"
(1979); Agarwal et al., "Deep reinforcement learning at the edge of the statistical precipice"
(NeurIPS 2021): interquartile means with stratified bootstrap intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_SEEDS = 1000
"""More than so many seeds are not said to be needed: the difference is none to speak of."""
RESAMPLES = 2000
"""Of a bootstrap."""
ROUNDING = 1e-12
"""Differences below this share of the numbers that were subtracted are rounding."""


@dataclass(frozen=True)
class Interval:
    """A mean and where it lies.

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
        """Half of the interval's width."""
        return (self.high - self.low) / 2


def is_rounding(difference: float, size: float) -> bool:
    """Whether a difference is none but for rounding.

    Args:
        difference: of two numbers.
        size: of these numbers, the larger one.
    """
    return abs(difference) <= ROUNDING * size


def without_rounding(differences: Sequence[float], size: float) -> list[float]:
    """Differences that are all equal but for rounding, made equal; 0 where they are 0 but for it.

    Else their spread, which is rounding, would make a verdict of nothing.

    Args:
        differences: at least one.
        size: see `is_rounding`.
    """
    first = differences[0]
    if not all(is_rounding(each - first, size) for each in differences):
        return list(differences)
    return [0.0 if is_rounding(first, size) else first] * len(differences)


def t_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """The mean's interval by Student's t; of equal values without width.

    Args:
        values: at least one, independent.
        level: the probability that the interval holds the mean.
    """
    array = np.asarray(values, dtype=float)
    mean, n = float(array.mean()), len(array)
    if n < 2:
        return Interval(mean, -math.inf, math.inf, 0.0, n)
    if array.min() == array.max():  # numpy's mean of them may differ from each in its last digit
        return Interval(float(array[0]), float(array[0]), float(array[0]), 0.0, n)
    from scipy import stats

    std = float(array.std(ddof=1))
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * std / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, std, n)


def p_value(differences: Sequence[float], size: float = 1.0) -> float | None:
    """P of the two-sided t-test of whether the mean difference is 0; None for fewer than two.

    Differences without spread, up to rounding, say nothing of their error: an accuracy has steps,
    so that a few seeds agree by chance. Their p is that of all n signs agreeing, 2^(1 - n); 1
    where they are 0.

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


def holm(ps: Sequence[float]) -> list[float]:
    """P values corrected for their number, by Holm: the family errs once with probability alpha.

    Of m values in ascending order the k-th (from 0) is multiplied with m - k; none becomes smaller
    than one before it, nor larger than 1.
    """
    order = sorted(range(len(ps)), key=lambda index: ps[index])
    corrected = [0.0] * len(ps)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(ps) - rank) * ps[index]))
        corrected[index] = running
    return corrected


def holm_of_all(ps: Sequence[float | None]) -> list[float | None]:
    """Holm-correct all p-values; a missing one counts as 1 and stays missing.

    So the size of the family does not depend on which questions could be answered.
    """
    found = holm([1.0 if p is None else p for p in ps])
    return [None if p is None else each for p, each in zip(ps, found, strict=True)]


def power(effect: float, n: int, alpha: float) -> float:
    """The probability that a two-sided paired t-test of n differences decides.

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
    """How many seeds would decide a comparison, were mean and spread what they seem to be.

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
    low, high = 2, 2
    while power(effect, high, alpha) < wanted:
        if high >= MOST_SEEDS:
            return None
        low, high = high, min(2 * high, MOST_SEEDS)
    while low < high:
        middle = (low + high) // 2
        if power(effect, middle, alpha) >= wanted:
            high = middle
        else:
            low = middle + 1
    return high


def iqm(scores: NDArray[np.floating]) -> float:
    """The mean of the middle half of all values: the lowest and the highest quarter are left out.

    As scipy's trim_mean(0.25): of n values floor(n / 4) at each end.
    """
    flat = np.sort(np.asarray(scores, dtype=float).ravel())
    cut = len(flat) // 4
    return float(flat[cut : len(flat) - cut].mean())


def bootstrap_iqm(
    strata: Sequence[Sequence[float]],
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """The interquartile mean over columns and seeds, with a stratified bootstrap interval.

    Args:
        strata: for each column its seeds' values; drawn from with replacement, column by column.
        level: of the percentile interval.
        resamples: how often is drawn.
        seed: of the draws.
    """
    groups = [np.asarray(values, dtype=float) for values in strata if len(values)]
    every = np.concatenate(groups)
    rng = np.random.default_rng(seed)
    drawn = np.concatenate(
        [group[rng.integers(len(group), size=(resamples, len(group)))] for group in groups], axis=1
    )
    ordered = np.sort(drawn, axis=1)
    cut = ordered.shape[1] // 4
    means = ordered[:, cut : ordered.shape[1] - cut].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    std = float(every.std(ddof=1)) if len(every) > 1 else 0.0
    return Interval(iqm(every), float(low), float(high), std, len(every))
