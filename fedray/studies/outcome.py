"""What a table says: cells with their spread, paired differences, verdicts on claims and controls.

Numbers are in the unit that is shown: shares in per cent.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedray.compare.caveats import table_caveats
from fedray.compare.fragile import fragility
from fedray.compare.paired import (
    Comparison,
    Interval,
    PairedTest,
    SeedRange,
    Side,
    Verdict,
    bootstrap_iqm,
    holm,
    seeds_to_decide,
    t_interval,
    verdict_of,
)
from fedray.compare.paired import compare as compared
from fedray.records import Metric
from fedray.studies.cell import Cell, CellState, Wanted
from fedray.studies.claims import Claim
from fedray.studies.controls import Compare, ControlRead, ask, read, read_columns
from fedray.studies.interim_looks import Looks, find_looks
from fedray.studies.plan import Place, StudyPlan
from fedray.studies.store import Measured, commits_of_runs
from fedray.studies.study import DIVERGED, Study


@dataclass(frozen=True)
class SeedResult:
    """A reported run.

    Attributes:
        wanted: which run.
        measured: its result; None if it failed or is not finished.
        reason: why it failed.
    """

    wanted: Wanted
    measured: Measured | None
    reason: str | None

    @property
    def seed(self) -> int:
        """Return the seed of every random stream."""
        return self.wanted.seed

    @property
    def key(self) -> str:
        """Names its folder."""
        return self.wanted.key


@dataclass(frozen=True)
class CellResult:
    """A cell.

    Attributes:
        place: which.
        state: how far it is, what was tried and chosen.
        seeds: the reported runs; none before a configuration is chosen.
        dropped: why the choices that diverged did so, in their order.
        others: the runs of the choice: those of tuning, and reports of dropped choices.
    """

    place: Place
    state: CellState
    seeds: Sequence[SeedResult]
    dropped: Sequence[str]
    others: Sequence[Wanted]

    @property
    def runs(self) -> list[Wanted]:
        """Return all runs."""
        return [*self.others, *(each.wanted for each in self.seeds)]


@dataclass(frozen=True)
class Decided:
    """What became of a claim.

    Attributes:
        claim: the claim.
        comparison: its sides.
        corrected: p, corrected for the number of claims and controls.
        verdict: see there.
        needed: how many seeds would decide it; None where it is decided, or its direction open.
        fragile: reasons why a decided one is fragile.
    """

    claim: Claim
    comparison: Comparison
    corrected: float | None
    verdict: Verdict
    needed: SeedRange | None
    fragile: Sequence[str]


@dataclass(frozen=True)
class Outcome:
    """A whole table.

    Attributes:
        plan: what was asked.
        test: of all differences.
        cells: by place.
        metrics: what is shown, with units.
        claims: verdicts.
        controls: readings.
        against: the first row against each other one, by column and on the mean.
        aggregates: by row, the interquartile mean over columns and seeds; for several columns.
        notes: what makes cells hard to compare.
        looks: earlier looks at the verdicts.
    """

    plan: StudyPlan
    test: PairedTest
    cells: Mapping[Place, CellResult]
    metrics: Sequence[Metric]
    claims: Sequence[Decided]
    controls: Sequence[ControlRead]
    against: Sequence[Comparison]
    aggregates: Mapping[str, Interval]
    notes: Sequence[str] = field(default_factory=list)
    looks: Looks = field(default_factory=Looks)

    def metric(self, name: str) -> Metric:
        """Return what a number means."""
        return next(metric for metric in self.metrics if metric.name == name)

    def by_seed(self, side: Side, metric: str) -> dict[int, float]:
        """Return a side's numbers, in the unit that is shown."""
        return by_seed(self.cells, self.plan, side, self.metric(metric))

    def interval(self, side: Side, metric: str) -> Interval | None:
        """Return a side's mean over seeds; None where it has none."""
        values = list(self.by_seed(side, metric).values())
        return t_interval(values, self.plan.confidence) if values else None


def by_seed(
    cells: Mapping[Place, CellResult], plan: StudyPlan, side: Side, metric: Metric
) -> dict[int, float]:
    """Return the numbers of a cell, or the mean over all columns where each has the seed."""
    scale = 100.0 if metric.is_share else 1.0
    columns = list(plan.columns) if side.column is None else [side.column]
    found = [
        {each.seed: scale * each.measured.values[metric.name]
         for each in cells[Place(side.row, column)].seeds
         if each.measured is not None and metric.name in each.measured.values}
        for column in columns
    ]  # fmt: skip
    seeds = [seed for seed in found[0] if all(seed in column for column in found)]
    return {seed: statistics.fmean(column[seed] for column in found) for seed in seeds}


def outcome(study: Study) -> Outcome:
    """Return the results of the finished runs."""
    cells = {cell.place: _cell(study, cell, at) for cell, at in study.states()}
    if study.looks is None:
        study.looks = find_looks(study, cells)
    notes = [*_caveats(study, cells), *_taken(study, cells)]
    return conclude(study.plan, cells, _metrics(cells, study.plan), study.looks, notes)


