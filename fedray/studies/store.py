"""Results of the runs of studies: read from a run's folder, or from a published table.

    <results>/store/<key>/result.json ...    a run, the same for every study that needs it

A run is one experiment with one seed, addressed by content. Who adds seeds, rows or columns to a
published table runs those alone: of the others its table.json holds the numbers. There a run is
known by its experiment and by the name of its data's folder, wherever that lies; the data's hash is
with its numbers, and a table whose rows have different data says so.
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
FORMAT = 3
"""Since 3 runs are named by an identity of contents; `fedray convert` brings 2 to 3."""
RUNS = "runs"


class Numbers(Frozen):
    """The result of a finished run."""

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
    test_images: int | None = None
    """How many images all clients are tested on in the first phase; None: not recorded."""
    versions: dict[str, str]
    """Of the packages that made the numbers, and the commit."""
    hardware: str = ""
    """See `Environment.hardware`; "" if it was not recorded."""
    client_work: Work | None = None
    """What clients did in all rounds; None of a run whose work was not counted."""
    server_work: Work | None = None
    """What the server did in all rounds."""


class Measured(Numbers):
    """The result of a row's run; values by the study's names of metrics."""

    metrics: list[Metric]
    """What the values mean."""


def commits_of_runs(runs: Iterable[Numbers]) -> list[str]:
    """Return the commits of the code that made runs; "unknown" of what was no checkout."""
    return sorted({run.versions.get("git", "unknown") for run in runs})


def measured(folder: Path, plan: StudyPlan, row: str) -> Measured:
    """Read a run of a row; in a sweep, metrics other than the one that chooses may be missing.

    Raises:
        UserError: if it has not measured what the study chooses by or shows, or is damaged.
    """
    run = RunFolder(folder).read()
    chooser, own = plan.chosen_by(row), plan.measures(row)
    metric = run.info.metric(chooser)
    chosen = chosen_round(run.rounds, metric, plan.at)
    if chosen is None:
        raise _missing(chooser, run)
    if plan.is_sweep:
        own = {name: one for name, one in own.items() if one in chosen.metrics}
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
        test_images=RunFolder(folder).test_images(),
        versions=dict(run.info.versions),
        hardware=run.info.environment.hardware,
        client_work=run.client_work,
        server_work=run.server_work,
        metrics=[replace(run.info.metric(one), name=name) for name, one in own.items()],
    )


def chosen_round(
    rounds: Sequence[Round], metric: Metric, at: Literal["best", "final"]
) -> Round | None:
    """Return the best or the last round by what is chosen by, the first of equal ones.

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
    """Return 1 if more is better, -1 if less is."""
    return -1 if metric.direction == "min" else 1


def _missing(name: str, run: Run) -> UserError:
    there = {found for done in run.rounds for found in done.metrics}
    return UserError(f"metric: no round has '{name}'.{nearest(name, there)}")


class PublishedRun(Frozen):
    """A run of a row of a published table."""

    name: str
    """See `name_of`."""
    chosen_by: str
    """The metric that has chosen its round and its configuration."""
    at: Literal["best", "final"]
    """Which round was to be chosen."""
    reason: str | None = None
    """Why it failed."""
    numbers: Numbers | None = None
    """The result, if it did not fail; values by the names of its own metrics."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """The same of two runs of which one can be taken for the other."""
        measured = sorted(self.numbers.values) if self.numbers else ()
        return (self.name, self.chosen_by, self.at, *measured)

    @classmethod
    def of(
        cls, experiment: Experiment, plan: StudyPlan, row: str, came_to: Measured | str
    ) -> PublishedRun:
        """Return a run of a table's row, or why it failed."""
        who: Tree = {"name": name_of(experiment), "chosen_by": plan.chosen_by(row), "at": plan.at}
        if isinstance(came_to, str):
            return cls(**who, reason=came_to)
        own, found = plan.measures(row), came_to.model_dump(exclude={"metrics"})
        found["values"] = {own[name]: value for name, value in came_to.values.items()}
        return cls(**who, numbers=Numbers(**found))


