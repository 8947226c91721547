"""A study at one scale with the command line's keys: all that defines what is run.

A study has rows and columns, a space that is searched for each row in each column, seeds, and
perhaps claims. A sweep is a study of one cell.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import Field, StrictBool, model_validator

from fedray.compare.paired import TestKind
from fedray.config import (
    Experiment,
    FileName,
    Frozen,
    Seed,
    Tree,
    flatten,
    parents_first,
    with_used_plugins,
)
from fedray.errors import UserError, nearest, shown
from fedray.records import BEST, VALIDATION, Metric, find_metric
from fedray.studies.claims import ALL, MEAN, Claim, parse_claims
from fedray.studies.space import MOST_CONFIGURATIONS, Axis, Config, Search, draws, grid, parse_space

MOST_SEEDS = 1_000
OTHERS = "*"
"""Any column that is not named."""
FRACTION = "data.validation_fraction"
Phase = Literal["tuning", "report"]
Select = Literal["validation", "test", "nothing"]


class Asha(Frozen):
    """Asynchronous successive halving; its clock is the federated round."""

    grace_rounds: int = Field(5, ge=1, le=100_000)
    """Rounds that every run may do."""
    reduction_factor: int = Field(3, ge=2, le=10_000)
    """The number of runs at a milestone of which one continues."""


class Tuning(Frozen):
    """What is spent on the choice of a configuration: the same for every row, in every column.

    Each reported seed tries every configuration and chooses by its own validation images, so that a
    test over seeds includes the luck of tuning.
    """

    once: list[int] | None = Field(None, max_length=MOST_SEEDS)
    """Seeds that choose once for all reported seeds, by their mean; the test over seeds then leaves
    out the luck of tuning. None: each reported seed chooses by itself."""
    configurations: int | None = Field(5, ge=1, le=MOST_CONFIGURATIONS)
    """How many may be tried, those included by which a grid is continued; of a sweep's grid None:
    all."""
    rounds: int | None = Field(None, ge=1, le=100_000)
    """Rounds of a run that chooses; the chosen configuration then runs to the end. None: as many as
    the report's."""
    search: Search = "grid"
    """grid: every combination; random: independent draws; tpe: Optuna's sampler, for sweeps."""
    extend: StrictBool = True
    """Whether a grid is extended if the choice lies at its edge, within the budget."""
    search_seed: Seed = 0
    """Seed of random draws."""
    at: str | None = None
    """The one column in which is tuned; what is chosen there is reported in all. None: each tunes
    by itself."""
    asha: Asha | None = None
    """Stops bad runs of a sweep early; None runs all to the end."""

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, tree: Any) -> Any:
        return renamed(tree) if isinstance(tree, Mapping) else tree


def renamed(tuning: Mapping[str, Any]) -> Tree:
    """Return keys of `tuning` with `once` for `seeds`, as it was before seeds chose themselves."""
    return {"once" if key == "seeds" else key: value for key, value in tuning.items()}


class Reporting(Frozen):
    """The runs that are reported."""

    seeds: list[int] = Field(default_factory=lambda: [0, 1, 2, 3, 4], max_length=MOST_SEEDS)
    """Seeds that are reported."""
    more: dict[str, list[int]] = Field(default_factory=dict)
    """Further seeds of single rows; `fedray decide` adds them."""
    rounds: int | None = Field(None, ge=1, le=100_000)
    """Rounds of a run; None: the experiment's."""
    looked_at: list[list[int]] = Field(default_factory=list, max_length=MOST_SEEDS)
    """Seeds whose verdicts were known when the others were added, once for each time: a second look
    at the data, which `test: fixed` corrects for and the page says."""


