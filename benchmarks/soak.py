"""A long run of a tiny experiment: memory, open files and time per round must stay flat.

    python -m benchmarks.soak                        1,000 rounds, serial and on Ray with 2 workers
    python -m benchmarks.soak --only ray --rounds 300

The run is MOON on digits, whose clients keep a model, with partial participation, absences and
a checkpoint after every round. After each round the benchmark samples this process and, on Ray, the
actors of the server and the workers. It prints the four quarters of the rounds, without the first
tenth of the first quarter. The exit code is 1 if the last quarter exceeds the first by more than
`QUANTITIES` allows. CPU time is judged, not wall time, because it depends less on other processes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import psutil

from benchmarks.common import SERVER, WORKER, actors
from fedray.storage.run import Round
from fedray.storage.run_folder import RunFolder

QUANTITIES = {
    "memory": ("resident, MB", 0.05),
    "files": ("open descriptors", 0.0),
    "seconds": ("wall time, ms a round", None),
    "cpu": ("processor time, ms a round", 0.15),
    "lines": ("bytes a round in rounds.jsonl", 0.05),
}
"""Unit, and the allowed growth from the first to the last quarter; None: not judged."""
TOTALS = ("seconds", "cpu", "lines")
"""Cumulative quantities of `sample`."""


def rounds_of(executor: str, rounds: int, out: Path) -> Iterator[Round]:
    """Run the tiny experiment; yield its rounds."""
    from fedray.runtime.resolve import resolve

    experiment = resolve(
        "fedavg_digits",
        [
            *("algorithm={name: moon, mu: 1, tau_moon: 0.5}", "model.group=cnn2"),
            *(f"rounds={rounds}", "local_epochs=1", "participation=0.5", "eval_every=5"),
            *("data.clients=8", "data.samples=320", "faults.drop=0.1", "lr=0.01", "workers=2"),
        ],
    )
    if executor == "serial":
        import torch

        from fedray.runtime.serial import SerialExecutor
        from fedray.runtime.session import Session

        cpu = torch.device("cpu")
        yield from Session(experiment, out, lambda parts: SerialExecutor(parts, cpu)).rounds()
        return
    from fedray.runtime.cluster import connect
    from fedray.runtime.server import run_on_ray

    connect()
    yield from run_on_ray(experiment, out, time.time())


def sample(out: Path) -> dict[str, float]:
    """Return the resources of this process and the run's actors: MB, descriptors, ms, bytes."""
    path = RunFolder(out).rounds_file
    resources = {"seconds": time.perf_counter() * 1e3, "memory": 0.0, "files": 0.0, "cpu": 0.0}
    resources["lines"] = path.stat().st_size if path.exists() else 0.0
    for process in (psutil.Process(), *actors(os.getpid(), SERVER, WORKER)):
        with process.oneshot():
            resources["memory"] += process.memory_info().rss * 1e-6
            resources["files"] += process.num_fds()
            resources["cpu"] += sum(process.cpu_times()[:2]) * 1e3
    return resources


def quarters(samples: list[dict[str, float]], name: str) -> list[float]:
    """Summarise one quantity by quarter, without the first tenth of the first one.

    Cumulative quantities are averaged, because the kernel's unit of processor time is 0.01 s.
    """
    size = len(samples) // 4
    parts = [samples[start : start + size] for start in range(0, 4 * size, size)]
    parts[0], parts[-1] = parts[0][max(1, size // 10) :], parts[-1][:-1]
    if name in TOTALS:
        return [(part[-1][name] - part[0][name]) / (len(part) - 1) for part in parts]
    return [median(s[name] for s in part) for part in parts]


def report(samples: list[dict[str, float]]) -> bool:
    """Print the quarters of every quantity; return True if none grows more than allowed."""
    is_flat = True
    print(
        "| quarter of the rounds | 1 | 2 | 3 | 4 | growth | |\n|---|---:|---:|---:|---:|---:|---|"
    )
    for name, (unit, allowed) in QUANTITIES.items():
        values = quarters(samples, name)
        growth = values[-1] / values[0] - 1
        verdict = "not judged" if allowed is None else "flat" if growth <= allowed else "GROWS"
        is_flat &= verdict != "GROWS"
        cells = " | ".join(f"{value:.4g}" for value in values)
        print(f"| {name} ({unit}) | {cells} | {growth:+.1%} | {verdict} |", flush=True)
    return is_flat


def main(argv: list[str] | None = None) -> int:
    """Run the soak and print the table; return 1 if something grows."""
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cli.add_argument("--only", choices=["serial", "ray"])
    cli.add_argument("--rounds", type=int, default=1000, help="at least 12")
    args = cli.parse_args(argv)
    is_flat = True
    for executor in [args.only] if args.only else ["serial", "ray"]:
        with tempfile.TemporaryDirectory(prefix="fedray-soak-") as folder:
            out = Path(folder) / "out"
            samples = [sample(out) for _ in rounds_of(executor, args.rounds, out)]
        print(f"\n{executor}, {args.rounds} rounds\n")
        is_flat &= report(samples)
    return 0 if is_flat else 1


if __name__ == "__main__":
    sys.exit(main())
