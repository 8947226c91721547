"""Paired comparisons over seeds: intervals, tests, their correction, seeds that would decide.

Every ± of fedray is half of the 95 % interval of `t_interval`. SciPy takes a second to import and
is imported where it is used.

Sources: Student's paired t-test; Holm, "A simple sequentially rejective multiple test procedure"
(1979); Rouder et al., "Bayesian t tests for accepting and rejecting the null hypothesis" (2009),
Hendriksen, de Heide, Gruenwald, "Optional stopping with Bayes factors" (2021), Wang and Ramdas,
"Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance" (2024):
the anytime-valid test; Agarwal et al., "Deep reinforcement learning at the edge of the statistical
precipice" (NeurIPS 2021): interquartile means with stratified bootstrap intervals.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

MOST_SEEDS = 40
"""The largest number of seeds that is suggested."""
OPEN = 0.3
"""Above this p the direction of a difference is open, and no number of seeds is suggested."""
WANTED = 0.8
"""The probability with which seeds are to decide."""
RESAMPLES = 2000
"""Draws of a bootstrap."""
ROUNDING = 1e-12
"""Differences below this share of the subtracted numbers are rounding."""
ALPHA = 0.05
"""The level of a test, unless a table has another confidence."""
PRIOR = 4.0
"""Variance g of the effect in the anytime-valid test: the gain of two spreads, which eight seeds
are to find, is one standard deviation of the prior, and the power at eight seeds is then within a
point of its maximum over g for one claim as for five."""
TestKind = Literal["fixed", "anytime"]
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
        from scipy.special import stdtrit  # what scipy.stats.t.ppf calls, in a third of the time

        half = float(stdtrit(n - 1, (1 + level) / 2)) * std / math.sqrt(n)
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


@dataclass(frozen=True)
class PairedTest:
    """A two-sided test of whether a mean difference over seeds is 0.

    `fixed` is Student's t-test. `anytime` is valid however often the verdicts are looked at while
    seeds are added, so that these looks do not count. Its p is 1 over the Bayes factor of t for an
    effect (mean over standard deviation) of N(0, g) against 0, with the right Haar
    prior on the deviation. Given that prior t / sqrt(1 + n g) has Student's distribution, hence

        BF = (1 + n g)^(-1/2) [(1 + t^2 / nu) / (1 + t^2 / (nu (1 + n g)))]^(n / 2),  nu = n - 1.

    Under the null hypothesis BF is a martingale of mean 1, which exceeds 1 / alpha at any time with
    a probability of at most alpha.

    Attributes:
        kind: `fixed` or `anytime`.
        confidence: 1 minus the level alpha.
        looks: how many looks at the verdicts p is corrected for (Bonferroni), this one included.
    """

    kind: TestKind = "fixed"
    confidence: float = 1 - ALPHA
    looks: int = 1

    @property
    def alpha(self) -> float:
        """The level below which a corrected p decides."""
        return 1 - self.confidence

    @property
    def interval_level(self) -> float:
        """The probability that an interval of `interval` holds the mean."""
        return 1 - self.alpha / self.looks

    def p_value(self, differences: Sequence[float], size: float = 1.0) -> float | None:
        """Return p, corrected for looks; None for fewer than two differences.

        Differences without spread, up to rounding, say nothing about their error: accuracies have
        steps, and a few seeds agree by chance. Their p is that of all n signs agreeing, 2^(1 - n);
        1 for differences of 0. It is valid at any time: if n signs agree, so did those of fewer.

        Args:
            differences: seed by seed.
            size: of what was subtracted, which says what is rounding.
        """
        if len(differences) < 2:
            return None
        interval = t_interval(without_rounding(differences, size))
        if interval.std > 0:
            t = interval.mean / (interval.std / math.sqrt(interval.n))
            return float(self.p_of_t(t, interval.n))
        return min(1.0, self.looks * 2.0 ** (1 - interval.n)) if interval.mean else 1.0

    def p_of_t(self, t: ArrayLike, n: int) -> NDArray[np.float64]:
        """Return p, corrected for looks, of values of Student's t of n differences."""
        square = np.square(t) / (n - 1)
        if self.kind == "fixed":
            from scipy import stats

            p = 2 * stats.t.sf(np.abs(t), n - 1)
        else:
            prior = 1 + n * PRIOR
            p = np.sqrt(prior) * np.exp(n / 2 * (np.log1p(square / prior) - np.log1p(square)))
        found: NDArray[np.float64] = np.minimum(1.0, self.looks * p)
        return found

    def critical(self, n: int, alpha: float) -> float:
        """Return the smallest |t| of n differences that decides at a level; inf if none does."""
        alpha /= self.looks
        if self.kind == "fixed":
            from scipy import stats

            return float(stats.t.isf(alpha / 2, n - 1))
        prior = 1 + n * PRIOR
        ratio = (prior / alpha**2) ** (1 / n)  # of the two sums in BF = 1 / alpha
        return math.sqrt((n - 1) * (ratio - 1) / (1 - ratio / prior)) if ratio < prior else math.inf

    def interval(self, values: Sequence[float]) -> Interval:
        """Return the mean with the interval of all means that the test does not reject."""
        found = t_interval(values)
        if found.n < 2:
            return found
        critical = self.critical(found.n, self.alpha)
        half = critical * found.std / math.sqrt(found.n) if critical < math.inf else math.inf
        return replace(found, low=found.mean - half, high=found.mean + half)

    def power(self, effect: float, n: int, alpha: float) -> float:
        """Return the probability that n differences decide.

        Args:
            effect: mean over standard deviation of the differences.
            n: how many differences.
            alpha: the level, corrected for the number of comparisons.
        """
        from scipy import stats

        critical, shift = self.critical(n, alpha), abs(effect) * math.sqrt(n)
        if critical == math.inf:
            return 0.0
        upper = float(stats.nct.sf(critical, n - 1, shift))
        lower = float(stats.nct.cdf(-critical, n - 1, shift))  # NaN in scipy where it is next to 0
        upper = upper if math.isfinite(upper) else 1.0  # as for huge shifts, which overflow
        return upper + (lower if math.isfinite(lower) else 0.0)

    def detectable(self, n: int, alpha: float) -> float | None:
        """Return the effect that n differences decide with `WANTED`; None: they decide none."""
        if n < 2 or self.critical(n, alpha) == math.inf:
            return None
        from scipy.optimize import brentq

        largest = 2 + 2 * self.critical(n, alpha)  # with t of 1 degree of freedom and more
        return float(brentq(lambda effect: self.power(effect, n, alpha) - WANTED, 0, largest))

    def seeds_for(self, effect: float, alpha: float) -> int | None:
        """Return the least number of seeds that decides with `WANTED`; None above `MOST_SEEDS`."""
        numbers = range(2, MOST_SEEDS + 1)
        enough = bisect_left(numbers, WANTED, key=lambda n: self.power(effect, n, alpha))
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
        test: of the mean difference.
        interval: of the mean difference; None without a pair.
        p: two-sided, corrected for looks alone; None for fewer than two pairs.
    """

    better: Side
    worse: Side
    differences: Mapping[int, float]
    size: float
    test: PairedTest
    interval: Interval | None
    p: float | None

    @property
    def is_same(self) -> bool:
        """Return True if the difference is 0 on every seed, of two at least."""
        interval = self.interval
        return interval is not None and interval.n > 1 and interval.mean == interval.std == 0


def compare(
    better: Side, worse: Side, differences: Mapping[int, float], test: PairedTest, size: float
) -> Comparison:
    """Return the comparison of two sides, from their differences.

    Args:
        better: the side that was subtracted from.
        worse: the side that was subtracted.
        differences: by seed.
        test: gives interval and p.
        size: of the subtracted numbers; says which differences are rounding.
    """
    if not differences:
        return Comparison(better, worse, {}, size, test, None, None)
    values = without_rounding(list(differences.values()), size)
    by_seed = dict(zip(differences, values, strict=True))
    p = test.p_value(values, size)
    return Comparison(better, worse, by_seed, size, test, test.interval(values), p)


def verdict_of(comparison: Comparison, p: float | None) -> Verdict:
    """Return whether the mean difference is above 0.

    Args:
        comparison: the differences.
        p: corrected; decides up to the level of the comparison's test.
    """
    if comparison.interval is None:
        return "not asked"
    if p is None or p > comparison.test.alpha:
        return "undecided"
    return "holds" if comparison.interval.mean > 0 else "refuted"


@dataclass(frozen=True)
class SeedRange:
    """How many seeds would decide, from the two ends of the difference's interval.

    Attributes:
        least: if the difference is as large as the interval allows; None: more than `MOST_SEEDS`.
        most: if it is as small as the interval allows; None: more than `MOST_SEEDS`.
    """

    least: int | None
    most: int | None

    def __str__(self) -> str:
        beyond = f"more than {MOST_SEEDS}"
        ends = [beyond if end is None else str(end) for end in (self.least, self.most)]
        return f"{' to '.join(dict.fromkeys(ends))} seeds would decide"


def seeds_to_decide(comparison: Comparison, comparisons: int = 1) -> SeedRange | None:
    """Return how many seeds would decide; None where the direction is open (see `OPEN`).

    Seeds that are added are another look, which the fixed test counts.

    Args:
        comparison: the differences.
        comparisons: the size of the family; the level of the first step of Holm's correction errs
            on the safe side.
    """
    values, size = list(comparison.differences.values()), comparison.size
    test = comparison.test
    p = PairedTest().p_value(values, size)
    if p is None or p > OPEN:
        return None
    test = replace(test, looks=test.looks + (test.kind == "fixed"))
    alpha, least = test.alpha / comparisons, len(values) + 1
    interval = t_interval(values, test.confidence)
    if interval.std == 0:
        signs = 1 + math.ceil(math.log2(test.looks / alpha))
        return SeedRange(*[max(least, signs) if signs <= MOST_SEEDS else None] * 2)
    ends = sorted(map(abs, (interval.low, interval.high)), reverse=True)
    if interval.low <= 0 <= interval.high:
        ends[1] = 0.0
    needed = [test.seeds_for(end / interval.std, alpha) for end in ends]
    larger = [None if n is None or least > MOST_SEEDS else max(n, least) for n in needed]
    return SeedRange(*larger)
