"""Results of the runs of studies, read from a run's folder or from a published table.

    <results>/store/<key>/result.json ...    a run, shared by all studies that need it

A run is one experiment with one seed, addressed by content. A user who adds seeds, rows or columns
to a published table runs only the new ones; table.json holds the numbers of the others. It
identifies a run by its experiment and the name (not the path) of its data folder. The hash of the
data is stored with the numbers, and a table whose rows have different data has a caveat.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fedray.config import Experiment, Frozen, Tree, validate
from fedray.errors import UserError, named, nearest, shown
from fedray.records import (
    Metric,
    Round,
    Run,
    RunFolder,
    Work,
    best_round,
    read_checked,
    read_json,
)
from fedray.studies.plan import Phase, StudyPlan

DATA = "table.json"
FORMAT = 4
"""Version of table.json; since format 4, every seed chooses by itself."""
RUNS = "runs"


class Numbers(Frozen):
    """The result of a finished run."""

    round: int
    """The selected round, 1 or later."""
    choice: float
    """The metric that selected this round."""
    score: float
    """`choice` with its sign such that larger is better."""
    values: dict[str, float]
    """The metrics in this round."""
    seconds: float
    """Duration of all rounds."""
    bytes: int
    """Bytes sent and received in all rounds."""
    partition: str | None
    """Hash of who owns which image."""
    data: str | None
    """Hash of images and labels."""
    test_images: int | None = None
    """Number of test images of all clients in the first phase; None: not recorded."""
    versions: dict[str, str]
    """Versions of the packages that made the numbers, and the commit."""
    hardware: str = ""
    """See `Environment.hardware`; empty if not recorded."""
    client_work: Work | None = None
    """Work of the clients in all rounds; None if not counted."""
    server_work: Work | None = None
    """Work of the server in all rounds; None if not counted."""


class Measured(Numbers):
    """The result of a row's run, with values by the study's metric names."""

    metrics: list[Metric]
    """Declarations of the values."""


def commits_of_runs(runs: Iterable[Numbers]) -> list[str]:
    """Return the commits of the code that made runs; "unknown" for code without a checkout."""
    return sorted({run.versions.get("git", "unknown") for run in runs})


def read_measured(folder: Path, plan: StudyPlan, row: str) -> Measured:
    """Read the result of a row's run.

    In a sweep, only the metric that chooses is required.

    Raises:
        UserError: if the run lacks a metric that chooses or is shown, or is damaged.
    """
    run = RunFolder(folder).read()
    chooser, names = plan.chosen_by(row), plan.measures(row)
    metric = run.info.metric(chooser)
    chosen = chosen_round(run.rounds, metric, plan.at)
    if chosen is None:
        raise _missing(chooser, run)
    if plan.is_sweep:
        names = {
            name: measured_name
            for name, measured_name in names.items()
            if measured_name in chosen.metrics
        }
    if lacking := [name for name in names.values() if name not in chosen.metrics]:
        raise _missing(lacking[0], run)
    return Measured(
        round=chosen.round,
        choice=chosen.metrics[chooser],
        score=sign_of(metric) * chosen.metrics[chooser],
        values={name: chosen.metrics[measured_name] for name, measured_name in names.items()},
        seconds=run.costs.wall_seconds,
        bytes=sum(int(done.up.total_bytes + done.down.total_bytes) for done in run.rounds),
        partition=run.info.partition_sha256,
        data=run.info.data_sha256,
        test_images=RunFolder(folder).test_images(),
        versions=dict(run.info.versions),
        hardware=run.info.environment.hardware,
        client_work=run.client_work,
        server_work=run.server_work,
        metrics=[
            replace(run.info.metric(measured_name), name=name)
            for name, measured_name in names.items()
        ],
    )


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


class PublishedRun(Frozen):
    """A run of a row of a published table."""

    name: str
    """Machine-independent name of the run, see `name_of`."""
    chosen_by: str
    """The metric that chose the round and the configuration."""
    at: Literal["best", "final"]
    """Which round was selected."""
    reason: str | None = None
    """Why the run failed."""
    numbers: Numbers | None = None
    """The result, with values by the run's metric names; None if the run failed."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """Key that is equal for runs that can replace each other."""
        measured = sorted(self.numbers.values) if self.numbers else ()
        return (self.name, self.chosen_by, self.at, *measured)

    @classmethod
    def of(
        cls, experiment: Experiment, plan: StudyPlan, row: str, result: Measured | str
    ) -> PublishedRun:
        """Return the record of a row's run from its result, or from the reason why it failed."""
        key: Tree = {"name": name_of(experiment), "chosen_by": plan.chosen_by(row), "at": plan.at}
        if isinstance(result, str):
            return cls(**key, reason=result)
        names, numbers = plan.measures(row), result.model_dump(exclude={"metrics"})
        numbers["values"] = {names[name]: value for name, value in result.values.items()}
        return cls(**key, numbers=Numbers(**numbers))


