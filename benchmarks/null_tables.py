"""Rates of false verdicts in tables with equal rows, and of detecting a planted gain.

    python -m benchmarks.null_tables
    python -m benchmarks.null_tables --tables 1000 --seed 1
    python -m benchmarks.null_tables --runs pool.json     200 tables of real runs; half an hour

The claims of a table compare the first row with each other row. All rows have the same
configurations, of equal or of different true values; each run has a validation score and a
correlated test score. Each seed selects the configuration whose test score is compared. The
p-values and their correction are those of `fedray.results.paired`. There are three looks at the
verdicts: with 3 seeds, half of them, and all.

A gain of two spreads (standard deviations of the paired differences) is planted in the first claim.

The rows of the real runs are FedAvg under eight names, which differ in the order of batches. Runs
of 24 seeds are made once and stored in the file; tables draw seeds and names from them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedray.cli.main import main as command
from fedray.config import dump_yaml
from fedray.results.paired import ALPHA, PairedTest, holm
from fedray.storage.run_folder import RunFolder

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
    ps = np.minimum(1.0, test.looks * 2 * stats.t.sf(np.abs(t), n - 1))
    return np.array([holm(of_table) for of_table in ps.tolist()]) <= ALPHA


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


PROTOCOLS: dict[str, Callable[[Numbers], NDArray[np.bool_]]] = {
    "fixed, all seeds": last(1),
    "fixed, all seeds, p x 3": last(3),
    "fixed, first verdict": first([PairedTest()] * 3),
    "fixed, first verdict, p x 1, 2, 3": first([PairedTest(looks=k) for k in (1, 2, 3)]),
    "fixed, first verdict, p x 3": first([PairedTest(looks=3)] * 3),
}
"""Protocols by name: functions that return True for tables with a verdict."""


def values_of(configurations: int, differ: bool) -> Numbers:
    """Return the true values of a row's configurations."""
    return np.linspace(WORST if differ else 0.0, 0.0, configurations)


def false_rates(rng: np.random.Generator, tables: int, claims: int, seeds: int) -> list[str]:
    """Return the percentage of tables with a false verdict by protocol: "mean (largest)"."""
    rates = []
    for configurations, differ in product(CONFIGURATIONS, (False, True)):
        values, counts = values_of(configurations, differ), np.zeros(len(PROTOCOLS))
        for start in range(0, tables, AT_ONCE):
            drawn = differences(rng, min(AT_ONCE, tables - start), claims, seeds, values)
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


def print_simulated(rng: np.random.Generator, tables: int) -> None:
    """Print the rates of simulated tables and of planted gains."""
    cells = list(product(CLAIMS, SEEDS))
    columns = [false_rates(rng, tables, claims, seeds) for claims, seeds in cells]
    heads = [f"{claims} x {seeds}" for claims, seeds in cells]
    print("Any false verdict, %: mean over the settings of configurations (largest)\n")
    print(f"| claims x seeds | {' | '.join(heads)} |\n|:--|{'--:|' * len(cells)}")
    for name, *rates in zip(PROTOCOLS, *columns, strict=True):
        print(f"| {name} | {' | '.join(rates)} |")
    print(f"\n| gain of {GAIN:g} spreads found with {GAIN_SEEDS} seeds, % | 1 claim | 5 claims |")
    print("|:--|--:|--:|")
    tests = {"fixed": PairedTest(), "fixed, p x 3": PairedTest(looks=3)}
    for name, test in tests.items():
        shares = [100 * found_rate(rng, tables, claims, test) for claims in (1, 5)]
        print(f"| {name} | {shares[0]:.1f} | {shares[1]:.1f} |")


# --- real runs ------------------------------------------------------------------------------------

