"""The runs of a published table: their numbers, taken from its table.json.

Who adds seeds, rows or columns to it runs those alone. A run is known by its experiment and by the
name of its data's folder, wherever that lies; the data's hash is with its numbers, and a table
whose rows have different data says so.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fedray.config import Experiment, Frozen, Tree, validate
from fedray.errors import UserError, named, shown
from fedray.records import Metric, read_checked, read_json
from fedray.tables.measured import Measured, Numbers
from fedray.tables.plan import Phase, TablePlan

DATA = "table.json"
FORMAT = 3
"""Since 3 runs are named by an identity of contents."""
RUNS = "runs"


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
    """What it came to, if it did not fail; its values by the names of its own metrics."""

    @property
    def kind(self) -> tuple[Any, ...]:
        """The same of two runs of which one can be taken for the other."""
        measured = sorted(self.numbers.values) if self.numbers else ()
        return (self.name, self.chosen_by, self.at, *measured)

    @classmethod
    def of(
        cls, experiment: Experiment, plan: TablePlan, row: str, came_to: Measured | str
    ) -> PublishedRun:
        """A run of a table's row, or why it failed."""
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
            found.notes_that_begin("")
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
        """How it was made, in words."""
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

    def notes_that_begin(self, words: str) -> list[str]:
        """Those of its notes."""
        return [str(note) for note in self.tree["notes"] if str(note).startswith(words)]

    @cached_property
    def metric(self) -> dict[str, Metric]:
        """What its numbers mean, by the names of its runs' own metrics."""
        return {name: Metric(name, **of) for name, of in self.tree["metrics"].items()}

    def find(
        self, experiment: Experiment, plan: TablePlan, row: str, phase: Phase
    ) -> Measured | str | None:
        """What a run came to for a row, or why it failed; None: it is not here.

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
        """The numbers that there are, by the names that a table's row has for them."""
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
        raise UserError(
            f"{path} has format {shown(tree['format'])}, this version reads {FORMAT}; run the "
            "table again in the results folder that has its runs"
        )
    return read_checked(path)


def commits_in(tree: Tree) -> list[str]:
    """The commits of a table.json's runs; of an older one as far as it has them, or its page's."""
    made = tree["made"]
    if "commits" in made:
        return list(made["commits"])
    runs = [run.get("numbers") or {} for run in tree.get(RUNS, ())]
    reported = [each for cell in tree.get("cells", ()) for each in cell["seeds"]]
    found = {run["versions"].get("git", "unknown") for run in runs + reported if "versions" in run}
    return sorted(found) or [made["commit"]]


def name_of(experiment: Experiment) -> str:
    """What a run is called on any machine, by all that determines its numbers."""
    root = experiment.data.root
    what = json.dumps([experiment.identity(), None if root is None else Path(root).name])
    return hashlib.sha256(what.encode()).hexdigest()[:24]
