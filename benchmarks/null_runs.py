"""Rates of false verdicts in tables of real runs whose rows are one method.

    python -m benchmarks.null_runs --runs pool.json     200 tables per cell; half an hour

The rows are FedAvg under eight names, which differ in the order of batches. Runs of 24 seeds are
made once and stored in a file; tables draw seeds and names from them. The protocols are those of
benchmarks.null_tables.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.null_tables import PROTOCOLS
from fedray.cli.main import main as command
from fedray.config import dump_yaml
from fedray.records import RunFolder

EXPERIMENT = {
    "name": "small",
    "algorithm": "fedavg",
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 16,
    "lr": 0.05,
    "workers": 1,
    "model": {"group": "mlp", "feature_dim": 16},
    "data": {
        "clients": 3,
        "samples": 240,
        "partition": {"name": "dirichlet", "alpha": 1.0},
        "validation_fraction": 0.2,
    },
}
PLUGIN = """\
from dataclasses import replace

from fedray.plugin import FedAvg, algorithms


@algorithms.add
class Mine(FedAvg):
    \"\"\"FedAvg with batches in an order of its own.\"\"\"

    name = "mine"

    def client_update(self, client, state, down):
        setting = replace(client.setting, seed=client.setting.seed * 100 + {order})
        return super().client_update(replace(client, setting=setting), state, down)
"""
NAMES, RATES, POOL = 8, (0.4, 0.6, 0.8), 24
"""The number of FedAvg's names, its learning rates, and the number of seeds."""
SIZES = ((1, 5), (1, 10), (5, 5), (5, 10), (7, 10))
"""Pairs of the numbers of claims and seeds of a table."""


def pool(path: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
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
    words = [f"lr={rate}", f"seed={seed}", "algorithm=mine", "rounds=8", "local_epochs=3"]
    with tempfile.TemporaryDirectory(prefix="fedray-null-runs-") as folder:
        experiment, plugin, out = (Path(folder) / name for name in ("small.yaml", "mine.py", "run"))
        experiment.write_text(dump_yaml(EXPERIMENT))
        plugin.write_text(PLUGIN.format(order=name))
        flags = ["--plugin", str(plugin), "--executor", "serial", "--no-track", "--out", str(out)]
        with redirect_stdout(StringIO()):
            code = command(["run", str(experiment), *words, "data.samples=600", *flags])
        assert code == 0
        run = RunFolder(out).read()
    best = max(run.rounds[1:], key=lambda done: done.metrics["validation/local_accuracy"])
    return best.metrics["validation/local_accuracy"], best.metrics["local_accuracy"]


def null_tables(path: Path, tables: int) -> None:
    """Print how many tables of real runs have a false verdict, by protocol."""
    values, rng = pool(path), np.random.default_rng(0)
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


def _differences(
    rng: np.random.Generator,
    values: np.ndarray[Any, np.dtype[np.float64]],
    claims: int,
    seeds: int,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Draw a table; return its paired differences [claims, seeds]."""
    names = rng.choice(NAMES, claims + 1, replace=False)
    drawn = rng.choice(POOL, seeds, replace=False)
    rows = values[names][:, :, drawn]
    choice = rows[..., 0].argmax(axis=1, keepdims=True)
    reported = np.take_along_axis(rows[..., 1], choice, 1)[:, 0]
    return reported[0] - reported[1:]


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and print the rates."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.null_runs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=Path, default=Path("null_runs.json"), help="the runs' file")
    parser.add_argument("--tables", type=int, default=200, help="tables per cell")
    args = parser.parse_args(argv)
    null_tables(args.runs.absolute(), args.tables)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
