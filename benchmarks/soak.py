"""A long run of a tiny experiment: memory, open files and time per round must stay flat.

    python -m benchmarks.soak                        1,000 rounds, serial and on Ray with 2 workers
    python -m benchmarks.soak --only ray --rounds 300

MOON on digits, whose clients keep a model, with partial participation and late replies, and a
checkpoint after every round.
After each round the run's processes are looked at: this one, and on Ray the actors of the server
and of the workers. Reported is each quarter of the rounds, the first without its first tenth; the
exit code is 1 when the last exceeds the first by more than it may. CPU time is that of the same
processes: unlike the time on the clock, which decides nothing here, it depends little on what else
the machine does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import psutil

from fedray.records import Round, RunFolder

ALLOWED = {"memory": 0.05, "files": 0.0, "cpu": 0.15, "lines": 0.05}
"""By how much the last quarter may exceed the first; time on the clock decides nothing."""


@dataclass(frozen=True)
class Sample:
    """What the run's processes held after a round, and what the round took.

    Attributes:
        memory: resident, in bytes, of all processes in sum.
        files: open file descriptors.
        seconds: on the clock, since the round before.
        cpu: seconds of processor time since the round before.
        lines: bytes of rounds.jsonl so far.
    """

    memory: float
    files: float
    seconds: float
    cpu: float
    lines: float


def rounds_of(executor: str, rounds: int, out: Path) -> Iterator[Round]:
    """The rounds of the tiny experiment."""
    from fedray.runtime.resolve import resolve

    experiment = resolve(
        "moon_digits",
        [
            *(f"rounds={rounds}", "local_epochs=1", "participation=0.5", "eval_every=5"),
            *("data.clients=8", "data.samples=320", "faults.late=0.1", "lr=0.01", "workers=2"),
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


def processes() -> list[psutil.Process]:
    """This process, and the actors of the run."""
    own = psutil.Process()
    found = [own]
    for child in own.children(recursive=True):
        try:
            title = child.cmdline()[:1]
        except psutil.Error:
            continue
        if title and title[0].startswith(("ray::ServerActor", "ray::Worker")):
            found.append(child)
    return found


def watch(executor: str, rounds: int, out: Path) -> list[Sample]:
    """Run, and look at the processes after every round."""
    samples: list[Sample] = []
    clock, cpu = time.perf_counter(), 0.0
    for _ in rounds_of(executor, rounds, out):
        alive = processes()
        held, files, spent = 0.0, 0, 0.0
        for process in alive:
            with process.oneshot():
                held += process.memory_info().rss
                files += process.num_fds()
                spent += sum(process.cpu_times()[:2])
        now, folder = time.perf_counter(), RunFolder(out)
        lines = folder.rounds_file.stat().st_size if folder.rounds_file.exists() else 0.0
        samples.append(Sample(held, files, now - clock, spent - cpu, lines))
        clock, cpu = now, spent
    return samples


@dataclass(frozen=True)
class Slope:
    """One quantity in the four quarters of the rounds."""

    name: str
    unit: str
    quarters: Sequence[float]

    @property
    def growth(self) -> float:
        """By how much the last exceeds the first, as a share of it."""
        return self.quarters[-1] / self.quarters[0] - 1

    @property
    def is_flat(self) -> bool:
        """Whether it is as it has to be."""
        return self.name not in ALLOWED or self.growth <= ALLOWED[self.name]

    def row(self) -> str:
        """A row of the table."""
        verdict = "flat" if self.is_flat else "GROWS"
        if self.name not in ALLOWED:
            verdict = "as the machine is busy"
        values = " | ".join(f"{value:.4g}" for value in self.quarters)
        return f"| {self.name} ({self.unit}) | {values} | {self.growth:+.1%} | {verdict} |"


def slopes(samples: list[Sample]) -> list[Slope]:
    """Quarter by quarter; the first rounds, in which caches fill, and the last do not count."""
    quarter = len(samples) // 4
    parts = [samples[start : start + quarter] for start in range(0, 4 * quarter, quarter)]
    parts[0], parts[-1] = parts[0][max(1, quarter // 10) :], parts[-1][:-1]
    return [
        Slope("memory", "MB", [median(s.memory * 1e-6 for s in part) for part in parts]),
        Slope("files", "open", [median(s.files for s in part) for part in parts]),
        Slope("seconds", "ms a round", [median(s.seconds * 1e3 for s in part) for part in parts]),
        # The system counts hundredths of a second of a processor: too coarse for a median.
        Slope("cpu", "ms a round", [mean(s.cpu * 1e3 for s in part) for part in parts]),
        Slope(
            "lines",
            "bytes a round in rounds.jsonl",
            [(part[-1].lines - part[0].lines) / (len(part) - 1) for part in parts],
        ),
    ]


def main(argv: list[str] | None = None) -> int:
    """Run the soak and print the table; 1 when something grows."""
    cli = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    cli.add_argument("--only", choices=["serial", "ray"])
    cli.add_argument("--rounds", type=int, default=1000)
    args = cli.parse_args(argv)
    flat = True
    for executor in [args.only] if args.only else ["serial", "ray"]:
        with tempfile.TemporaryDirectory(prefix="fedray-soak-") as folder:
            found = slopes(watch(executor, args.rounds, Path(folder) / "out"))
        print(f"\n{executor}, {args.rounds} rounds\n")
        print("| quarter of the rounds | 1 | 2 | 3 | 4 | growth | |")
        print("|---|---:|---:|---:|---:|---:|---|")
        print("\n".join(slope.row() for slope in found), flush=True)
        flat &= all(slope.is_flat for slope in found)
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
