"""What a table says: cells with their spread, paired differences, verdicts on claims and controls.

Numbers are in the unit that is shown: shares in per cent.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fedray.records import Metric
from fedray.tables.agenda import Standing
from fedray.tables.book import Book
from fedray.tables.claims import Claim, Side, Verdict
from fedray.tables.fairness import notes_of
from fedray.tables.measured import Measured
from fedray.tables.plan import Place, TablePlan
from fedray.tables.statistics import (
    Interval,
    bootstrap_iqm,
    holm,
    p_value,
    seeds_needed,
    t_interval,
)

BySeed = Mapping[int, float]
Reading = Literal["explains it away", "does not explain it away", "open"]


@dataclass(frozen=True)
class SeedResult:
    """A reported run.

    Attributes:
        seed: of every random stream.
        key: names its folder.
        measured: what it came to; None where it failed or is not over.
        reason: why it failed.
    """

    seed: int
    key: str
    measured: Measured | None
    reason: str | None


@dataclass(frozen=True)
class CellResult:
    """A cell.

    Attributes:
        place: which.
        standing: how far it is, what was tried and chosen.
        seeds: the reported runs; none before a configuration is chosen.
        tuning_keys: the runs of the choice.
    """

    place: Place
    standing: Standing
    seeds: Sequence[SeedResult]
    tuning_keys: Sequence[str]


@dataclass(frozen=True)
class Comparison:
    """A paired comparison of two sides, seed by seed.

    Attributes:
        better: the side that is subtracted from.
        worse: the one that is subtracted.
        differences: by seed, the margin subtracted too.
        interval: of their mean; None without a pair.
        p: two-sided, not corrected; None for fewer than two pairs.
    """

    better: Side
    worse: Side
    differences: Mapping[int, float]
    interval: Interval | None
    p: float | None


@dataclass(frozen=True)
class Decided:
    """What became of a claim.

    Attributes:
        claim: the claim.
        comparison: its sides.
        corrected: p, corrected for the number of claims and controls.
        verdict: see there.
        needed: how many seeds would decide it; None where it is decided, or no number would.
    """

    claim: Claim
    comparison: Comparison
    corrected: float | None
    verdict: Verdict
    needed: int | None


@dataclass(frozen=True)
class ControlRead:
    """Whether a control does as well as what it is to explain.

    Attributes:
        row: the control.
        of: the row that it is to explain.
        refutes: what it would refute.
        comparison: of minus row.
        corrected: p, corrected.
        baseline: the best other row that `of` is claimed to be better than; None: there is none.
        gain: by how much it is.
        share: the part of it that the control has as well.
        reading: see there.
        needed: how many seeds would decide it.
    """

    row: str
    of: str
    refutes: str
    comparison: Comparison
    corrected: float | None
    baseline: str | None
    gain: float | None
    share: float | None
    reading: Reading
    needed: int | None


@dataclass(frozen=True)
class Outcome:
    """A whole table.

    Attributes:
        plan: what was asked.
        cells: by place.
        metrics: what is shown, with units.
        claims: verdicts.
        controls: readings.
        against: the first row against each other one, by column and on the mean.
        aggregates: by row, the interquartile mean over columns and seeds; for several columns.
        notes: what makes cells hard to compare.
    """

    plan: TablePlan
    cells: Mapping[Place, CellResult]
    metrics: Sequence[Metric]
    claims: Sequence[Decided]
    controls: Sequence[ControlRead]
    against: Sequence[Comparison]
    aggregates: Mapping[str, Interval]
    notes: Sequence[str] = field(default_factory=list)

    def metric(self, name: str) -> Metric:
        """What a number means."""
        return next(metric for metric in self.metrics if metric.name == name)

    def by_seed(self, side: Side, metric: str) -> dict[int, float]:
        """A side's numbers, in the unit that is shown."""
        return by_seed(self.cells, self.plan, side, self.metric(metric))

    def interval(self, side: Side, metric: str) -> Interval | None:
        """A side's mean over seeds; None where it has none."""
        values = list(self.by_seed(side, metric).values())
        return t_interval(values, self.plan.confidence) if values else None