def conclude(
    plan: StudyPlan,
    cells: Mapping[Place, CellResult],
    metrics: Sequence[Metric],
    looks: Looks,
    notes: Sequence[str],
) -> Outcome:
    """Return what cells come to.

    Args:
        plan: the table.
        cells: by place.
        metrics: what the numbers mean.
        looks: earlier looks at the verdicts.
        notes: what else a reader must know.
    """
    known = {metric.name: metric for metric in metrics}
    test = PairedTest(plan.test, plan.confidence, looks.count(plan.test))

    def compare(
        better: Side, worse: Side, margin: float, metric: str, than: str | None = None
    ) -> Comparison:
        a = by_seed(cells, plan, better, known[metric])
        b = by_seed(cells, plan, worse, known[than or metric])
        differences = {seed: a[seed] - b[seed] - margin for seed in a if seed in b}
        size = max(map(abs, [*a.values(), *b.values()]), default=1.0)
        return compared(better, worse, differences, test, size)

    decided, controls = _verdicts(plan, compare, looks)
    return Outcome(
        plan=plan,
        test=test,
        cells=cells,
        metrics=metrics,
        claims=decided,
        controls=controls,
        against=_against_first(plan, compare),
        aggregates=_aggregates(cells, plan, metrics[0]),
        notes=[*notes, *looks.notes(plan)],
        looks=looks,
    )


def _caveats(study: Study, cells: Mapping[Place, CellResult]) -> list[str]:
    """Return what makes cells hard to compare."""
    runs = [run for cell in cells.values() for run in cell.runs]
    commits = commits_of_runs(study.measured_runs(runs).values())
    experiments = {
        cell.place: (
            cells[cell.place].seeds[0].wanted
            if cells[cell.place].seeds
            else cell.wanted(cell.first[0], "report", study.plan.report.seeds[0])
        ).experiment
        for cell in study.cells
    }
    return table_caveats(study.plan, cells, experiments, commits)


def _taken(study: Study, cells: Mapping[Place, CellResult]) -> list[str]:
    """Return a note for each published table whose runs were taken."""
    keys = {run.key for cell in cells.values() for run in cell.runs}
    taken = []
    for source in study.published:
        count = sum(study.taken.get(key) is source for key in keys)
        if count:
            taken.append(
                f"{count} of {len(keys)} runs are those of {source.source} ({source.made})"
            )
    return taken


def _verdicts(
    plan: StudyPlan, compare: Compare, looks: Looks
) -> tuple[list[Decided], list[ControlRead]]:
    """Return all claims decided and controls read, corrected together.

    Claims that earlier pages tested and this table does not belong to the family, without a p.
    """
    claims = plan.parsed_claims()
    asked = [compare(c.better, c.worse, c.margin, c.metric, c.than) for c in claims]
    questions = ask(plan, claims, compare)
    near = [each.middle for each in questions if each.middle is not None]
    family = [*asked, *(each.comparison for each in questions), *near]
    dropped = [None for _ in looks.dropped]
    ps = iter(holm([*(each.p for each in family), *dropped]))
    of_claims, below = ([next(ps) for _ in each] for each in (asked, questions))
    middle = [None if each.middle is None else next(ps) for each in questions]
    reasons = fragility(family, len(looks.dropped))[: len(claims)]
    size = len(family) + len(looks.dropped)
    decided = []
    for claim, comparison, p, fragile in zip(claims, asked, of_claims, reasons, strict=True):
        verdict = verdict_of(comparison, p)
        needed = seeds_to_decide(comparison, size) if verdict == "undecided" else None
        decided.append(Decided(claim, comparison, p, verdict, needed, fragile))
    readings = [
        replace(
            read(each, p, p_middle, size),
            columns=read_columns(each, plan, compare),
        )
        for each, p, p_middle in zip(questions, below, middle, strict=True)
    ]
    return decided, readings


def _cell(study: Study, cell: Cell, state: CellState) -> CellResult:
    place, seeds = cell.place, []
    for seed in cell.seeds if state.choices or state.phase == "failed" else ():
        config = state.choices.get(seed)
        if config is not None:
            run = cell.wanted(config, "report", seed)
        elif cell.first:  # no configuration came through
            run = cell.wanted(cell.first[0], "tuning", seed)
        found = study.measured(run.key, place.row) if config is not None else None
        seeds.append(SeedResult(run, found, study.reason(run.key, place.row)))
    reported = {each.wanted.key for each in seeds}
    others = [run for run in cell.all_runs(state) if run.key not in reported]
    lost = [cell.wanted(each.config, "report", each.seeds[0]) for each in state.dropped]
    said = [study.reason(run.key, place.row) or "" for run in lost]
    reasons = [reason.removeprefix(f"{DIVERGED}: ") for reason in said]
    return CellResult(place, state, seeds, reasons, others)


def _metrics(cells: Mapping[Place, CellResult], plan: StudyPlan) -> list[Metric]:
    """Return what the numbers mean, as a run declares it."""
    known = {
        metric.name: metric
        for cell in cells.values()
        for each in cell.seeds
        if each.measured is not None
        for metric in each.measured.metrics
    }
    return [known.get(name, Metric(name)) for name in plan.metrics]


def _against_first(plan: StudyPlan, compare: Compare) -> list[Comparison]:
    """Return the first row against each other one, by column and, for several, on the mean."""
    first, *others = plan.rows
    columns: list[str | None] = [*plan.columns, *([None] if len(plan.columns) > 1 else [])]
    return [
        compare(Side(first, column), Side(other, column), 0.0, plan.metrics[0])
        for other in others
        for column in columns
    ]


def _aggregates(
    cells: Mapping[Place, CellResult], plan: StudyPlan, metric: Metric
) -> dict[str, Interval]:
    """Return the interquartile mean over columns and seeds of each row, for several columns."""
    found = {}
    for row in plan.rows if len(plan.columns) > 1 else ():
        strata = [
            list(by_seed(cells, plan, Side(row, column), metric).values())
            for column in plan.columns
        ]
        if all(len(each) > 1 for each in strata):  # one seed says nothing of its spread
            found[row] = bootstrap_iqm(strata, plan.confidence)
    return found
