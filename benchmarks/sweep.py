"""What of a sweep's processor time is training: its trials alone against the whole sweep.

    python -m benchmarks.sweep
    python -m benchmarks.sweep fedproto_lambda rounds=3 --num-samples 4 --json sweep.json

Efficiency is the time that all trials train, each measured alone, over the sweep's wall time times
its cores. Alone is one run after the other in one process on one thread; what counts is the time
in rounds, not the start. The sweep is the command that users type, from its first to its last
moment: start, imports, Ray, tracking, table and figure. Of equal trials `--alone N` measures N
evenly spread ones and takes the others to be as long. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


@dataclass(frozen=True)
class Efficiency:
    """What was measured; times in seconds.

    Attributes:
        sweep: its name.
        trials: how many.
        cores: that the sweep could use.
        alone: the time that all trials train, each alone.
        wall: from the sweep's command to its end.
        startups: of each trial, until its first round; by number.
        seconds: of each trial, until its end; by number.
    """

    sweep: str
    trials: int
    cores: int
    alone: float
    wall: float
    startups: list[float]
    seconds: list[float]

    @property
    def efficiency(self) -> float:
        """Of the processor time, the share that trained."""
        return self.alone / (self.wall * self.cores)

    def table(self) -> str:
        """What is printed."""
        later = self.startups[self.cores :]
        rows = [
            ("trials", f"{self.trials}"),
            ("their training, each alone", f"{self.alone:.1f} s"),
            ("the sweep", f"{self.wall:.1f} s on {self.cores} cores"),
            ("efficiency", f"{self.efficiency:.2f}"),
            ("start of the first trials", f"{max(self.startups[: self.cores]):.1f} s"),
        ]
        if later:
            rows.append(("start of a further trial", f"{sorted(later)[len(later) // 2]:.2f} s"))
        return "\n".join(f"{name:<28}{value:>20}" for name, value in rows)


def run_sweep(arguments: Sequence[str], out: Path) -> float:
    """Run the sweep's command; its output and its errors are shown. Returns its wall time.

    Raises:
        subprocess.CalledProcessError: when it fails.
    """
    command = [sys.executable, "-m", "fedray.sweep", *arguments, "--out", str(out)]
    results = {"FEDRAY_RESULTS": str(out.parent)}
    started = time.perf_counter()
    subprocess.run(command, env={**os.environ, **ENVIRONMENT, **results}, check=True)
    return time.perf_counter() - started


def run_alone(sweep: Path, count: int | None) -> float:
    """Run trials of a finished sweep in a process of their own; seconds that all of them train.

    Raises:
        subprocess.CalledProcessError: when it fails; its errors are shown.
    """
    command = [sys.executable, "-m", "benchmarks.sweep", "--train", str(sweep)]
    if count is not None:
        command += ["--alone", str(count)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout.splitlines()[-1])


def train(sweep: Path, count: int | None) -> float:
    """Run the trials of a sweep one after the other in this process, the first one twice.

    Args:
        sweep: the folder of the sweep.
        count: how many to measure, evenly spread; None for all.

    Returns:
        Seconds that all trials train.
    """
    import torch

    from fedray.config import Experiment
    from fedray.records import RunFolder
    from fedray.runtime.serial import SerialExecutor
    from fedray.runtime.session import Session
    from fedray.sweep.ledger import Ledger

    ledger, device = Ledger.read(sweep), torch.device("cpu")
    trials = ledger.ordered
    chosen = trials if count is None else trials[:: max(1, len(trials) // count)][:count]

    def seconds(experiment: Experiment, out: Path) -> float:
        for _ in Session(experiment, out, lambda a: SerialExecutor(a, device)).rounds():
            pass
        return RunFolder(out).read().costs.wall_seconds

    runs = [
        (trial, ledger.plan.experiment_of(trial.config, seed))
        for trial in chosen
        for seed in ledger.plan.seeds
    ]
    with tempfile.TemporaryDirectory() as folder:
        first = runs[0][1].model_copy(update={"rounds": 1})
        seconds(first, Path(folder, "first"))  # imports, encoders, caches
        spent = 0.0
        for number, (trial, experiment) in enumerate(runs):
            took = seconds(experiment, Path(folder, str(number)))
            print(f"alone: trial {trial.number}, seed {experiment.seed}: {took:.1f} s", flush=True)
            spent += took
    return spent * len(trials) / len(chosen)


def measure(arguments: Sequence[str], alone: int | None) -> Efficiency:
    """Run a sweep, then its trials alone."""
    with tempfile.TemporaryDirectory(prefix="fedray-sweep-") as folder:
        out = Path(folder, "sweep")
        wall = run_sweep(arguments, out)
        found = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
        return Efficiency(
            sweep=found["sweep"],
            trials=len(found["trials"]),
            cores=len(os.sched_getaffinity(0)),
            alone=run_alone(out, alone),
            wall=wall,
            startups=[trial["startup_seconds"] for trial in found["trials"]],
            seconds=[trial["seconds"] for trial in found["trials"]],
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    cli = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="Whatever else is given goes to fedray.sweep: NAME key=value --num-samples N.",
    )
    cli.add_argument("--alone", type=int, metavar="N", help="measure only N trials alone")
    cli.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    cli.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    args, rest = cli.parse_known_args(argv)
    if args.train is not None:
        print(train(args.train, args.alone))
        return 0
    found = measure(rest or ["fedtsp_lambda"], args.alone)
    print(f"\n{found.sweep}\n{found.table()}")
    if args.json is not None:
        text = json.dumps({**asdict(found), "efficiency": found.efficiency}, indent=1)
        args.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
