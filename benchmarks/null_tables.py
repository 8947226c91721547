"""Rates of false verdicts in simulated tables with equal rows, and of detecting a planted gain.

    python -m benchmarks.null_tables
    python -m benchmarks.null_tables --tables 1000 --seed 1

The claims of a table compare the first row with each other row. All rows have the same
configurations, of equal or of different true values; each run has a validation score and a
correlated test score. Each seed selects the configuration whose test score is compared. The
p-values and their correction are those of `fedray.results.paired`. There are three looks at the
verdicts: with 3 seeds, half of them, and all.

A gain of two spreads (standard deviations of the paired differences) is planted in the first claim.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fedray.results.paired import ALPHA, PairedTest, holm

CLAIMS, SEEDS, CONFIGURATIONS = (1, 5, 20), (5, 10), (2, 3, 4, 5)
CORRELATION = 0.5
"""Correlation of a run's validation and test scores, which have standard deviation 1."""
WORST = -1.0
"""The lowest true value of configurations that differ; the highest is 0."""
AT_ONCE = 500
"""Number of tables simulated at a time; bounds memory."""
GAIN, GAIN_SEEDS = 2.0, 8
Numbers = NDArray[np.float64]


def differences(
    rng: np.random.Generator, tables: int, claims: int, seeds: int, values: Numbers
) -> Numbers:
    """Return the differences of the first row and the others: [tables, claims, seeds]."""
    scores = rng.normal(size=(tables, claims + 1, seeds, len(values)))
    noise = rng.normal(size=scores.shape)
    validation = CORRELATION * scores + np.sqrt(1 - CORRELATION**2) * noise
    choice = (validation + values).argmax(-1, keepdims=True)
    reported = np.take_along_axis(scores + values, choice, -1)[..., 0]
    return reported[:, :1] - reported[:, 1:]


def verdicts(test: PairedTest, paired: Numbers) -> NDArray[np.bool_]:
    """Return True for claims that a test decides after Holm's correction: [tables, claims]."""
    n, spread = paired.shape[-1], paired.std(-1, ddof=1)
    mean = paired.mean(-1) * np.sqrt(n)
    t = np.divide(mean, spread, out=np.zeros_like(mean), where=spread > 0)
    return np.array([holm(ps) for ps in test.p_of_t(t, n).tolist()]) <= ALPHA


def at_looks(seeds: int) -> list[int]:
    """Return the numbers of seeds at the looks at the verdicts."""
    return [3, max(4, seeds // 2), seeds]


def last(looks: int) -> Callable[[Numbers], NDArray[np.bool_]]:
    """Return a protocol: Student's test of all seeds, corrected for a number of looks."""
    return lambda paired: verdicts(PairedTest(looks=looks), paired).any(-1)


def first(tests: Sequence[PairedTest]) -> Callable[[Numbers], NDArray[np.bool_]]:
    """Return a protocol: stop at the first look with a verdict, each look with its test."""

    def stopped(paired: Numbers) -> NDArray[np.bool_]:
        looks = zip(tests, at_looks(paired.shape[-1]), strict=True)
        return np.any([verdicts(test, paired[..., :n]).any(-1) for test, n in looks], axis=0)

    return stopped


ANYTIME = [PairedTest("anytime")] * 3
PROTOCOLS: dict[str, Callable[[Numbers], NDArray[np.bool_]]] = {
    "fixed, all seeds": last(1),
    "fixed, all seeds, p x 3": last(3),
    "fixed, first verdict": first([PairedTest()] * 3),
    "fixed, first verdict, p x 1, 2, 3": first([PairedTest(looks=k) for k in (1, 2, 3)]),
    "fixed, first verdict, p x 3": first([PairedTest(looks=3)] * 3),
    "anytime, first verdict": first(ANYTIME),
}
"""Protocols by name: functions that return True for tables with a verdict."""


def batches(tables: int) -> Iterable[int]:
    """Yield the sizes of batches of tables."""
    yield from (min(AT_ONCE, tables - start) for start in range(0, tables, AT_ONCE))


def values_of(configurations: int, differ: bool) -> Numbers:
    """Return the true values of a row's configurations."""
    return np.linspace(WORST if differ else 0.0, 0.0, configurations)


def false_rates(rng: np.random.Generator, tables: int, claims: int, seeds: int) -> list[str]:
    """Return the percentage of tables with a false verdict by protocol: "mean (largest)"."""
    rates = []
    for configurations, differ in product(CONFIGURATIONS, (False, True)):
        values, counts = values_of(configurations, differ), np.zeros(len(PROTOCOLS))
        for size in batches(tables):
            drawn = differences(rng, size, claims, seeds, values)
            counts += [has_verdict(drawn).sum() for has_verdict in PROTOCOLS.values()]
        rates.append(counts / tables)
    means, largest = 100 * np.mean(rates, axis=0), 100 * np.max(rates, axis=0)
    return [f"{mean:.1f} ({most:.1f})" for mean, most in zip(means, largest, strict=True)]


def found_rate(rng: np.random.Generator, tables: int, claims: int, test: PairedTest) -> float:
    """Return the share of tables in which the planted gain is detected, minimised over settings."""
    rates = []
    for configurations, differ in product(CONFIGURATIONS, (False, True)):
        values = values_of(configurations, differ)
        drawn = differences(rng, tables, claims, GAIN_SEEDS, values)
        drawn[:, 0] += GAIN * drawn[:, 0].std()
        rates.append(verdicts(test, drawn)[:, 0].mean())
    return float(min(rates))


def main() -> None:
    """Print the rates as tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=int, default=8000, help="per setting (default: 8000)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    cells = list(product(CLAIMS, SEEDS))
    columns = [false_rates(rng, args.tables, claims, seeds) for claims, seeds in cells]
    heads = [f"{claims} x {seeds}" for claims, seeds in cells]
    print("Any false verdict, %: mean over the settings of configurations (largest)\n")
    print(f"| claims x seeds | {' | '.join(heads)} |\n|:--|{'--:|' * len(cells)}")
    for name, *rates in zip(PROTOCOLS, *columns, strict=True):
        print(f"| {name} | {' | '.join(rates)} |")
    print(f"\n| gain of {GAIN:g} spreads found with {GAIN_SEEDS} seeds, % | 1 claim | 5 claims |")
    print("|:--|--:|--:|")
    tests = {"fixed": PairedTest(), "fixed, p x 3": PairedTest(looks=3), "anytime": ANYTIME[0]}
    for name, test in tests.items():
        shares = [100 * found_rate(rng, args.tables, claims, test) for claims in (1, 5)]
        print(f"| {name} | {shares[0]:.1f} | {shares[1]:.1f} |")


if __name__ == "__main__":
    main()