@dataclass(frozen=True)
class Published:
    """A published table, whose runs other tables can reuse.

    Attributes:
        source: the folder, as the user wrote it.
        tree: the content of table.json.
    """

    source: str
    tree: Tree

    @classmethod
    def read(cls, source: str, path: Path) -> Published:
        """Read a table.json; messages call the table `source`.

        Raises:
            UserError: if the file is missing, or damaged.
        """
        try:
            tree = check_table(path)
            table = cls(source, tree)
            _ = table.runs, table.made, table.metric, table.table, table.seeds
        except UserError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{path} cannot be read: {named(error)}") from None
        return table

    @cached_property
    def runs(self) -> dict[str, list[PublishedRun]]:
        """Runs by name; a run that was selected or measured in several ways has several entries."""
        runs: dict[str, list[PublishedRun]] = {}
        for number, entry in enumerate(self.tree[RUNS]):
            run = validate(PublishedRun, entry, f"{self.source}: {RUNS}[{number}]")
            runs.setdefault(run.name, []).append(run)
        return runs

    @cached_property
    def made(self) -> str:
        """Description of when, where and with which commits the table was made."""
        made = self.tree["made"]
        commits = ", ".join(commits_in(self.tree))
        return f"made {made['when']}, {made['machine']}, commit {commits}"

    @cached_property
    def table(self) -> str:
        """Name of the table."""
        return str(self.tree["table"])

    @cached_property
    def seeds(self) -> list[int]:
        """Reported seeds."""
        return list(self.tree["plan"]["report"]["seeds"])

    @cached_property
    def metric(self) -> dict[str, Metric]:
        """Metrics of the runs by name."""
        return {name: Metric(name, **of) for name, of in self.tree["metrics"].items()}

    def find(
        self, experiment: Experiment, plan: StudyPlan, row: str, phase: Phase
    ) -> Measured | str | None:
        """Return a run's result for a row, or why it failed; None if the table lacks the run.

        The run must have been selected by the same metric, and a reported run must have all metrics
        of the row.
        """
        for run in self.runs.get(name_of(experiment), ()):
            if (run.chosen_by, run.at) == (plan.chosen_by(row), plan.at):
                if run.numbers is None:
                    return run.reason
                measured = self._for_row(run.numbers, plan.measures(row))
                if phase == "tuning" or measured.values.keys() == plan.measures(row).keys():
                    return measured
        return None

    def _for_row(self, numbers: Numbers, names: dict[str, str]) -> Measured:
        """Return the available numbers by the study's metrics; `names` maps them to the run's."""
        available = {
            name: measured_name
            for name, measured_name in names.items()
            if measured_name in numbers.values
        }
        fields: dict[str, Any] = dict(numbers)
        fields["values"] = {
            name: numbers.values[measured_name] for name, measured_name in available.items()
        }
        declarations = [
            (name, self.metric[measured_name]) for name, measured_name in available.items()
        ]
        metrics = [
            Metric(name, metric.unit, metric.direction, metric.on) for name, metric in declarations
        ]
        return Measured(**fields, metrics=metrics)


def check_table(path: Path) -> Tree:
    """Check the format and checksum of a table.json, and return its content.

    Raises:
        UserError: if the file is missing, damaged, edited or of another format.
    """
    if not path.is_file():
        raise UserError(
            f"{path} does not exist; name the folder of a table's invocation, as fedray table "
            "prints it"
        )
    tree = read_json(path)
    if not isinstance(tree, dict) or "format" not in tree:
        raise UserError(f"{path} cannot be read: it is not the file of a table")
    if tree["format"] != FORMAT:
        raise UserError(
            f"{path} has format {shown(tree['format'])}, this version reads {FORMAT}; run the "
            "table again in the results folder that has its runs"
        )
    return read_checked(path)


def commits_in(tree: Tree) -> list[str]:
    """Return the commits of a table.json's runs."""
    return list(tree["made"]["commits"])


def name_of(experiment: Experiment) -> str:
    """Return a run's name, equal on all machines: a hash of what determines its numbers."""
    root = experiment.data.root
    content = json.dumps([experiment.identity(), None if root is None else Path(root).name])
    return hashlib.sha256(content.encode()).hexdigest()[:24]
