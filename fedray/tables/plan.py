"""A table at one scale with the command line's keys: all that defines what is run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, StrictBool

from fedray.config import Experiment, FileName, Frozen, Seed, Tree, flatten, parents_first
from fedray.errors import UserError, nearest, shown
from fedray.records import VALIDATION
from fedray.sweep.spec import Axis, Config, parse_axis
from fedray.tables.claims import ALL, MEAN, Claim, parse_claims

MOST_CONFIGURATIONS = 10_000
"""Of one cell."""
MOST_SEEDS = 1_000
"""Of a phase."""
OTHERS = "*"
"""Any column that is not named."""
FRACTION = "data.validation_fraction"
Phase = Literal["tuning", "report"]


class Tuning(Frozen):
    """What is spent on the choice of a configuration: the same for every row, in every column."""

    seeds: list[int] = Field(default_factory=lambda: [100], max_length=MOST_SEEDS)
    """Seeds that configurations are compared on; best others than those that are reported."""
    configurations: int = Field(5, ge=1, le=MOST_CONFIGURATIONS)
    """How many may be tried, those included by which a grid is continued."""
    rounds: int | None = Field(None, ge=1, le=100_000)
    """Rounds of a tuning run; None: as in the report."""
    search: Literal["grid", "random"] = "grid"
    """grid: every combination; random: so many draws."""
    extend: StrictBool = True
    """Whether a grid goes on where the choice lies at its edge, up to the budget."""
    search_seed: Seed = 0
    """Seed of random draws."""
    at: str | None = None
    """The one column in which is tuned; what is chosen there is reported in all. None: each tunes
    by itself."""


class Reporting(Frozen):
    """The runs of the chosen configuration."""

    seeds: list[int] = Field(default_factory=lambda: [0, 1, 2], max_length=MOST_SEEDS)
    """Seeds that are reported."""
    rounds: int | None = Field(None, ge=1, le=100_000)
    """Rounds of a run; None: the experiment's."""
    looked_at: list[list[int]] = Field(default_factory=list, max_length=MOST_SEEDS)
    """Seeds whose verdicts were known when the others were added, once for each time: a second look
    at the data, which the correction does not know of and the page says."""


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
        """A cell's mean and spread, or those of the mean over columns; None where there is none."""
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
    """What stands for a metric of the table in this row; null: it has none such."""
    control: str | None = None
    of: str | None = None
    """Of a control, the row that it is to explain."""
    tuned_as: str | None = None
    """The row whose choice it takes over."""
    over: str | None = None
    """Of a control, the row over which that one's gain is; None: the nearest."""

    @property
    def axes(self) -> list[Axis]:
        """What is tuned."""
        return [parse_axis(key, tree) for key, tree in self.space.items()]


@dataclass(frozen=True)
class Place:
    """A cell of the table."""

    row: str
    column: str

    def __str__(self) -> str:
        return self.row if self.column == ALL else f"{self.row} @ {self.column}"


class TablePlan(Frozen):
    """What one invocation runs; stored whole in plan.json, so that a resumed one does the same."""

    table: FileName
    scale: str
    answers: str
    experiment: str
    bases: dict[str, Tree]
    """The experiments that rows are based on, as trees."""
    set: Tree
    """Keys of every cell's experiment."""
    given: Tree
    """The command line's, above all others but what is tuned."""
    rows: dict[str, RowPlan]
    columns: dict[str, Tree]
    curve: str | None = None
    """The key whose values, numbers in ascending order, are the columns."""
    metrics: list[str]
    choose: str
    """The metric that chooses."""
    select: Literal["validation", "test"]
    validation_fraction: float | None
    at: Literal["best", "final"]
    tuning: Tuning
    report: Reporting
    claims: list[Any]
    paper: PaperNumbers | None
    confidence: float
    max_concurrent: int | None
    hours: float | None = None
    """About how long it takes, says the file."""
    glosses: dict[str, str] = Field(default_factory=dict)
    """What a row or a column is, in a sentence."""
    left_out: str

    @property
    def places(self) -> list[Place]:
        """All cells, row by row."""
        return [Place(row, column) for row in self.rows for column in self.columns]

    def leader(self, place: Place) -> Place:
        """The cell that tunes for a cell: itself, unless the file says otherwise."""
        return Place(self.rows[place.row].tuned_as or place.row, self.tuning.at or place.column)

    def measures(self, row: str) -> dict[str, str]:
        """What a row measures as each metric of the table: that, or another that stands for it."""
        own = self.rows[row].metrics
        found = {metric: own.get(metric, metric) for metric in self.metrics}
        return {metric: name for metric, name in found.items() if name is not None}

    def chosen_by(self, row: str) -> str:
        """The metric by which a row's configurations and rounds are chosen."""
        name = self.rows[row].metrics.get(self.choose) or self.choose
        return name if self.select == "test" else f"{VALIDATION}{name}"

    def paper_of(self, row: str, column: str | None) -> tuple[float, float | None] | None:
        """The paper's mean and spread of a cell, or of the mean over columns, which is column None.

        A table of one column has the paper's mean there, if it has nothing nearer. None: the paper
        has no such number.
        """
        if self.paper is None:
            return None
        found = self.paper.of(row, MEAN if column is None else column)
        return self.paper.of(row, MEAN) if found is None and len(self.columns) == 1 else found

    def parsed_claims(self) -> list[Claim]:
        """The inequalities."""
        return parse_claims(self.claims, list(self.rows), list(self.columns), self.metrics)

    def experiment_of(self, place: Place, config: Config, phase: Phase, seed: int) -> Experiment:
        """The experiment of one run.

        The table's keys, the row's algorithm, the column's keys, the report's rounds, the row's
        keys, the command line's, the tuning's rounds and the configuration's are laid on each other
        in this order: a row that sets its rounds reports them, and tunes as long as all others.

        Raises:
            UserError: when it is out of bounds or contradicts itself.
        """
        from fedray.runtime.resolve import from_tree

        row = self.rows[place.row]
        base = self.bases[row.experiment or self.experiment]
        pairs = [*self._defaults(base), *_pairs(self.set)]
        if row.algorithm is not None:
            pairs.append(("algorithm", row.algorithm))
        pairs += [
            *_pairs(self.columns[place.column]),
            *_rounds(self.report.rounds),
            *_pairs(row.set),
            *_pairs(self.given),
            *_rounds(self.tuning.rounds if phase == "tuning" else None),
        ]
        return from_tree(base, [*pairs, *_pairs(config), ("seed", seed)])

    def _defaults(self, base: Tree) -> Iterator[tuple[str, Any]]:
        """What a table sets where the experiment does not: validation images, and one worker.

        A table has many runs, which use more processors beside each other than each by itself.
        """
        yield "report.select", self.select
        if "workers" not in base:
            yield "workers", 1
        if self.validation_fraction is not None and flatten(base).get(FRACTION) is None:
            yield FRACTION, self.validation_fraction


def _rounds(rounds: int | None) -> list[tuple[str, Any]]:
    return [] if rounds is None else [("rounds", rounds)]


def _pairs(tree: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return parents_first(tree.items())


def run_key(experiment: Experiment) -> str:
    """What is the same of two runs that would give the same numbers: it names their folder.

    The place of the data counts too: an identity alone does not know one set from another before
    its images have been read.
    """
    what = json.dumps([experiment.identity(), experiment.data.root])
    return hashlib.sha256(what.encode()).hexdigest()[:24]