@dataclass(frozen=True)
class Published:
    """A table that was published.

    Attributes:
        source: the folder, as it was given.
        tree: its table.json.
    """

    source: str
    tree: Tree

    @classmethod
    def read(cls, source: str, path: Path) -> Published:
        """Read a table.json; `source` is what it is called.

        Raises:
            UserError: when it is not there, damaged, or of a fedray that did not write its runs.
        """
        try:
            tree = check_table(path)
            if RUNS not in tree:
                raise UserError(f"{path} does not hold its runs; an older fedray made it")
            found = cls(source, tree)
            _ = found.runs, found.made, found.metric, found.table, found.seeds
        except UserError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(f"{path} cannot be read: {named(error)}") from None
        return found

    @cached_property
    def runs(self) -> dict[str, list[PublishedRun]]:
        """Its runs, by name; one for each way of choosing and measuring."""
        found: dict[str, list[PublishedRun]] = {}
        for number, entry in enumerate(self.tree[RUNS]):
            run = validate(PublishedRun, entry, f"{self.source}: {RUNS}[{number}]")
            found.setdefault(run.name, []).append(run)
        return found

    @cached_property
    def made(self) -> str:
        """Describe in words how the page was made."""
        made = self.tree["made"]
        commits = ", ".join(commits_in(self.tree))
        return f"made {made['when']}, {made['machine']}, commit {commits}"

    @cached_property
    def table(self) -> str:
        """Its name."""
        return str(self.tree["table"])

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds that it reports."""
        return list(self.tree["plan"]["report"]["seeds"])

    @cached_property
    def metric(self) -> dict[str, Metric]:
        """Return the metrics of the runs by name."""
        return {name: Metric(name, **of) for name, of in self.tree["metrics"].items()}

    def find(
        self, experiment: Experiment, plan: StudyPlan, row: str, phase: Phase
    ) -> Measured | str | None:
        """Return a run's result for a row, or why it failed; None: it is not here.

        Nor is a run here that was chosen in another way, or a reported one that was not measured as
        the row is.
        """
        for run in self.runs.get(name_of(experiment), ()):
            if (run.chosen_by, run.at) == (plan.chosen_by(row), plan.at):
                if run.numbers is None:
                    return run.reason
                measured = self._for_row(run.numbers, plan.measures(row))
                if phase == "tuning" or measured.values.keys() == plan.measures(row).keys():
                    return measured
        return None

    def _for_row(self, numbers: Numbers, own: dict[str, str]) -> Measured:
        """Return the numbers that there are, by the names that a table's row has for them."""
        there = {name: one for name, one in own.items() if one in numbers.values}
        found: dict[str, Any] = dict(numbers)
        found["values"] = {name: numbers.values[one] for name, one in there.items()}
        means = [(name, self.metric[one]) for name, one in there.items()]
        metrics = [Metric(name, of.unit, of.direction, of.on) for name, of in means]
        return Measured(**found, metrics=metrics)


def check_table(path: Path) -> Tree:
    """Read a table.json, after checking its format and its checksum.

    Raises:
        UserError: when it is missing, damaged or edited, or was written in another format.
    """
    if not path.is_file():
        raise UserError(
            f"{path} is not there; give the folder of a table's invocation, as fedray table "
            "prints it"
        )
    tree = read_json(path)
    if not isinstance(tree, dict) or "format" not in tree:
        raise UserError(f"{path} cannot be read: it is not the file of a table")
    if tree["format"] != FORMAT:
        second = tree["format"] == FORMAT - 1
        remedy = (
            f"convert it once with fedray convert {path.parent}"
            if second
            else "run the table again in the results folder that has its runs"
        )
        raise UserError(
            f"{path} has format {shown(tree['format'])}, this version reads {FORMAT}; {remedy}"
        )
    return read_checked(path)


def commits_in(tree: Tree) -> list[str]:
    """Return the commits of a table.json's runs; its page's, if it is older and has none."""
    made = tree["made"]
    if "commits" in made:
        return list(made["commits"])
    runs = [run.get("numbers") or {} for run in tree.get(RUNS, ())]
    reported = [each for cell in tree.get("cells", ()) for each in cell["seeds"]]
    found = {run["versions"].get("git", "unknown") for run in runs + reported if "versions" in run}
    return sorted(found) or [made["commit"]]


def name_of(experiment: Experiment) -> str:
    """Return what a run is called on any machine, by all that determines its numbers."""
    root = experiment.data.root
    what = json.dumps([experiment.identity(), None if root is None else Path(root).name])
    return hashlib.sha256(what.encode()).hexdigest()[:24]
