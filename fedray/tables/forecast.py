"""What a table is going to run, and how long that takes as far as it is known."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from fedray.sweep.spec import words
from fedray.tables.agenda import Cell, Standing, Wanted
from fedray.tables.book import Book
from fedray.tables.plan import Place, TablePlan
from fedray.tables.search import can_go_on

WIDTH = 80


@dataclass(frozen=True)
class CellRuns:
    """What a cell runs.

    Attributes:
        cell: the cell.
        known: the runs that are known by now, those that are over included.
        there: how many of them are over.
        unknown: how many come for sure besides: reports of what is still to be chosen.
        beyond: how many may come where the grid is continued.
        seconds: of what is left, beyond the grid not counted; None where no run tells.
    """

    cell: Cell
    known: Sequence[Wanted]
    there: int
    unknown: int
    beyond: int
    seconds: float | None


def runs_of(book: Book) -> list[CellRuns]:
    """What each cell of a table runs; a run that several cells need is the first one's."""
    known: dict[Place, list[Wanted]] = {}
    seen: set[str] = set()
    for cell, standing in book.standings():
        wanted = {run.key: run for run in _known(cell, standing)}
        known[cell.place] = [run for key, run in wanted.items() if key not in seen]
        seen |= set(wanted)
    rates = _rates(book, known)
    return [
        _runs(book, cell, standing, known[cell.place], _rate(rates, cell.place))
        for cell, standing in book.standings()
    ]


def _known(cell: Cell, standing: Standing) -> Iterator[Wanted]:
    """A cell's own runs, as far as its choice is known."""
    plan = cell.plan
    if cell.is_tuned and plan.leader(cell.place) == cell.place:
        configs = [*cell.first, *(each.config for each in standing.tried if each.added)]
        for config in configs:
            yield from (cell.wanted(config, "tuning", seed) for seed in plan.tuning.seeds)
        own = [run for run in standing.wanted if run.phase == "tuning"]
        yield from own
    reported = [each.config for each in standing.dropped]
    reported += [] if standing.chosen is None else [standing.chosen]
    for config in reported:
        yield from (cell.wanted(config, "report", seed) for seed in plan.report.seeds)


def _runs(
    book: Book, cell: Cell, standing: Standing, known: Sequence[Wanted], rate: float | None
) -> CellRuns:
    plan = cell.plan
    there = [run for run in known if book.lookup(run) is not None]
    unknown = cell.to_come(standing)
    usual = cell.wanted(cell.first[0], "report", plan.report.seeds[0]).experiment.rounds
    rounds = sum(run.experiment.rounds for run in known if run not in there) + unknown * usual
    return CellRuns(
        cell,
        known,
        len(there),
        unknown,
        _beyond(cell, standing),
        None if rate is None else rate * rounds,
    )


def _beyond(cell: Cell, standing: Standing) -> int:
    """How many more tuning runs there are at most."""
    tuning = cell.plan.tuning
    numbers = [axis for axis in cell.plan.rows[cell.place.row].axes if can_go_on(axis)]
    own = cell.is_tuned and cell.plan.leader(cell.place) == cell.place
    if not own or not numbers or not tuning.extend or standing.phase != "tuning":
        return 0
    return max(0, tuning.configurations - len(cell.first)) * len(tuning.seeds)


def _rates(book: Book, known: Mapping[Place, Sequence[Wanted]]) -> dict[Place, list[float]]:
    """Seconds a round of each run that is over, by cell."""
    rates: dict[Place, list[float]] = {}
    for place, runs in known.items():
        for run in runs:
            found = book.measured(run.key, place.row)
            if found is not None:
                rates.setdefault(place, []).append(found.seconds / run.experiment.rounds)
    return rates


def _rate(rates: Mapping[Place, Sequence[float]], place: Place) -> float | None:
    """Seconds a round in a cell: by its own runs, or else its row's, or else by all."""
    own = rates.get(place, ())
    row = [rate for other, found in rates.items() if other.row == place.row for rate in found]
    every = [rate for found in rates.values() for rate in found]
    best = own or row or every
    return statistics.fmean(best) if best else None


# --- in words -------------------------------------------------------------------------------------


def headline(book: Book) -> str:
    """What is going to be compared, and at what cost."""
    plan = book.plan
    tuning, report = plan.tuning, plan.report
    first = book.cells[0]
    tuned = first.wanted(first.first[0], "tuning", tuning.seeds[0]).experiment.rounds
    controls = sum(row.control is not None for row in plan.rows.values())
    return "\n".join(
        wrapped(line)
        for line in [
            f"{plan.table} [{plan.scale} scale]: {plan.answers}",
            f"{len(plan.rows)} rows x {len(plan.columns)} columns, "
            f"{len(plan.parsed_claims())} claims, {controls} controls; each cell:",
            f"  tuning: at most {tuning.configurations} configurations x "
            f"{len(tuning.seeds)} seed(s) x {tuned} rounds, by {plan.select} images",
            f"  report: {len(report.seeds)} seeds x {book.usual_rounds} rounds",
            _cost(runs_of(book), plan),
        ]
    )


def _cost(cells: Sequence[CellRuns], plan: TablePlan) -> str:
    """How many runs, and how long they take where that is known."""
    there = sum(each.there for each in cells)
    runs = sum(len(each.known) + each.unknown for each in cells)
    beyond = sum(each.beyond for each in cells)
    text = f"{runs} runs" + (f", up to {runs + beyond} if grids are continued" if beyond else "")
    text += f"; {there} are there" if there else ""
    left = [each.seconds for each in cells if each.seconds is not None]
    if left and runs > there:
        return f"{text}; about {_duration(sum(left))} of computing left, by those"
    if plan.hours is not None and not there:
        return f"{text}; about {plan.hours:g} h of one core, says the file"
    return text


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{max(1, round(seconds / 60))} min"


def planned_cells(book: Book) -> list[str]:
    """A line for each cell: what it tries and reports, and what of it is there."""
    plan = book.plan
    seeds = ", ".join(map(str, plan.report.seeds))
    lines = []
    for each in runs_of(book):
        cell, leader = each.cell, plan.leader(each.cell.place)
        what = "; ".join(words(config) for config in cell.first) if cell.is_tuned else "as given"
        what = what if leader == cell.place else f"as {leader}"
        there = f"; {each.there} of {len(each.known) + each.unknown} there" if each.there else ""
        lines.append(wrapped(f"{cell.place}: {what}; report seeds {seeds}{there}"))
    return lines


def not_asked(plan: TablePlan) -> list[str]:
    """A line that names the rows which cost runs and decide nothing; no line where all do."""
    asked = {side.row for claim in plan.parsed_claims() for side in (claim.better, claim.worse)}
    for name, row in plan.rows.items():
        if row.control:
            asked |= {name, row.of, row.over}
    left = [name for name in plan.rows if name not in asked]
    return [wrapped(f"no claim is about: {', '.join(left)}")] if left else []


def wrapped(line: str) -> str:
    """A line of at most 80 columns and, indented, those below it."""
    return fill(line, WIDTH, subsequent_indent=" " * 4, break_on_hyphens=False)
