"""What the accuracy tables have in common: tune every method alike, run its choice, compare.

Runs lie in one folder each and are skipped. A run that fails (a loss that is no longer
finite) counts as the worst in tuning, and is named with the mean of the others.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedray.records import RunFolder
from fedray.report.runs import paired
from fedray.sweep.seeds import mean_and_std

Config = tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """One run: where it lies, which experiment, and the overrides."""

    out: Path
    experiment: str
    assignments: Config


def do(job: Job) -> None:
    """Run one experiment in this process, unless it is already there."""
    import torch

    from fedray.errors import FedrayError
    from fedray.files import write_json
    from fedray.runtime.resolve import resolve
    from fedray.runtime.serial import SerialExecutor
    from fedray.runtime.session import Session

    if (job.out / "done.json").exists():
        return
    asked = resolve(job.experiment, (*job.assignments, "checkpoint_every=0"))
    session = Session(asked, job.out, lambda parts: SerialExecutor(parts, torch.device("cpu")))
    failure = None
    try:
        for _ in session.rounds():
            pass
    except FedrayError as error:
        failure = str(error)
    job.out.mkdir(parents=True, exist_ok=True)
    write_json(job.out / "done.json", {"failure": failure})
    print(f"{job.out.parent.name}/{job.out.name}: {failure or 'done'}", flush=True)


def run_all(jobs: Iterable[Job], processes: int) -> None:
    """Do all jobs on so many processes."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        for _ in pool.imap_unordered(do, list(jobs)):
            pass


def failed(out: Path) -> bool:
    """Whether a run ended early."""
    return json.loads((out / "done.json").read_text())["failure"] is not None


def best(out: Path, metric: str = "local_accuracy") -> float:
    """A run's highest value of a metric over rounds."""
    return max(values(out, metric))


def last(out: Path, metric: str = "local_accuracy") -> float:
    """A run's last value of a metric."""
    return values(out, metric)[-1]


def value_of(out: Path, metric: str, at: str) -> float:
    """A run's "best" or "last" value of a metric."""
    return best(out, metric) if at == "best" else last(out, metric)


def values(out: Path, metric: str) -> list[float]:
    """A metric round by round, where it was measured."""
    return list(RunFolder(out).read().curve(metric).values())


def chosen(
    folder: Path, grid: Sequence[Config], metric: str = "local_accuracy", at: str = "best"
) -> Config:
    """The configuration with the best tuning run."""

    def score(config: Config) -> float:
        out = folder / label(config)
        return -1.0 if failed(out) else value_of(out, metric, at)

    return max(grid, key=score)


def label(config: Config) -> str:
    """A folder name for a configuration."""
    return "_".join(short(config)) or "default"


def short(config: Config) -> list[str]:
    """Assignments without the method's prefix."""
    return [item.removeprefix("algorithm.") for item in config]


def spread(folders: Sequence[Path], metric: str = "local_accuracy", at: str = "best") -> str:
    """Mean and standard deviation over the runs that ended well, in %."""
    good = [folder for folder in folders if not failed(folder)]
    note = "" if len(good) == len(folders) else f" ({len(folders) - len(good)} diverged)"
    if not good:
        return "diverged"
    mean, std = mean_and_std([100 * value_of(folder, metric, at) for folder in good])
    return f"{mean:.1f} ± {std:.1f}{note}"


def against(
    folders: Sequence[Path],
    base: Sequence[Path],
    metric: str = "local_accuracy",
    at: str = "best",
) -> str:
    """Difference in points, seed by seed where both ended well, and its p."""
    pairs = [
        (mine, other)
        for mine, other in zip(folders, base, strict=True)
        if not failed(mine) and not failed(other)
    ]
    mine, others = ([100 * value_of(pair[side], metric, at) for pair in pairs] for side in (0, 1))
    found = paired(mine, others)
    if found is None:
        return "-"
    if found.p is None:
        return f"{found.stat.mean:+.1f}"
    return f"{found.stat.mean:+.1f} ± {found.stat.std:.1f} (p {found.p:.2f})"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
