"""What one run of a table came to: its round, chosen where the plan says, and the numbers in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from fedray.config import Frozen
from fedray.errors import UserError, nearest
from fedray.records import Metric, Round, Run, RunFolder, best_round
from fedray.tables.plan import TablePlan


class Numbers(Frozen):
    """What a finished run came to."""

    round: int
    """The chosen one, 1 or later."""
    choice: float
    """What it was chosen by, there."""
    score: float
    """Likewise, larger is better."""
    values: dict[str, float]
    """The metrics, there."""
    seconds: float
    """Of all rounds."""
    bytes: int
    """Sent and received in all rounds."""
    partition: str | None
    """Hash of who owns which image."""
    data: str | None
    """Hash of images and labels."""
    versions: dict[str, str]
    """Of the packages that made the numbers, and the commit."""


class Measured(Numbers):
    """What a row's run came to; its values by the table's names, for which its own may stand."""

    metrics: list[Metric]
    """What the values mean."""


def commits_of_runs(runs: Iterable[Numbers]) -> list[str]:
    """The commits of the code that made runs, sorted; "unknown" of what was no checkout."""
    return sorted({run.versions.get("git", "unknown") for run in runs})


def measured(folder: Path, plan: TablePlan, row: str) -> Measured:
    """Read a finished run of a row.

    Raises:
        UserError: when it has not measured what the table chooses by or shows, or is damaged.
    """
    run = RunFolder(folder).read()
    chooser, own = plan.chosen_by(row), plan.measures(row)
    metric = run.info.metric(chooser)
    chosen = chosen_round(run.rounds, metric, plan.at)
    if chosen is None:
        raise _missing(chooser, run)
    if gone := [name for name in own.values() if name not in chosen.metrics]:
        raise _missing(gone[0], run)
    return Measured(
        round=chosen.round,
        choice=chosen.metrics[chooser],
        score=sign_of(metric) * chosen.metrics[chooser],
        values={name: chosen.metrics[one] for name, one in own.items()},
        seconds=run.costs.wall_seconds,
        bytes=sum(int(done.up.total_bytes + done.down.total_bytes) for done in run.rounds),
        partition=run.info.partition_sha256,
        data=run.info.data_sha256,
        versions=dict(run.info.versions),
        metrics=[replace(run.info.metric(one), name=name) for name, one in own.items()],
    )


def chosen_round(
    rounds: Sequence[Round], metric: Metric, at: Literal["best", "final"]
) -> Round | None:
    """The best or the last round by what is chosen by, the first of equal ones.

    The untrained model, round 0, is no candidate.
    """
    there = {done.round: done for done in rounds if done.round > 0}
    curve = {
        number: done.metrics[metric.name]
        for number, done in there.items()
        if metric.name in done.metrics
    }
    best = best_round(curve, metric.direction)
    if at == "final":
        best = max(curve, default=None)
    return None if best is None else there[best]


def sign_of(metric: Metric) -> int:
    """1 where more is better, -1 where less is."""
    return -1 if metric.direction == "min" else 1


def _missing(name: str, run: Run) -> UserError:
    there = {found for done in run.rounds for found in done.metrics}
    return UserError(f"metric: no round has '{name}'.{nearest(name, there)}")