def by_seed(
    cells: Mapping[Place, CellResult], plan: TablePlan, side: Side, metric: Metric
) -> dict[int, float]:
    """The numbers of a cell, or the mean over all columns where each has the seed."""
    scale = 100.0 if metric.is_share else 1.0
    columns = list(plan.columns) if side.column is None else [side.column]
    found = [
        {each.seed: scale * each.measured.values[metric.name]
         for each in cells[Place(side.row, column)].seeds if each.measured is not None}
        for column in columns
    ]  # fmt: skip
    seeds = [seed for seed in found[0] if all(seed in column for column in found)]
    return {seed: statistics.fmean(column[seed] for column in found) for seed in seeds}


Compare = Callable[[Side, Side, float, str], Comparison]


def outcome(book: Book) -> Outcome:
    """What the runs that are over come to."""
    plan = book.plan
    cells = {cell.place: _cell(book, cell.place, at) for cell, at in book.standings()}
    metrics = _metrics(cells, plan)
    known = {metric.name: metric for metric in metrics}
    claims = plan.parsed_claims()

    def compare(better: Side, worse: Side, margin: float, metric: str) -> Comparison:
        a, b = (by_seed(cells, plan, side, known[metric]) for side in (better, worse))
        return _compared(better, worse, a, b, margin, plan.confidence)

    asked = [compare(c.better, c.worse, c.margin, c.metric) for c in claims]
    controls = [
        (name, compare(_side(plan, row.of), _side(plan, name), 0.0, plan.metrics[0]))
        for name, row in plan.rows.items()
        if row.control and row.of
    ]
    family = [*asked, *(comparison for _, comparison in controls)]
    corrected = _corrected([each.p for each in family])
    alpha = (1 - plan.confidence) / max(1, len(family))
    decided = [
        _decided(claim, comparison, p, plan, alpha)
        for claim, comparison, p in zip(claims, asked, corrected, strict=False)
    ]
    read = [
        _read(name, comparison, p, plan, alpha, _gains(plan, decided))
        for (name, comparison), p in zip(controls, corrected[len(asked) :], strict=True)
    ]
    return Outcome(
        plan=plan,
        cells=cells,
        metrics=metrics,
        claims=decided,
        controls=read,
        against=_against_first(plan, compare),
        aggregates=_aggregates(cells, plan, metrics[0]),
        notes=notes_of(book, cells),
    )


def _side(plan: TablePlan, row: str | None) -> Side:
    """A row by its mean, or by its only column."""
    assert row is not None
    return Side(row, None if len(plan.columns) > 1 else next(iter(plan.columns)))


def _cell(book: Book, place: Place, standing: Standing) -> CellResult:
    cell = next(cell for cell in book.cells if cell.place == place)
    seeds = []
    for seed in book.plan.report.seeds if standing.chosen is not None else []:
        wanted = cell.wanted(standing.chosen or {}, "report", seed)
        reason = book.failures.get(wanted.key)
        found = None if reason is not None else book.measured(wanted.key)
        seeds.append(SeedResult(seed, wanted.key, found, reason))
    tuning = [
        cell.wanted(tried.config, "tuning", seed).key
        for tried in standing.tried
        for seed in book.plan.tuning.seeds
    ]
    return CellResult(place, standing, seeds, tuning)


def _metrics(cells: Mapping[Place, CellResult], plan: TablePlan) -> list[Metric]:
    """What the numbers mean, as a run declares it."""
    for cell in cells.values():
        for each in cell.seeds:
            if each.measured is not None:
                return each.measured.metrics
    return [Metric(name) for name in plan.metrics]


def _compared(
    better: Side, worse: Side, a: BySeed, b: BySeed, margin: float, level: float
) -> Comparison:
    """A - b - margin, of the seeds that both have."""
    differences = {seed: a[seed] - b[seed] - margin for seed in a if seed in b}
    if not differences:
        return Comparison(better, worse, {}, None, None)
    values = list(differences.values())
    size = max(abs(a[seed]) for seed in differences)
    return Comparison(better, worse, differences, t_interval(values, level), p_value(values, size))


