"""The record of a table: its design, its runs, and what each cell chose and reports.

table.json holds a record. A number stands once, with the run that measured it; means, intervals,
differences and verdicts are computed from the runs. Numbers that are shown are in the unit of the
table: shares in per cent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

from fedray.base.errors import UserError, shown
from fedray.config import Frozen, Tree, validate
from fedray.results.claims import Claim
from fedray.results.design import Config, Design, Place
from fedray.results.numbers import Numbers, scale_of
from fedray.results.paired import Comparison, Side, Verdict, holm, verdict_of
from fedray.storage.files import read_json
from fedray.storage.metric import Metric
from fedray.storage.run import Work

DATA = "table.json"
FORMAT = 8
"""Version of table.json; a number stands once, and verdicts are computed."""
DIVERGED = "it diverged"
"""First words of the reason of a run with a number that was not finite. Only such failures count
against a configuration."""


Reading = Literal[
    "explains it away",
    "explains most of it",
    "does not explain it away",
    "open",
    "open: whether there is a gain",
    "there is no gain to explain",
]
"""What a control shows."""


class Measured(Frozen):
    """The result of a finished run."""

    round: int
    """The selected round, 1 or later."""
    choice: float
    """The metric that selected this round."""
    less_is_better: bool = False
    """True if smaller values of `choice` are better."""
    values: dict[str, float]
    """Metrics in this round, by the run's names."""
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

    @property
    def score(self) -> float:
        """`choice` with its sign such that larger is better."""
        return -self.choice if self.less_is_better else self.choice


def frame_lines(
    where: tuple[str, str, int],
    end: Measured | str,
    metrics: Mapping[Metric, str],
    folder: str,
    status: str = "finished",
) -> Iterator[list[Any]]:
    """Yield the lines of a run in the frame of numbers, one for each metric.

    Args:
        where: row, column and seed.
        end: the result, or why there is none.
        metrics: the metrics that are shown, each with its name in the run.
        folder: the run's folder.
        status: what the frame says of a run with a result.
    """
    for metric, own in metrics.items():
        found: list[float] = [math.nan] * 4
        if isinstance(end, Measured) and own in end.values:
            found = [scale_of(metric) * end.values[own], end.round, end.seconds, end.bytes]
        yield [*where, metric.name, *found, end if isinstance(end, str) else status, folder]


class FailedRun(Frozen):
    """A run without a result."""

    reason: str
    """Why the run failed, or which metric it lacks."""
    seconds: float = 0.0
    """Time that the invocation of the table spent on it."""

    @property
    def diverged(self) -> bool:
        """True if a number was not finite."""
        return self.reason.startswith(DIVERGED)


class Attempt(Frozen):
    """A configuration and the runs of the seeds that tried it."""

    config: Config
    """Values of the searched keys."""
    runs: dict[int, str]
    """Names of the runs by seed."""


class CellRecord(Frozen):
    """What a cell tried, chose and reports."""

    row: str
    """Its row."""
    column: str
    """Its column."""
    phase: Literal["tuning", "report", "over", "failed"]
    """failed: every configuration failed."""
    choices: dict[int, Config] = Field(default_factory=dict)
    """The reported configuration by seed; empty before the choice."""
    reported: dict[int, str] = Field(default_factory=dict)
    """Names of the reported runs by seed."""
    tried: list[Attempt] = Field(default_factory=list)
    """The tuning runs; empty if another cell tunes."""

    @property
    def place(self) -> Place:
        """Row and column."""
        return Place(self.row, self.column)

    @property
    def chosen(self) -> Config | None:
        """The configuration that most seeds chose; ties go to the earlier seed."""
        choices = list(self.choices.values())
        return max(choices, key=choices.count, default=None)


class Made(Frozen):
    """How a table was made."""

    command: str
    """The command that repeats it."""
    commit: str
    """Commit of the code that wrote the page."""
    versions: str
    """Versions of the most important packages."""
    machine: str
    """Description of the machine."""
    when: str
    """Local time."""
    shared: int
    """Number of runs that existed when the invocation began."""
    tuning_rounds: str
    """Rounds of a tuning run; "10-20" if cells differ."""
    report_rounds: str
    """Rounds of a reported run."""


