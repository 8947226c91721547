"""The design of a table: its rows, columns, claims and effort, as its record holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from fedray.base.errors import UserError, shown
from fedray.config import FileName, Frozen, Tree, is_key, override
from fedray.results.claims import ALL, MEAN, Claim, ClaimEntry, parse_claims
from fedray.results.paired import PairedTest, Side
from fedray.results.printed_numbers import PaperNumber, first_number
from fedray.storage.metric import Select

MOST_SEEDS = 1_000
MOST_CONFIGURATIONS = 100_000
PRINTED = "printed"
"""The scale of a paper's own protocol."""
OTHERS = "*"
"""Key of the paper's numbers for all columns that have no entry."""
Config = dict[str, Any]
"""The values of the searched keys."""
Search = Literal["grid", "random", "optuna"]


def check_keys(tree: Any) -> Tree:
    """Return keys of an experiment that a study may set; raise a ValueError for anything else."""
    if not isinstance(tree, dict):
        raise ValueError(f"expected keys with values, for example {{lr: 0.1}}, found {shown(tree)}")
    for key in tree:
        if not is_key(key):
            raise ValueError(f"{shown(key)} is no key")
        if key == "seed" or key.partition(".")[0] == "report":
            raise ValueError(f"{key} belongs to the study; write report: {{seeds: [0], ...}}")
    return tree


Keys = Annotated[Tree, BeforeValidator(check_keys)]
"""Dotted keys of an experiment with their values."""


class Asha(Frozen):
    """Asynchronous successive halving (ASHA), counted in federated rounds."""

    grace_rounds: int = Field(5, ge=1, le=100_000)
    """Rounds before a run may be stopped."""
    reduction_factor: int = Field(3, ge=2, le=10_000)
    """At each milestone, one in this many runs continues."""


class Tuning(Frozen):
    """The tuning budget, equal for every row in every column.

    Each reported seed tries every configuration and chooses by its own validation images, so that a
    test over seeds includes the randomness of tuning.
    """

    configurations: int | None = Field(5, ge=1, le=MOST_CONFIGURATIONS)
    """Maximum number of configurations. The grid of a table is continued within this budget if the
    choice lies at its end. None, for the grid of a sweep: all."""
    rounds: int | None = Field(None, ge=1, le=100_000)
    """Rounds of a tuning run; the chosen configuration is then run for the report's rounds. None:
    the report's rounds."""
    search: Search = "grid"
    """grid: every combination; random: independent draws; optuna: its TPE, for sweeps."""
    at: str | None = None
    """The column that is tuned; its choice is reported in all columns. None: every column is tuned
    by itself."""
    asha: Asha | None = None
    """Stops bad runs of a sweep early; None runs all to the end."""


class Reporting(Frozen):
    """The runs that are reported."""

    select: Select | None = None
    """The images on which configurations and rounds are chosen. `test` is common in papers and
    marks every number. None: validation images; in a sweep and at scale printed, the experiment's
    report.select."""
    seeds: list[int] = Field(default_factory=lambda: [0, 1, 2, 3, 4], max_length=MOST_SEEDS)
    """Seeds of the reported runs, which differ."""
    rounds: int | None = Field(None, ge=1, le=100_000)
    """Rounds of a run; None: the experiment's."""
    looks: int = Field(0, ge=0, le=MOST_SEEDS)
    """How many times verdicts were seen before seeds were added or the table was changed. The
    correction counts these looks, and the table's page says so."""

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, seeds: list[int]) -> list[int]:
        if not seeds or len(set(seeds)) < len(seeds) or not 0 <= min(seeds) <= max(seeds) < 2**63:
            raise ValueError(
                f"expected different whole numbers from 0, for example [0], found {shown(seeds)}"
            )
        return seeds


def seeds_text(seeds: Sequence[int]) -> str:
    """Return a text such as "seed 1" or "seeds 0, 2"."""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


