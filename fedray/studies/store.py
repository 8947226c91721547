"""Results of the runs of studies, read from a run's folder or from a published table.

    <results>/store/<key>/run.json ...    a run, shared by all studies that need it

A run is one experiment with one seed, addressed by content. A user who adds seeds, rows or columns
to a published table runs only the new ones; table.json holds the numbers of the others. It
identifies a run by its experiment and the name (not the path) of its data folder. The hash of the
data is stored with the numbers, and a table whose rows have different data has a caveat.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fedray.base.errors import UserError, nearest
from fedray.results.record import FailedRun, Measured, TableRecord
from fedray.storage.metric import Metric, best_round
from fedray.storage.run import Round, Run
from fedray.storage.run_folder import RunFolder
from fedray.studies.plan import RunSpec, StudyPlan

TRIAL_LOCK = ".trial.lock"
"""File in a run's folder that is locked while a trial runs it."""


def read_measured(folder: Path, plan: StudyPlan, row: str) -> tuple[Measured, dict[str, Metric]]:
    """Read the result of a row's run, and the declarations of its metrics by name.

    In a sweep, only the metric that chooses is required.

    Raises:
        UserError: if the run lacks a metric that chooses or is shown, or is damaged.
    """
    run = RunFolder(folder).read()
    chooser, names = plan.chosen_by(row), [*plan.measures(row).values()]
    metric = run.info.metric(chooser)
    chosen = chosen_round(run.rounds, metric, plan.at)
    if chosen is None:
        raise _missing(chooser, run)
    if plan.is_sweep:
        names = [name for name in (chooser, *names) if name in chosen.metrics]
    if lacking := [name for name in names if name not in chosen.metrics]:
        raise _missing(lacking[0], run)
    measured = Measured(
        round=chosen.round,
        choice=chosen.metrics[chooser],
        less_is_better=sign_of(metric) < 0,
        values={name: chosen.metrics[name] for name in names},
        seconds=run.costs.wall_seconds,
        bytes=sum(int(done.up.total_bytes + done.down.total_bytes) for done in run.rounds),
        partition=run.info.partition_sha256,
        data=run.info.data_sha256,
        test_images=sum(RunFolder(folder).partition().get("test_sizes", ())),
        versions=dict(run.info.environment.versions),
        hardware=run.info.environment.hardware,
        client_work=run.work("client"),
        server_work=run.work("server"),
    )
    return measured, {name: replace(run.info.metric(name), name=name) for name in names}


def chosen_round(
    rounds: Sequence[Round], metric: Metric, at: Literal["best", "final"]
) -> Round | None:
    """Return the best or the last round that has `metric`; ties go to the earlier round.

    Round 0, the untrained model, is never selected.
    """
    by_round = {done.round: done for done in rounds if done.round > 0}
    curve = {
        number: done.metrics[metric.name]
        for number, done in by_round.items()
        if metric.name in done.metrics
    }
    best = best_round(curve, metric.direction)
    if at == "final":
        best = max(curve, default=None)
    return None if best is None else by_round[best]


def sign_of(metric: Metric) -> int:
    """Return 1 if larger values are better, -1 otherwise."""
    return -1 if metric.direction == "min" else 1


def _missing(name: str, run: Run) -> UserError:
    metrics = {metric for done in run.rounds for metric in done.metrics}
    return UserError(f"metric: no round has '{name}'.{nearest(name, metrics)}")


@dataclass(frozen=True)
class Published:
    """A published table, whose runs other tables can reuse.

    Attributes:
        source: the folder, as the user wrote it.
        record: the content of table.json.
    """

    source: str
    record: TableRecord

    @property
    def made(self) -> str:
        """Description of when, where and with which commits the table was made."""
        made, commits = self.record.made, ", ".join(self.record.commits)
        return f"made {made.when}, {made.machine}, commit {commits}"

    def find(self, spec: RunSpec, plan: StudyPlan) -> Measured | str | None:
        """Return a run's result for its row, or why it diverged; None if the table lacks the run.

        A reported run must have all metrics of the row. Other failures than divergence may not
        occur again.
        """
        run = self.record.runs.get(name_in_tables(spec, plan))
        if isinstance(run, FailedRun):
            return run.reason if run.diverged else None
        names = plan.measures(spec.place.row).values()
        return run if run and (spec.phase == "tuning" or {*names} <= run.values.keys()) else None


def name_in_tables(spec: RunSpec, plan: StudyPlan) -> str:
    """Return the name of a row's run in a table, equal on all machines.

    It joins a hash of what determines the numbers, and one of the metric and rule that choose the
    round.
    """
    chosen = json.dumps([plan.chosen_by(spec.place.row), plan.at])
    return f"{spec.name}.{hashlib.sha256(chosen.encode()).hexdigest()[:8]}"
