"""The share of a sweep's processor time that is training: its trials alone against the sweep.

    python -m benchmarks.sweep
    python -m benchmarks.sweep fedproto_lambda rounds=3 tuning.configurations=4

Efficiency is the training time of all trials, each measured alone, divided by the sweep's wall time
times its cores. The trials alone run one after the other in one process on one thread; only time in
rounds counts, not start-up. The sweep's time is that of the whole command: imports, Ray, tracking,
table and figure. If all trials take equally long, `--alone N` measures only N evenly spread ones.
Run this benchmark on an idle machine. On a busy one, the processor times alone mean something: what
is missing from their ratio to 1 is work other than training, and the rest of the loss is waiting.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.common import Child, descendants, environment, serve
from fedray.storage.run_folder import RunFolder, find_run_folders


@dataclass(frozen=True)
class Efficiency:
    """The measurements of a sweep; times in seconds.

    Attributes:
        sweep: its name.
        trials: number of runs.
        cores: cores that the sweep could use.
        alone: training time of all trials, each alone.
        alone_cpu: the same in processor time.
        wall: time from the start of the sweep's command to its end.
        cpu: processor time of the command and of all processes below it.
        startups: time from the start of each trial to its first round.
    """

    sweep: str
    trials: int
    cores: int
    alone: float
    alone_cpu: float
    wall: float
    cpu: float
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
            ("the same in processor time", f"{self.alone_cpu:.1f} of {self.cpu:.1f} s"),
            ("start of the first trials", f"{max(self.startups[: self.cores]):.1f} s"),
        ]
        if later:
            rows.append(("start of a further trial", f"{sorted(later)[len(later) // 2]:.2f} s"))
        return "\n".join(f"{name:<28}{value:>20}" for name, value in rows)


def run_sweep(arguments: Sequence[str], out: Path) -> tuple[float, float]:
    """Run the sweep's command; return its wall time and processor time.

    Its output goes to the terminal. The processor time of its processes is read twice a second, so
    it lacks the last moments of those that end.

    Raises:
        subprocess.CalledProcessError: if the sweep fails.
    """
    command = [sys.executable, "-m", "fedray.sweep", *arguments, "--out", str(out)]
    started = time.perf_counter()
    env = {**environment(), "FEDRAY_RESULTS": str(out.parent)}
    used: dict[psutil.Process, float] = {}
    with subprocess.Popen(command, env=env) as process:
        while process.poll() is None:
            for one in (psutil.Process(process.pid), *descendants(process.pid)):
                with suppress(psutil.Error):
                    times = one.cpu_times()
                    used[one] = times.user + times.system
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return time.perf_counter() - started, sum(used.values())


def train(sweep: Path, count: int) -> tuple[float, float]:
    """Run trials of a finished sweep one after the other in this process.

    Args:
        sweep: the folder of the sweep.
        count: number of trials to measure, evenly spread; 0 for all.

    Returns:
        The training time of all trials, and their processor time, in seconds.
    """
    import torch

    from fedray.config import Experiment
    from fedray.runtime.serial import SerialExecutor
    from fedray.runtime.session import Session
    from fedray.storage.run_folder import RunFolder
    from fedray.studies.study import Study

    study, device = Study.read(sweep), torch.device("cpu")
    trials = study.plan.configurations("all")
    chosen = trials[:: max(1, len(trials) // count)][:count] if count else trials

    def seconds(experiment: Experiment, out: Path) -> tuple[float, float]:
        session = Session(experiment, out, lambda a: SerialExecutor(a, device), keeps="none")
        before = time.process_time()
        for _ in session.rounds():
            pass
        return RunFolder(out).read().costs.wall_seconds, time.process_time() - before

    plan, seeds = study.plan, study.plan.report.seeds
    specs = [plan.run(plan.places[0], config, "tuning", s) for config in chosen for s in seeds]
    runs = [spec.experiment for spec in specs]
    with tempfile.TemporaryDirectory() as folder:
        first = runs[0].model_copy(update={"rounds": 1})
        seconds(first, Path(folder, "first"))  # fills imports, encoders and caches
        times = [seconds(run, Path(folder, str(number))) for number, run in enumerate(runs)]
    scale = len(trials) / len(chosen)
    return scale * sum(wall for wall, _ in times), scale * sum(cpu for _, cpu in times)


def measure(arguments: Sequence[str], alone: int) -> Efficiency:
    """Run a sweep, then its trials alone."""
    with tempfile.TemporaryDirectory(prefix="fedray-sweep-") as folder:
        out = Path(folder, "sweep")
        wall, cpu = run_sweep(arguments, out)
        runs = [(path, RunFolder(path).read()) for path in find_run_folders([out])]
        words = ["-m", "benchmarks.sweep", "--train", str(out)]
        child = Child("trials alone", words, Path(folder, "alone.log"))
        training, training_cpu = child.ask(str(alone))
        child.close()
        return Efficiency(
            sweep=arguments[0],
            trials=len(runs),
            cores=len(os.sched_getaffinity(0)),
            alone=training,
            alone_cpu=training_cpu,
            wall=wall,
            cpu=cpu,
            startups=[run.costs.startup_seconds for _, run in runs],
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and measure; return the exit code."""
    others = "All other arguments go to fedray.sweep: NAME key=value."
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