class PaperNumbers(Frozen):
    """The numbers of a paper, in the unit of the table (shares in per cent).

    Numbers of the four papers are read from fedray/papers/NAME.csv: `item`, `rows` and `columns`
    name them there.
    """

    source: str = Field(max_length=300)
    """The paper, its version and the table."""
    numbers: dict[str, PaperNumber | dict[str, PaperNumber]] = Field(default_factory=dict)
    """By row, then by column. `"*"` stands for all other columns, `mean` for the paper's mean over
    columns. A row without columns has one number for all columns."""
    item: str = Field("", exclude=True)
    """Paper and item, with further items after commas: `fedglcl, Table 13, Table 2`."""
    rows: dict[str, str | list[str]] = Field(default_factory=dict, exclude=True)
    """The label, or labels, that a row has in these items; the first number found counts."""
    columns: dict[str, str | list[str]] = Field(default_factory=dict, exclude=True)
    """The label, or labels, that a column, `"*"` or `mean` has in these items; or a metric of the
    table, `accuracy_amazon`, where the paper prints it as a column."""
    metric: str | dict[str, str] | None = Field(None, exclude=True)
    """The metric in these items; None: their only one. Several by the table's metrics, the first of
    which is the table's first."""
    from_means: list[str] = Field(default_factory=list)
    """Metrics of the table whose mean over columns the paper computes from means (FedMGP's CM)."""
    others: dict[str, dict[str, dict[str, PaperNumber]]] = Field(default_factory=dict)
    """`numbers` of the table's further metrics."""

    def complete(self) -> PaperNumbers:
        """Return the numbers alone, with those that `item` names.

        Raises:
            UserError: if the paper has no such row.
        """
        if not self.item:
            return self
        metrics = self.metric if isinstance(self.metric, dict) else {"": self.metric}
        numbers, *others = [self._found(*names) for names in metrics.items()]
        for row in (row for row in self.rows if not numbers.get(row)):
            raise UserError(
                f"paper.rows.{row}: {self.item} has no number of {shown(self.rows[row])}"
            )
        further = dict(zip([*metrics][1:], others, strict=True))
        return PaperNumbers(
            source=self.source,
            numbers=numbers | self.numbers,
            from_means=self.from_means,
            others=further,
        )

    def _found(self, ours: str, metric: str | None) -> dict[str, dict[str, PaperNumber]]:
        """Return the item's numbers of a metric of the table by row and column."""
        paper, *items = map(str.strip, self.item.split(","))
        found: dict[str, dict[str, PaperNumber]] = {}
        columns = {OTHERS: self.columns[ours]} if ours in self.columns else self.columns
        for (row, labels), (column, names) in product(self.rows.items(), columns.items()):
            if (number := first_number(paper, items, labels, names, metric)) is not None:
                found.setdefault(row, {})[column] = number.with_doubt
        return found


class RowPlan(Frozen):
    """A method, or a control: as the file has it, or complete at one scale."""

    algorithm: Any = None
    """The method, with or without hyper-parameters; None: the algorithm of the row's name, or else
    the experiment's algorithm."""
    set: Keys = Field(default_factory=dict)
    """Keys of the row's experiment."""
    space: Tree = Field(default_factory=dict)
    """Axes added to the table's space; null removes an axis of the table. In a plan, all axes."""
    tuned_as: str | None = None
    """The row whose chosen configuration this row takes over instead of tuning; for controls and
    for figures of a hyper-parameter."""
    label: str = Field("", max_length=45)
    """The row's label in the table; empty: the title of the method of this name, or else the row's
    name. Explain it in `glosses` of the table."""
    metrics: dict[str, str | None] = Field(default_factory=dict)
    """The row's metrics by the table's, where they differ, for example `local_accuracy:
    finetuned_accuracy`. They also replace the metric that chooses. null: the row lacks it."""
    control: str | None = Field(None, min_length=3, max_length=300)
    """Makes the row a control: the statement that the row would refute if it did as well."""
    of: str | None = None
    """The row whose gain the control tries to explain; None: the table's first row."""
    over: str | None = None
    """The row over which the gain is measured; None: the control has one claim, and its share of
    the gain is not shown."""