class PaperNumbers(Frozen):
    """What a paper says, in the unit that the table shows: per cent, of a share."""

    source: str = Field(max_length=300)
    """The paper, its version and the table."""
    numbers: Tree
    """By row, by column: a mean, or [mean, spread]; `"*"` is any other column, `mean` the paper's
    own mean over columns, and what a row has without columns is that of all."""

    def check(self, rows: Sequence[str], where: str) -> None:
        """Refuse what is no number, or of a row that is not there.

        Columns of other scales may stand here.

        Raises:
            UserError: naming it.
        """
        for row, columns in self.numbers.items():
            if row not in rows:
                raise UserError(
                    f"{where}.paper.numbers: there is no row {shown(row)}.{nearest(row, rows)}"
                )
            entries = columns.values() if isinstance(columns, Mapping) else [columns]
            for entry in entries:
                if not _is_entry(entry):
                    raise UserError(
                        f"{where}.paper.numbers.{row} holds {shown(entry)}, expected a mean or "
                        "[mean, spread]"
                    )

    def of(self, row: str, column: str) -> tuple[float, float | None] | None:
        """Return a cell's mean and spread, or those of the mean over columns; None without any."""
        found = self.numbers.get(row)
        if isinstance(found, Mapping):
            found = found.get(column, None if column == MEAN else found.get(OTHERS))
        elif column == MEAN:
            return None
        if found is None:
            return None
        mean, spread = found if isinstance(found, list) else (found, None)
        return float(mean), None if spread is None else float(spread)


def _is_entry(entry: Any) -> bool:
    numbers = entry if isinstance(entry, list) else [entry]
    plain = all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers)
    return plain and len(numbers) in ((1,) if not isinstance(entry, list) else (2,))


class RowPlan(Frozen):
    """A row at one scale."""

    algorithm: Any = None
    experiment: str | None = None
    set: Tree = Field(default_factory=dict)
    space: Tree = Field(default_factory=dict)
    """All that is tuned."""
    label: str
    metrics: dict[str, str | None] = Field(default_factory=dict)
    """The row's own name for a metric of the study; null: it has none."""
    control: str | None = None
    of: str | None = None
    """Of a control, the row that it is to explain."""
    tuned_as: str | None = None
    """The row whose choice it takes over."""
    over: str | None = None
    """Of a control, the row over which that one's gain is; None: the nearest."""

    @property
    def axes(self) -> list[Axis]:
        """Return the keys that are tuned."""
        return parse_space(self.space)


@dataclass(frozen=True)
class Place:
    """A cell of the study."""

    row: str
    column: str

    def __str__(self) -> str:
        return self.row if self.column == ALL else f"{self.row} @ {self.column}"