def _corrected(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's correction of those that are there."""
    there = [index for index, p in enumerate(ps) if p is not None]
    corrected = dict(zip(there, holm([ps[index] or 0.0 for index in there]), strict=True))
    return [corrected.get(index) for index in range(len(ps))]


def _decided(
    claim: Claim, comparison: Comparison, p: float | None, plan: TablePlan, alpha: float
) -> Decided:
    verdict = _verdict(comparison, p, 1 - plan.confidence)
    needed = _needed(comparison, alpha) if verdict == "undecided" else None
    return Decided(claim, comparison, p, verdict, needed)


def _verdict(comparison: Comparison, p: float | None, alpha: float) -> Verdict:
    if comparison.interval is None:
        return "not asked"
    if p is None or p > alpha:
        return "undecided"
    return "holds" if comparison.interval.mean > 0 else "refuted"


def _needed(comparison: Comparison, alpha: float) -> int | None:
    """How many seeds would decide, at the level of the first step of Holm's correction."""
    found = comparison.interval
    if found is None or found.n < 2:
        return None
    needed = seeds_needed(found.mean, found.std, alpha)
    return None if needed is None else max(needed, found.n + 1)


def _gains(plan: TablePlan, decided: Sequence[Decided]) -> dict[str, list[tuple[str, float]]]:
    """By row, the rows that it is claimed to be better than, and by how much it is."""
    gains: dict[str, list[tuple[str, float]]] = {}
    for each in decided:
        better, worse, interval = each.claim.better, each.claim.worse, each.comparison.interval
        usual = each.claim.metric == plan.metrics[0] and better == _side(plan, better.row)
        if interval is None or not usual or plan.rows[worse.row].control:
            continue
        gains.setdefault(better.row, []).append((worse.row, interval.mean + each.claim.margin))
    return gains


def _read(
    row: str,
    comparison: Comparison,
    p: float | None,
    plan: TablePlan,
    alpha: float,
    gains: Mapping[str, Sequence[tuple[str, float]]],
) -> ControlRead:
    """Read a control: it explains a gain away where at least half of it is there, for sure."""
    plan_row = plan.rows[row]
    of = plan_row.of or ""
    baseline, gain = min(gains.get(of, []), key=lambda each: each[1], default=(None, None))
    verdict, interval = _verdict(comparison, p, 1 - plan.confidence), comparison.interval
    share = None
    if gain is not None and gain > 0 and interval is not None:
        share = (gain - interval.mean) / gain
    reading: Reading = "open"
    if verdict == "holds":
        reading = "does not explain it away"
    elif verdict == "refuted" or _has_half(interval, gain):
        reading = "explains it away"
    needed = _needed(comparison, alpha) if reading == "open" else None
    return ControlRead(
        row, of, plan_row.control or "", comparison, p, baseline, gain, share, reading, needed
    )


def _has_half(interval: Interval | None, gain: float | None) -> bool:
    """Whether the distance to the method is surely less than half of its gain."""
    return interval is not None and gain is not None and interval.high < gain / 2


def _against_first(plan: TablePlan, compare: Compare) -> list[Comparison]:
    """The first row against each other one, by column and, for several, on the mean."""
    first, *others = plan.rows
    columns: list[str | None] = [*plan.columns, *([None] if len(plan.columns) > 1 else [])]
    return [
        compare(Side(first, column), Side(other, column), 0.0, plan.metrics[0])
        for other in others
        for column in columns
    ]


def _aggregates(
    cells: Mapping[Place, CellResult], plan: TablePlan, metric: Metric
) -> dict[str, Interval]:
    """The interquartile mean over columns and seeds of each row, for several columns."""
    found = {}
    for row in plan.rows if len(plan.columns) > 1 else ():
        strata = [
            list(by_seed(cells, plan, Side(row, column), metric).values())
            for column in plan.columns
        ]
        if all(strata):
            found[row] = bootstrap_iqm(strata, plan.confidence)
    return found
