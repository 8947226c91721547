"""Results of a table: cells with their spread, paired differences, verdicts on claims and controls.

Numbers are in the unit of the table: shares in per cent.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedray.results.caveats import table_caveats
from fedray.results.fragile import fragility
from fedray.results.paired import (
    Comparison,
    Interval,
    PairedTest,
    SeedRange,
    Side,
    Verdict,
    holm,
    seeds_to_decide,
    t_interval,
    verdict_of,
)
from fedray.results.paired import compare as compare_sides
from fedray.storage.metric import Metric
from fedray.studies.cell import Cell, CellState, RunSpec
from fedray.studies.claims import Claim
from fedray.studies.controls import (
    Compare,
    ControlResult,
    control_questions,
    read_columns,
    read_control,
)
from fedray.studies.plan import Place, StudyPlan
from fedray.studies.store import Measured, commits_of_runs
from fedray.studies.study import DIVERGED, Study


@dataclass(frozen=True)
class SeedResult:
    """A reported run.

    Attributes:
        spec: the run.
        measured: its result; None if the run failed or is not finished.
        reason: why the run failed.
    """

    spec: RunSpec
    measured: Measured | None
    reason: str | None

    @property
    def seed(self) -> int:
        """Seed of every random stream."""
        return self.spec.seed

    @property
    def key(self) -> str:
        """Name of the run's folder."""
        return self.spec.key


@dataclass(frozen=True)
class CellResult:
    """The results of a cell.

    Attributes:
        place: row and column.
        state: the cell's progress, tried configurations and choice.
        seeds: the reported runs; empty before a configuration is chosen.
        dropped: the reason of each choice in `state.dropped`.
        other_runs: the tuning runs, and reported runs of dropped choices.
    """

    place: Place
    state: CellState
    seeds: Sequence[SeedResult]
    dropped: Sequence[str]
    other_runs: Sequence[RunSpec]

    @property
    def runs(self) -> list[RunSpec]:
        """All runs of the cell."""
        return [*self.other_runs, *(seed.spec for seed in self.seeds)]


@dataclass(frozen=True)
class TestedClaim:
    """The verdict on a claim.

    Attributes:
        claim: the claim.
        comparison: the comparison of its sides.
        corrected: p-value, corrected for the number of claims and controls.
        verdict: holds, refuted or undecided.
        needed: how many seeds would decide the claim; None if it is decided or its direction is
            unclear.
        fragile: reasons why a verdict is fragile.
    """

    claim: Claim
    comparison: Comparison
    corrected: float | None
    verdict: Verdict
    needed: SeedRange | None
    fragile: Sequence[str]


@dataclass(frozen=True)
class Outcome:
    """The results of a whole table.

    Attributes:
        plan: the plan of the table.
        test: the test of all differences.
        cells: results of the cells by place.
        metrics: declarations of the table's metrics.
        claims: verdicts on claims.
        controls: results of controls.
        against: comparisons of the first row with each other row, by column and on the mean.
        notes: caveats and other notes below the table.
    """

    plan: StudyPlan
    test: PairedTest
    cells: Mapping[Place, CellResult]
    metrics: Sequence[Metric]
    claims: Sequence[TestedClaim]
    controls: Sequence[ControlResult]
    against: Sequence[Comparison]
    notes: Sequence[str] = field(default_factory=list)

    def metric(self, name: str) -> Metric:
        """Return the declaration of a metric."""
        return next(metric for metric in self.metrics if metric.name == name)

    def by_seed(self, side: Side, metric: str) -> dict[int, float]:
        """Return a side's numbers by seed, in the unit of the table."""
        return by_seed(self.cells, self.plan, side, self.metric(metric))

    def interval(self, side: Side, metric: str) -> Interval | None:
        """Return the mean over seeds with its interval; None if the side has no numbers."""
        values = list(self.by_seed(side, metric).values())
        return t_interval(values, self.plan.confidence) if values else None


def by_seed(
    cells: Mapping[Place, CellResult], plan: StudyPlan, side: Side, metric: Metric
) -> dict[int, float]:
    """Return a side's numbers by seed.

    The mean over columns uses the seeds that all columns have.
    """
    scale = 100.0 if metric.is_share else 1.0
    columns = list(plan.columns) if side.column is None else [side.column]
    columns_by_seed = [
        {result.seed: scale * result.measured.values[metric.name]
         for result in cells[Place(side.row, column)].seeds
         if result.measured is not None and metric.name in result.measured.values}
        for column in columns
    ]  # fmt: skip
    seeds = [
        seed for seed in columns_by_seed[0] if all(seed in column for column in columns_by_seed)
    ]
    return {seed: statistics.fmean(column[seed] for column in columns_by_seed) for seed in seeds}


def outcome(study: Study) -> Outcome:
    """Compute the results of a table from its finished runs."""
    cells = {cell.place: _cell(study, cell, state) for cell, state in study.states()}
    notes = [*_caveats(study, cells), *_reuse_notes(study, cells)]
    return conclude(study.plan, cells, _metrics(cells, study.plan), notes)