EXPERIMENT = {
    "name": "small",
    "algorithm": "mine",
    "rounds": 8,
    "local_epochs": 3,
    "batch_size": 16,
    "model": {"group": "mlp", "feature_dim": 16},
    "data": {
        "clients": 3,
        "samples": 600,
        "partition": {"name": "dirichlet", "alpha": 1.0},
        "validation_fraction": 0.2,
    },
}
PLUGIN = """\
from dataclasses import replace

from fedray.plugin import FedAvg, method
from fedray.base.streams import Streams


@method("mine", "Mine", "-")
class Mine(FedAvg):
    \"\"\"FedAvg with batches in an order of its own.\"\"\"


    def client_update(self, client, state, down):
        streams = Streams(client.setting.streams.seed * 100 + {order})
        setting = replace(client.setting, streams=streams)
        return super().client_update(replace(client, setting=setting), state, down)
"""
NAMES, RATES, POOL = 8, (0.4, 0.6, 0.8), 24
"""The number of FedAvg's names, its learning rates, and the number of seeds."""
SIZES = ((1, 5), (1, 10), (5, 5), (5, 10), (7, 10))
"""Pairs of the numbers of claims and seeds of a table."""


def pool(path: Path) -> Numbers:
    """Return validation and test accuracies [names, rates, seeds, 2]; make the missing runs."""
    stored: dict[str, list[float]] = json.loads(path.read_text()) if path.exists() else {}
    for name, rate, seed in product(range(NAMES), RATES, range(POOL)):
        key = f"{name} {rate} {seed}"
        if key not in stored:
            stored[key] = list(_accuracies(name, rate, seed))
            path.write_text(json.dumps(stored))
    values = [stored[f"{n} {r} {s}"] for n, r, s in product(range(NAMES), RATES, range(POOL))]
    return np.array(values).reshape(NAMES, len(RATES), POOL, 2)


def _accuracies(name: int, rate: float, seed: int) -> tuple[float, float]:
    """Make a run; return the validation and the test accuracy of its best round."""
    with tempfile.TemporaryDirectory(prefix="fedray-null-runs-") as folder:
        experiment, plugin, out = (Path(folder) / name for name in ("small.yaml", "mine.py", "run"))
        experiment.write_text(dump_yaml(EXPERIMENT))
        plugin.write_text(PLUGIN.format(order=name))
        words = ["run", str(experiment), f"lr={rate}", f"seed={seed}", "--plugin", str(plugin)]
        with redirect_stdout(StringIO()):
            code = command([*words, "--executor", "serial", "--no-track", "--out", str(out)])
        assert code == 0
        run = RunFolder(out).read()
    best = max(run.rounds[1:], key=lambda done: done.metrics["validation/local_accuracy"])
    return best.metrics["validation/local_accuracy"], best.metrics["local_accuracy"]


def print_real(rng: np.random.Generator, path: Path, tables: int) -> None:
    """Print how many tables of real runs have a false verdict, by protocol."""
    values = pool(path)
    print(f"\nAny false verdict in {tables} tables of real runs, %\n")
    print(f"| claims x seeds | {' | '.join(f'{c} x {n}' for c, n in SIZES)} |")
    print(f"|:--|{'--:|' * len(SIZES)}")
    for title, has_verdict in PROTOCOLS.items():
        rates = []
        for claims, seeds in SIZES:
            differences = np.array(
                [_differences(rng, values, claims, seeds) for _ in range(tables)]
            )
            rates.append(f"{100 * has_verdict(differences).mean():.1f}")
        print(f"| {title} | {' | '.join(rates)} |")


def _differences(rng: np.random.Generator, values: Numbers, claims: int, seeds: int) -> Numbers:
    """Draw a table; return its paired differences [claims, seeds]."""
    names = rng.choice(NAMES, claims + 1, replace=False)
    drawn = rng.choice(POOL, seeds, replace=False)
    rows = values[names][:, :, drawn]
    choice = rows[..., 0].argmax(axis=1, keepdims=True)
    reported = np.take_along_axis(rows[..., 1], choice, 1)[:, 0]
    return reported[0] - reported[1:]


def main() -> None:
    """Parse the command line and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--tables", type=int, help="per setting: 8000 simulated or 200 of real runs"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, metavar="FILE", help="real runs, from this file")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    if args.runs is None:
        print_simulated(rng, args.tables or 8000)
    else:
        print_real(rng, args.runs.absolute(), args.tables or 200)


if __name__ == "__main__":
    main()