@dataclass(frozen=True)
class Place:
    """A cell of the study."""

    row: str
    column: str

    def __str__(self) -> str:
        return self.row if self.column == ALL else f"{self.row} @ {self.column}"


class Design(Frozen):
    """What a table compares, and how: all that its page says of its plan."""

    kind: Literal["sweep", "table"] = "table"
    """The command that runs the study."""
    name: FileName
    """The name of the study's file."""
    scale: str
    """laptop, desktop, paper or printed."""
    answers: str = Field("", max_length=500)
    """The table, figure or question that the study answers; empty: how the methods compare."""
    experiment: str
    """A shipped experiment or a YAML file that rows and columns change. A table's default is
    fedavg_digits."""
    base: Tree = Field(default_factory=dict)
    """The experiment as a tree."""
    set: Keys = Field(default_factory=dict)
    """Keys of the experiment, for every cell."""
    given: Keys = Field(default_factory=dict)
    """Keys of the command line, which override all keys that are not tuned."""
    rows: dict[str, RowPlan]
    """Of a table, methods by name: `mine: {algorithm: {name: fedtsp, lambda: 7}}`, or `mine:
    fedtsp`. A row without an algorithm whose name is an algorithm uses it. At a scale, null leaves
    a row out. A sweep has one row."""
    columns: dict[str, Keys] = Field(default_factory=dict)
    """Settings by name, each a mapping of the experiment's keys that it sets; empty: one column."""
    curve: str | None = None
    """The key whose values, numbers in ascending order, are the columns. A file writes, instead of
    columns, `algorithm.lambda: [0, 1, 7]`, which makes the columns lambda=0, lambda=1 and lambda=7,
    and the figure a curve."""
    metrics: list[str] = Field(default_factory=lambda: ["local_accuracy"], min_length=1)
    """The metrics of the table; claims are about the first, unless they name another."""
    choose: str = ""
    """The metric that chooses configurations and rounds; empty: the first one of `metrics`."""
    validation_fraction: float | None = Field(0.2, gt=0, lt=1)
    """Share of images that clients hold out if the experiment sets none; null if its partition
    makes the validation split."""
    at: Literal["best", "final"] = "best"
    """The round whose numbers count: the best by the metric that chooses (never round 0), or the
    last."""
    tuning: Tuning = Tuning()
    """`configurations`, `rounds`, `search`: see `Tuning`. A sweep extends no grid, and tries all of
    it."""
    report: Reporting = Reporting()
    """`seeds`, `rounds`, `select`, `looks`: see `Reporting`. A sweep's default is one seed."""
    claims: list[ClaimEntry] = Field(default_factory=list)
    """Inequalities between cells, see `fedray.results.claims`; a file without claims: each method
    of `rows` is better than each baseline."""
    paper: PaperNumbers | None = None
    """`source` and `numbers`: see `PaperNumbers`; shown next to ours."""
    max_concurrent: int | None = Field(None, ge=1, le=100_000)
    """Concurrent runs; None: as many as the cluster holds."""
    hours: float | None = Field(None, gt=0, le=1e6)
    """Approximate duration on one core; printed before the study starts."""
    glosses: dict[str, str] = Field(default_factory=dict)
    """Sentences about rows or columns, by name, printed below the table."""
    left_out: str = Field("", max_length=1000)
    """Parts of the paper's table that this scale leaves out."""

    @property
    def select(self) -> Select:
        """The images that choose."""
        return self.report.select or "validation"

    @property
    def is_printed(self) -> bool:
        """True at the paper's own protocol, where nothing is tuned or claimed."""
        return self.scale == PRINTED

    @property
    def title(self) -> str:
        """The name, and the scale unless it is the default."""
        return self.name if self.scale == "laptop" else f"{self.name} [{self.scale} scale]"

    @property
    def only_column(self) -> str:
        """The title of a table's only column: its name, or that of its images."""
        from fedray.data.known import title_of

        [(name, column)] = self.columns.items()
        if column:
            return name
        pairs = [*self.set.items(), *self.given.items()]
        data = override(self.base, pairs).get("data", {})
        source = data.get("source", "digits")
        return title_of(source["name"] if isinstance(source, Mapping) else source, data.get("root"))

    @property
    def places(self) -> list[Place]:
        """All cells, row by row."""
        return [Place(row, column) for row in self.rows for column in self.columns]

    def leader(self, place: Place) -> Place:
        """Return the cell that tunes for `place`, which `tuned_as` and `tuning.at` may change."""
        return Place(self.rows[place.row].tuned_as or place.row, self.tuning.at or place.column)

    def measures(self, row: str) -> dict[str, str]:
        """Return the row's metric for each metric of the study, without those it lacks."""
        row_metrics = self.rows[row].metrics
        names = {metric: row_metrics.get(metric, metric) for metric in self.metrics}
        return {metric: name for metric, name in names.items() if name is not None}

    def paper_of(
        self, row: str, column: str | None, metric: str = ""
    ) -> tuple[float, float | None] | None:
        """Return the paper's mean and spread, or None if the paper has no such number.

        A table of one column falls back to the paper's mean over columns.

        Args:
            row: the row.
            column: the column; None: the mean over columns.
            metric: a metric of the table; "": the first.
        """
        entry = self._printed(row, column, metric)
        if isinstance(entry, tuple):
            return entry[0], entry[1]
        return None if entry is None else (float(entry), None)

    def is_doubtful(self, row: str, column: str | None, metric: str) -> bool:
        """Return True if the paper, or what is known of it, contradicts its number."""
        entry = self._printed(row, column, metric)
        return isinstance(entry, tuple) and len(entry) == 3

    def _printed(self, row: str, column: str | None, metric: str) -> PaperNumber | None:
        if self.paper is None:
            return None
        numbers: Mapping[str, Any] = self.paper.numbers
        if metric not in ("", self.metrics[0]):
            numbers = self.paper.others.get(metric, {})
        columns = numbers.get(row)
        if not isinstance(columns, dict):
            return None if column is None else columns
        entry: PaperNumber | None = columns.get(MEAN if column is None else column)
        if entry is None and column is not None:
            entry = columns.get(OTHERS, columns.get(MEAN) if len(self.columns) == 1 else None)
        return entry

    @property
    def from_means(self) -> list[str]:
        """The metrics whose mean over columns is computed as the paper does, at its protocol."""
        return self.paper.from_means if self.paper and self.is_printed else []

    def parsed_claims(self) -> list[Claim]:
        """Return the claims of the file, and those of its controls."""
        claims = parse_claims(self.claims, list(self.rows), list(self.columns), self.metrics)
        asked = {claim.test for claim in claims}
        of_controls = [claim for name in self.controls for claim in self.claims_of(name)]
        return [*claims, *(claim for claim in of_controls if claim.test not in asked)]

    @property
    def controls(self) -> dict[str, RowPlan]:
        """The rows that are controls, by name."""
        return {name: row for name, row in self.rows.items() if row.control and row.of}

    def claims_of(self, control: str) -> list[Claim]:
        """Return the claims of a control; only the first if it names no baseline.

        The method is better than the control, which is better than the mean of method and baseline.
        """
        row, own, metric = self.rows[control], self.whole(control), self.metrics[0]
        method = self.whole(row.of or "")
        sides = [(method, own)]
        if row.over is not None:
            sides.append((own, replace(method, other=row.over)))
        return [Claim(*pair, 0.0, metric, metric, source="control") for pair in sides]

    def whole(self, row: str) -> Side:
        """Return a row's mean over columns, or its only column, as a side of a comparison."""
        return Side(row, None if len(self.columns) > 1 else next(iter(self.columns)))

    @property
    def shown_columns(self) -> list[str | None]:
        """The columns, followed by None for their mean if there are several."""
        return [*self.columns, *([None] if len(self.columns) > 1 else [])]

    @property
    def paired_test(self) -> PairedTest:
        """The test of all differences."""
        return PairedTest(looks=1 + self.report.looks)