def conclude(
    plan: StudyPlan,
    cells: Mapping[Place, CellResult],
    metrics: Sequence[Metric],
    notes: Sequence[str],
) -> Outcome:
    """Test claims and controls, and return the results of a table.

    Args:
        plan: the plan of the table.
        cells: results of the cells by place.
        metrics: declarations of the table's metrics.
        notes: further notes below the table.
    """
    by_name = {metric.name: metric for metric in metrics}
    test = PairedTest(plan.test, plan.confidence, plan.report.looks(plan.test))

    def compare(
        better: Side, worse: Side, margin: float, metric: str, than: str | None = None
    ) -> Comparison:
        a = by_seed(cells, plan, better, by_name[metric])
        b = by_seed(cells, plan, worse, by_name[than or metric])
        differences = {seed: a[seed] - b[seed] - margin for seed in a if seed in b}
        size = max(map(abs, [*a.values(), *b.values()]), default=1.0)
        return compare_sides(better, worse, differences, test, size)

    decided, controls = _verdicts(plan, compare)
    return Outcome(
        plan=plan,
        test=test,
        cells=cells,
        metrics=metrics,
        claims=decided,
        controls=controls,
        against=_compare_with_first(plan, compare),
        notes=[*notes, *plan.report.look_notes()],
    )


def _caveats(study: Study, cells: Mapping[Place, CellResult]) -> list[str]:
    """Return the caveats of the table."""
    runs = [run for cell in cells.values() for run in cell.runs]
    ends = list(study.measured_runs(runs).values())
    experiments = {
        cell.place: (
            cells[cell.place].seeds[0].spec
            if cells[cell.place].seeds
            else cell.run_spec(cell.first[0], "report", study.plan.report.seeds[0])
        ).experiment
        for cell in study.cells
    }
    return table_caveats(study.plan, cells, experiments, commits_of_runs(ends), ends)


def _reuse_notes(study: Study, cells: Mapping[Place, CellResult]) -> list[str]:
    """Return a note for each published table whose runs are reused."""
    keys = {run.key for cell in cells.values() for run in cell.runs}
    taken = []
    for source in study.published:
        count = sum(study.taken.get(key) is source for key in keys)
        if count:
            taken.append(
                f"{count} of {len(keys)} runs are those of {source.source} ({source.made})"
            )
    return taken


def _verdicts(plan: StudyPlan, compare: Compare) -> tuple[list[TestedClaim], list[ControlResult]]:
    """Test all claims and controls with a common correction."""
    claims = plan.parsed_claims()
    comparisons = [compare(c.better, c.worse, c.margin, c.metric, c.than) for c in claims]
    questions = control_questions(plan, claims, compare)
    near = [question.middle for question in questions if question.middle is not None]
    family = [*comparisons, *(question.comparison for question in questions), *near]
    ps = iter(holm([comparison.p for comparison in family]))
    of_claims, below = ([next(ps) for _ in tests] for tests in (comparisons, questions))
    middle = [None if question.middle is None else next(ps) for question in questions]
    reasons, size = fragility(family)[: len(claims)], len(family)
    decided = []
    for claim, comparison, p, fragile in zip(claims, comparisons, of_claims, reasons, strict=True):
        verdict = verdict_of(comparison, p)
        needed = seeds_to_decide(comparison, size) if verdict == "undecided" else None
        decided.append(TestedClaim(claim, comparison, p, verdict, needed, fragile))
    readings = [
        replace(
            read_control(question, p, p_middle, size),
            columns=read_columns(question, plan, compare),
        )
        for question, p, p_middle in zip(questions, below, middle, strict=True)
    ]
    return decided, readings


def _cell(study: Study, cell: Cell, state: CellState) -> CellResult:
    place, seeds = cell.place, []
    for seed in cell.seeds if state.choices or state.phase == "failed" else ():
        config = state.choices.get(seed)
        if config is not None:
            run = cell.run_spec(config, "report", seed)
        elif cell.first:  # all configurations failed
            run = cell.run_spec(cell.first[0], "tuning", seed)
        measured = study.measured(run.key, place.row) if config is not None else None
        seeds.append(SeedResult(run, measured, study.reason(run.key, place.row)))
    reported = {result.spec.key for result in seeds}
    tuning_runs = [run for run in cell.all_runs(state) if run.key not in reported]
    diverged = [cell.run_spec(choice.config, "report", choice.seeds[0]) for choice in state.dropped]
    messages = [study.reason(run.key, place.row) or "" for run in diverged]
    reasons = [reason.removeprefix(f"{DIVERGED}: ") for reason in messages]
    return CellResult(place, state, seeds, reasons, tuning_runs)


def _metrics(cells: Mapping[Place, CellResult], plan: StudyPlan) -> list[Metric]:
    """Return the metrics as the runs declare them."""
    declared = {
        metric.name: metric
        for cell in cells.values()
        for result in cell.seeds
        if result.measured is not None
        for metric in result.measured.metrics
    }
    return [declared.get(name, Metric(name)) for name in plan.metrics]


def _compare_with_first(plan: StudyPlan, compare: Compare) -> list[Comparison]:
    """Compare the first row with each other row, by column and on the mean over columns."""
    first, *rivals = plan.rows
    columns: list[str | None] = [*plan.columns, *([None] if len(plan.columns) > 1 else [])]
    return [
        compare(Side(first, column), Side(other, column), 0.0, plan.metrics[0])
        for other in rivals
        for column in columns
    ]
