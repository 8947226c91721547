"""The share of a sweep's processor time that is training: its trials alone against the sweep.

    python -m benchmarks.sweep
    python -m benchmarks.sweep fedproto_lambda rounds=3 --num-samples 4

Efficiency is the training time of all trials, each measured alone, divided by the sweep's wall time
times its cores. The trials alone run one after the other in one process on one thread; only time in
rounds counts, not start-up. The sweep's time is that of the whole command: imports, Ray, tracking,
table and figure. If all trials take equally long, `--alone N` measures only N evenly spread ones.
Run this benchmark on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Child, environment, serve
from fedray.storage.run_folder import find_runs


@dataclass(frozen=True)
class Efficiency:
    """The measurements of a sweep; times in seconds.

    Attributes:
        sweep: its name.
        trials: number of runs.
        cores: cores that the sweep could use.
        alone: training time of all trials, each alone.
        wall: time from the start of the sweep's command to its end.
        startups: time from the start of each trial to its first round.
    """

    sweep: str
    trials: int
    cores: int
    alone: float
    wall: float
    startups: list[float]

    @property
    def efficiency(self) -> float:
        """The share of the processor time that is training."""
        return self.alone / (self.wall * self.cores)

    def table(self) -> str:
        """Return the measurements as lines of text."""
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
    """Run the sweep's command and return its wall time; its output goes to the terminal.

    Raises:
        subprocess.CalledProcessError: if the sweep fails.
    """
    command = [sys.executable, "-m", "fedray.sweep", *arguments, "--out", str(out)]
    started = time.perf_counter()
    env = {**environment(), "FEDRAY_RESULTS": str(out.parent)}
    subprocess.run(command, env=env, check=True)
    return time.perf_counter() - started


def train(sweep: Path, count: int) -> float:
    """Run trials of a finished sweep one after the other in this process.

    Args:
        sweep: the folder of the sweep.
        count: number of trials to measure, evenly spread; 0 for all.

    Returns:
        The training time of all trials, in seconds.
    """
    import torch

    from fedray.config import Experiment
    from fedray.runtime.serial import SerialExecutor
    from fedray.runtime.session import Session
    from fedray.storage.run_folder import RunFolder
    from fedray.studies.study import Study

    study, device = Study.read(sweep), torch.device("cpu")
    trials = study.cells[0].first
    chosen = trials[:: max(1, len(trials) // count)][:count] if count else trials

    def seconds(experiment: Experiment, out: Path) -> float:
        for _ in Session(experiment, out, lambda a: SerialExecutor(a, device)).rounds():
            pass
        return RunFolder(out).read().costs.wall_seconds

    cell, seeds = study.cells[0], study.plan.report.seeds
    runs = [cell.run_spec(config, "tuning", seed).experiment for config in chosen for seed in seeds]
    with tempfile.TemporaryDirectory() as folder:
        first = runs[0].model_copy(update={"rounds": 1})
        seconds(first, Path(folder, "first"))  # fills imports, encoders and caches
        total = 0.0
        for number, experiment in enumerate(runs):
            total += seconds(experiment, Path(folder, str(number)))
    return total * len(trials) / len(chosen)


def measure(arguments: Sequence[str], alone: int) -> Efficiency:
    """Run a sweep, then its trials alone."""
    with tempfile.TemporaryDirectory(prefix="fedray-sweep-") as folder:
        out = Path(folder, "sweep")
        wall = run_sweep(arguments, out)
        runs = find_runs([out])
        words = ["-m", "benchmarks.sweep", "--train", str(out)]
        child = Child("trials alone", words, Path(folder, "alone.log"))
        training = child.ask(str(alone))
        child.close()
        return Efficiency(
            sweep=arguments[0],
            trials=len(runs),
            cores=len(os.sched_getaffinity(0)),
            alone=training,
            wall=wall,
            startups=[run.costs.startup_seconds for _, run in runs],
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and measure; return the exit code."""
    others = "All other arguments go to fedray.sweep: NAME key=value --num-samples N."
    cli = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=others)
    cli.add_argument(
        "--alone", type=int, default=0, metavar="N", help="measure only N trials alone"
    )
    cli.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    args, words = cli.parse_known_args(argv)
    if args.train is not None:
        serve(lambda count: train(args.train, int(count)))
        return 0
    measured = measure(words or ["fedtsp_lambda"], args.alone)
    print(f"\n{measured.sweep}\n{measured.table()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