@dataclass(frozen=True)
class ClaimResult:
    """The verdict on a claim.

    Attributes:
        claim: the claim.
        comparison: the comparison of its sides.
        p_holm: its p, corrected for the number of claims; None for fewer than two seeds.
    """

    claim: Claim
    comparison: Comparison
    p_holm: float | None

    @property
    def verdict(self) -> Verdict:
        """What the corrected test says."""
        return verdict_of(self.comparison, self.p_holm)


class TableRecord(Frozen):
    """The record of a table."""

    format: int = FORMAT
    """See `FORMAT`."""
    made: Made
    """How the table was made."""
    plan: Design
    """The plan of the table."""
    metrics: dict[str, Metric]
    """Declarations of the runs' metrics by name."""
    runs: dict[str, Measured | FailedRun]
    """The runs that have ended, by name: what determines a run, and after a dot, what chooses its
    round. So a run of which rows choose two rounds has two entries."""
    cells: list[CellRecord]
    """The cells, row by row."""
    notes: list[str] = Field(default_factory=list)
    """Caveats and other notes below the table."""

    # --- runs -------------------------------------------------------------------------------------

    @property
    def finished(self) -> list[Measured]:
        """The runs with a result."""
        return [run for run in self.distinct if isinstance(run, Measured)]

    @property
    def commits(self) -> list[str]:
        """Commits of the code that made the runs; "unknown" for code without a checkout."""
        return sorted({run.versions.get("git", "unknown") for run in self.finished})

    @property
    def distinct(self) -> list[Measured | FailedRun]:
        """The runs, each once."""
        results_last = sorted(self.runs.items(), key=lambda item: isinstance(item[1], Measured))
        return list({name.partition(".")[0]: run for name, run in results_last}.values())

    @property
    def seconds(self) -> float:
        """Computing time of all runs."""
        return sum(run.seconds for run in self.distinct)

    @property
    def bytes(self) -> int:
        """Bytes sent and received in all runs."""
        return sum(run.bytes for run in self.finished)

    def cell(self, place: Place) -> CellRecord:
        """Return a cell."""
        return next(cell for cell in self.cells if cell.place == place)

    def reported(self, cell: CellRecord) -> dict[int, Measured]:
        """Return the reported runs of a cell that have all metrics of its row, by seed."""
        return {
            seed: run
            for seed, name in cell.reported.items()
            if isinstance(run := self.runs.get(name), Measured) and self._lacking(cell, run) is None
        }

    def reasons(self, cell: CellRecord) -> dict[int, str]:
        """Return why seeds of a cell have no numbers."""
        ends = {seed: self.runs.get(name) for seed, name in cell.reported.items()}
        reasons = {
            seed: run.reason if isinstance(run, FailedRun) else self._lacking(cell, run)
            for seed, run in ends.items()
            if run is not None
        }
        return {seed: reason for seed, reason in reasons.items() if reason is not None}

    def _lacking(self, cell: CellRecord, run: Measured) -> str | None:
        names = self.plan.measures(cell.row).values()
        lacking = next((name for name in names if name not in run.values), None)
        return None if lacking is None else f"metric: no round has '{lacking}'"

    def has_failed(self, attempt: Attempt) -> bool:
        """Return True if a run of an attempt failed."""
        return any(isinstance(self.runs.get(name), FailedRun) for name in attempt.runs.values())

    # --- numbers ----------------------------------------------------------------------------------

    @cached_property
    def shown(self) -> list[Metric]:
        """The table's metrics, as the first row that measures each declares it."""
        return [self.metric(name) for name in self.plan.metrics]

    def metric(self, name: str) -> Metric:
        """Return the declaration of a metric of the table."""
        names = (self.plan.measures(row).get(name) for row in self.plan.rows)
        measured = [self.metrics[own] for own in names if own in self.metrics]
        return replace(measured[0], name=name) if measured else Metric(name)

    @cached_property
    def numbers(self) -> Numbers:
        """The reported runs of all cells as one frame; `folder` is a run's name in the record."""
        lines: list[list[Any]] = []
        for cell in self.cells:
            names = {self.metric(m): own for m, own in self.plan.measures(cell.row).items()}
            ends: dict[int, Measured | str] = {**self.reasons(cell), **self.reported(cell)}
            for seed, end in ends.items():
                where = cell.row, cell.column, seed
                lines += frame_lines(where, end, names, cell.reported[seed])
        numbers = Numbers.of(lines, self.plan.columns, self.plan.paired_test)
        return replace(numbers, from_means=self.plan.from_means)

    @property
    def has_numbers(self) -> bool:
        """True if any cell has a number."""
        return bool(self.numbers.frame["value"].notna().any())

    # --- comparisons ------------------------------------------------------------------------------

    @cached_property
    def claims(self) -> list[ClaimResult]:
        """The claims of the plan with their verdicts, in their order."""
        claims = self.plan.parsed_claims()
        compared = [
            self.numbers.compare(claim.better, claim.worse, claim.metric, claim.than, claim.margin)
            for claim in claims
        ]
        ps = holm([comparison.p for comparison in compared])
        return list(map(ClaimResult, claims, compared, ps))

    @cached_property
    def against(self) -> list[Comparison]:
        """The first row against each other row, by column and on the mean over columns."""
        first, *rivals = self.plan.rows
        return [
            self.numbers.compare(Side(first, column), Side(other, column), self.plan.metrics[0])
            for other in rivals
            for column in self.plan.shown_columns
        ]

    # --- controls ---------------------------------------------------------------------------------

    def gain(self, control: str) -> Comparison | None:
        """Return the gain of a control's method over the baseline; None if it names none."""
        row, whole = self.plan.controls[control], self.plan.whole
        if row.of is None or row.over is None:
            return None
        return self.numbers.compare(whole(row.of), whole(row.over), self.plan.metrics[0])

    def share_of_gain(self, control: str) -> float | None:
        """Return the share of the gain that a control reaches too; None if there may be no gain."""
        gain, metric = self.gain(control), self.plan.metrics[0]
        if gain is None or verdict_of(gain, gain.p) != "holds":
            return None
        own = self.numbers.by_seed(self.plan.whole(control), metric)
        base = self.numbers.by_seed(gain.worse, metric)
        seeds = [seed for seed in gain.differences if seed in own]
        if not seeds:
            return None
        reached = fmean(own[seed] - base[seed] for seed in seeds)
        return reached / fmean(gain.differences[seed] for seed in seeds)

    def reading(self, control: str) -> Reading:
        """Return what a control shows of its method's gain, from the verdicts on its claims.

        It is read only if the gain is above 0 by its test, not corrected.
        """
        verdicts = {result.claim.test: result.verdict for result in self.claims}
        below, *near = [verdicts[claim.test] for claim in self.plan.claims_of(control)]
        gain = self.gain(control)
        if gain is not None and verdict_of(gain, gain.p) != "holds":
            is_loss = gain.interval is not None and gain.interval.high <= 0
            return "there is no gain to explain" if is_loss else "open: whether there is a gain"
        if near == ["holds"]:
            return "explains most of it" if below == "holds" else "explains it away"
        if below == "refuted":
            return "explains it away"
        return "does not explain it away" if below == "holds" else "open"

    # --- the file ---------------------------------------------------------------------------------

    def tree(self) -> Tree:
        """Return the content of table.json, without its checksum."""
        runs = {
            name: run.model_dump(mode="json", exclude_defaults=True)
            for name, run in self.runs.items()
        }
        tree = self.model_dump(mode="json", exclude={"runs"})
        parsed: Tree = json.loads(json.dumps({**tree, "runs": runs}))  # all keys are strings
        return parsed

    @classmethod
    def read(cls, path: Path) -> TableRecord:
        """Read a table.json.

        Raises:
            UserError: if the file is missing, damaged, edited or of another format.
        """
        if not path.is_file():
            raise UserError(
                f"{path} does not exist; name the folder of a table's invocation, as fedray table "
                "prints it"
            )
        tree = read_json(path, is_sealed=True)
        if tree.get("format") != FORMAT:
            raise UserError(
                f"{path} has format {shown(tree.get('format'))}, this version reads {FORMAT}; run "
                "the table again in the results folder that has its runs"
            )
        return validate(cls, tree, str(path))