class StudyPlan(Frozen):
    """What one invocation runs; stored whole in plan.json, so that a resumed one does the same."""

    kind: Literal["sweep", "table"] = "table"
    """Which command runs it."""
    name: FileName
    """Its file's."""
    scale: str
    """laptop, desktop or paper."""
    answers: str
    """The question."""
    experiment: str
    """The experiment of rows that name none."""
    bases: dict[str, Tree]
    """The experiments that rows are based on, as trees."""
    set: Tree
    """Keys of every cell's experiment."""
    given: Tree
    """The command line's, above all others but what is tuned."""
    rows: dict[str, RowPlan]
    """The methods; a sweep has one."""
    columns: dict[str, Tree]
    """The settings, with their keys; a sweep has one."""
    curve: str | None = None
    """The key whose values, numbers in ascending order, are the columns."""
    metrics: list[str]
    """The metrics that are shown; claims are about the first."""
    choose: str
    """The metric that chooses."""
    select: Select
    """On which images; `nothing`: a sweep's grid that is a figure, without a best configuration."""
    validation_fraction: float | None
    """The share of training images that choose, where an experiment sets none."""
    at: Literal["best", "final"]
    """The round whose numbers count."""
    tuning: Tuning
    """How configurations are chosen."""
    report: Reporting
    """The seeds and rounds of what is reported."""
    claims: list[Any] = Field(default_factory=list)
    """What verdicts are on."""
    paper: PaperNumbers | None = None
    """The paper's numbers, shown next to ours."""
    confidence: float = 0.95
    """Of intervals and verdicts."""
    test: TestKind = "fixed"
    """How claims are tested; see `fedray.compare.paired.PairedTest`."""
    max_concurrent: int | None = None
    """Runs at a time; None: as many as the cluster holds."""
    hours: float | None = None
    """About how long it takes, says the file."""
    glosses: dict[str, str] = Field(default_factory=dict)
    """What a row or a column is, in a sentence."""
    left_out: str = ""
    """What of the paper's table this scale does not have."""
    mean_over: str | None = None
    """The axis of a sweep over whose values configurations are averaged."""

    @model_validator(mode="before")
    @classmethod
    def _table(cls, tree: Any) -> Any:
        """Read `table`, as published tables call their name."""
        if isinstance(tree, Mapping) and "table" in tree:
            return {"name" if key == "table" else key: value for key, value in tree.items()}
        return tree

    @property
    def is_sweep(self) -> bool:
        """Return True if it is one cell whose configurations are compared over all seeds."""
        return self.kind == "sweep"

    @property
    def places(self) -> list[Place]:
        """Return all cells, row by row."""
        return [Place(row, column) for row in self.rows for column in self.columns]

    @property
    def tuning_seeds(self) -> list[int]:
        """The seeds that configurations are compared on; `seeds_of` a row may be more."""
        return self.report.seeds if self.tuning.once is None else self.tuning.once

    def seeds_of(self, row: str) -> list[int]:
        """Return the seeds that a row reports: its own, and those of rows that it tunes for."""
        rows = [name for name in self.rows if row in (name, self.rows[name].tuned_as)]
        more = [seed for name in rows for seed in self.report.more.get(name, ())]
        return list(dict.fromkeys([*self.report.seeds, *more]))

    @property
    def axes(self) -> list[Axis]:
        """Return the space of a sweep."""
        return next(iter(self.rows.values())).axes

    @property
    def plugins(self) -> list[Tree]:
        """The plug-ins with their texts; all experiments of a study have the same."""
        return list(next(iter(self.bases.values())).get("plugins", ()))

    @property
    def how(self) -> str:
        """Return the mark of a chosen number: "best on validation"."""
        chosen = self.chosen_by(next(iter(self.rows)))
        if self.select == "nothing" or not (chosen.startswith(VALIDATION) or _is_on_test(chosen)):
            return self.at
        on: Literal["validation", "test"] = (
            "validation" if chosen.startswith(VALIDATION) else "test"
        )
        return BEST[on].replace("best", self.at)

    def leader(self, place: Place) -> Place:
        """Return the cell that tunes for a cell: itself, unless the file says otherwise."""
        return Place(self.rows[place.row].tuned_as or place.row, self.tuning.at or place.column)

    def measures(self, row: str) -> dict[str, str]:
        """Return the metric that a row measures for each metric of the study."""
        own = self.rows[row].metrics
        found = {metric: own.get(metric, metric) for metric in self.metrics}
        return {metric: name for metric, name in found.items() if name is not None}

    def chosen_by(self, row: str) -> str:
        """Return the metric by which a row's configurations and rounds are chosen.

        Raises:
            UserError: if it is one of the test that validation images cannot give.
        """
        return self._choosers[row]

    @cached_property
    def _choosers(self) -> dict[str, str]:
        names = {
            name: row.metrics.get(self.choose) or self.choose for name, row in self.rows.items()
        }
        if self.select != "validation":
            return names
        return {row: objective(name) for row, name in names.items()}

    def paper_of(self, row: str, column: str | None) -> tuple[float, float | None] | None:
        """Return the paper's mean and spread of a cell, or of the mean over columns (None).

        A table of one column has the paper's mean there, if it has nothing nearer. None: the paper
        has no such number.
        """
        if self.paper is None:
            return None
        found = self.paper.of(row, MEAN if column is None else column)
        return self.paper.of(row, MEAN) if found is None and len(self.columns) == 1 else found

    def parsed_claims(self) -> list[Claim]:
        """Return the inequalities."""
        return parse_claims(self.claims, list(self.rows), list(self.columns), self.metrics)

    def experiment_of(self, place: Place, config: Config, phase: Phase, seed: int) -> Experiment:
        """Return the experiment of one run.

        The study's keys, the row's algorithm, the column's keys, the report's rounds, the row's
        keys, the command line's, the tuning's rounds and the configuration's are laid on each other
        in this order: a row that sets its rounds reports them, and tunes as long as all others.
        Of the study's plug-ins it has those that it uses: another row's makes it no other run.

        Raises:
            UserError: if it is out of bounds or contradicts itself.
        """
        from fedray.runtime.resolve import from_tree

        row = self.rows[place.row]
        base = self.bases[row.experiment or self.experiment]
        pairs = [*self.defaults(base), *parents_first(self.set.items())]
        if row.algorithm is not None:
            pairs.append(("algorithm", row.algorithm))
        pairs += [
            *parents_first(self.columns[place.column].items()),
            *_rounds(self.report.rounds),
            *parents_first(row.set.items()),
            *parents_first(self.given.items()),
            *_rounds(self.tuning.rounds if phase == "tuning" else None),
            *parents_first(config.items()),
            ("seed", seed),
        ]
        return with_used_plugins(from_tree(base, pairs))

    def defaults(self, base: Tree) -> Iterator[tuple[str, Any]]:
        """Yield what a study sets if the experiment does not: validation images, and one worker.

        A study has many runs, which together use more processors than each run alone.
        """
        if self.select != "nothing":
            yield "report.select", self.select
        if "workers" not in base:
            yield "workers", 1
        if self.validation_fraction is not None and flatten(base).get(FRACTION) is None:
            yield FRACTION, self.validation_fraction

    def configurations(self, row: str) -> list[Config]:
        """Return what is tried first for a row; one configuration if nothing is searched.

        What tpe tries is asked for while the study goes.
        """
        axes, tuning = self.rows[row].axes, self.tuning
        if not axes or tuning.search == "grid":
            return grid(axes, tuning.configurations if self.is_sweep else None)
        if tuning.search == "tpe":
            return []
        return draws(axes, tuning.configurations or 1, tuning.search_seed)


def _rounds(rounds: int | None) -> list[tuple[str, Any]]:
    return [] if rounds is None else [("rounds", rounds)]


def declared() -> tuple[Metric, ...]:
    """Return what all metrics mean, those of methods' analyses too."""
    from fedray.core import algorithms
    from fedray.evaluation.metrics import declared_metrics
    from fedray.evaluation.protocols import analysis_metrics

    analyses = [each for method in algorithms.entries() for each in analysis_metrics(method)]
    return (*declared_metrics(), *analyses)


def _is_on_test(name: str) -> bool:
    meant = find_metric(name, declared())
    return meant is not None and meant.on == "test"


def objective(name: str) -> str:
    """Return the validation metric of a test metric; any other unchanged.

    Raises:
        UserError: if there is none.
    """
    meant = find_metric(name, declared())
    if meant is None or meant.on != "test":
        return name
    if f"{VALIDATION}{meant.name}" not in {each.name for each in declared()}:
        raise UserError(
            f"metric: {name} exists on test images alone, and select=validation chooses on "
            "validation images; choose by another metric (choose: ...) and show this one beside "
            "it, or set select: test, or for a sweep's figure select: nothing (with at: final)"
        )
    return f"{VALIDATION}{name}"


def run_key(experiment: Experiment) -> str:
    """Return what two runs share that would give the same numbers: it names their folder.

    The place of the data counts too: an identity alone does not know one set from another before
    its images have been read.
    """
    what = json.dumps([experiment.identity(), experiment.data.root])
    return hashlib.sha256(what.encode()).hexdigest()[:24]
