"""What makes the cells of a table hard to compare: said below it, never passed over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedray.config import flatten
from fedray.report.runs import NOT_COMPARED
from fedray.sweep.spec import show_value, words
from fedray.tables.agenda import Dropped
from fedray.tables.looks import looks
from fedray.tables.measured import commits_of_runs
from fedray.tables.plan import Place, TablePlan

if TYPE_CHECKING:
    from fedray.tables.book import Book
    from fedray.tables.outcome import CellResult


def notes_of(book: Book, cells: Mapping[Place, CellResult]) -> list[str]:
    """Everything that a reader must know before comparing two cells."""
    plan = book.plan
    return [
        *_unfinished(cells),
        *_choice(plan),
        *_metrics(plan),
        *_effort(plan, cells),
        *_edges(cells, plan),
        *_failures(cells),
        *_dropped(cells),
        *_unlike(cells, plan),
        *_differing(book),
        *_versions(book, cells),
        *_taken(book, cells),
    ]


def _unfinished(cells: Mapping[Place, CellResult]) -> Iterator[str]:
    left = [cell for cell in cells.values() if cell.standing.phase in ("tuning", "report")]
    if left:
        yield f"NOT FINISHED: {len(left)} of {len(cells)} cells are still to be run"


def _choice(plan: TablePlan) -> Iterator[str]:
    if plan.select == "test":
        yield (
            "Configurations and rounds were chosen on the TEST images, as papers often do: every "
            "number is too good, and is marked with †"
        )
    both = sorted({*plan.tuning.seeds} & {*plan.report.seeds})
    if both and any(row.space for row in plan.rows.values()):
        seeds = ", ".join(map(str, both))
        yield f"Seeds that are reported were tuned on, too: {seeds}"


def _metrics(plan: TablePlan) -> Iterator[str]:
    """Which rows are measured in another way."""
    for name, row in plan.rows.items():
        for metric, own in row.metrics.items():
            yield f"{name}: " + (f"its {metric} is {own}" if own else f"it has no {metric}")


def _effort(plan: TablePlan, cells: Mapping[Place, CellResult]) -> Iterator[str]:
    """Where methods of a column tried different numbers of configurations."""
    for column in plan.columns:
        tried = {
            row: max(1, len(cells[Place(row, column)].standing.tried))
            for row in plan.rows
            if cells[Place(row, column)].standing.chosen is not None
            and plan.leader(Place(row, column)) == Place(row, column)
        }
        if len(set(tried.values())) > 1:
            counts = ", ".join(f"{row} {count}" for row, count in tried.items())
            yield (
                f"{_in(plan, column)} tried different numbers of configurations, all at most "
                f"{plan.tuning.configurations}: {counts}"
            )


def _in(plan: TablePlan, column: str) -> str:
    return f"In {column} rows" if len(plan.columns) > 1 else "Rows"


def _edges(cells: Mapping[Place, CellResult], plan: TablePlan) -> Iterator[str]:
    """Choices at an edge; one that a cell takes over is said of the cell that made it."""
    why = {
        "budget": "the budget is spent",
        "bound": "no experiment can have the next value",
        "off": "tuning.extend is false",
        "late": "grids are continued for the first choice alone, which diverged later",
        "joint": "keys that vary together are not continued",
    }
    for place, cell in cells.items():
        leader = plan.leader(place)
        if leader != place and cells[leader].standing.chosen == cell.standing.chosen:
            continue
        for edge in cell.standing.edges:
            yield f"{place}: the choice {edge} ({why[edge.why]})"


def _failures(cells: Mapping[Place, CellResult]) -> Iterator[str]:
    for place, cell in cells.items():
        lost = [each for each in cell.standing.tried if each.objective is None]
        if lost:
            yield f"{place}: {len(lost)} of {len(cell.standing.tried)} configurations failed"
        for each in cell.seeds:
            if each.reason is not None:
                yield f"{place}, seed {each.seed} failed: {each.reason}"


def _dropped(cells: Mapping[Place, CellResult]) -> Iterator[str]:
    """Where a choice diverged when it was reported, and what is reported in its place."""
    for place, cell in cells.items():
        standing = cell.standing
        for each, reason in zip(standing.dropped, cell.dropped, strict=True):
            yield f"{place}: {dropped_text(each)}: {reason}"
        if standing.dropped and standing.phase == "over":
            first = "no other came through: the first"
            instead = first if standing.diverged else "the next by validation"
            yield f"{place}: reported is {words(standing.chosen or {})}, {instead}"


def dropped_text(each: Dropped) -> str:
    """A choice that diverged, and where: "lr=0.5 diverged on seed 1"."""
    seeds = ", ".join(map(str, each.seeds))
    return f"{words(each.config)} diverged on seed{'s' * (len(each.seeds) > 1)} {seeds}"


def _unlike(cells: Mapping[Place, CellResult], plan: TablePlan) -> Iterator[str]:
    """Where rows of a column did not have the same images, or the same clients."""
    for column in plan.columns:
        runs = [
            (each.seed, each.measured)
            for row in plan.rows
            for each in cells[Place(row, column)].seeds
            if each.measured is not None
        ]
        partitions: dict[int, set[str | None]] = defaultdict(set)
        for seed, measured in runs:
            partitions[seed].add(measured.partition)
        seeds = [str(seed) for seed, found in partitions.items() if len(found) > 1]
        if len({measured.data for _, measured in runs}) > 1:
            yield f"{column}: rows have different images or labels"
        elif seeds:
            yield f"{column}: rows have different partitions, seed {', '.join(seeds)}"


def _differing(book: Book) -> Iterator[str]:
    """Keys in which the rows of a column differ, besides the method's own and what was tuned."""
    found: dict[str, list[str]] = {}
    for column in book.plan.columns:
        configs = {
            cell.place.row: _comparable(book, cell.place)
            for cell in book.cells
            if cell.place.column == column
        }
        for key in dict.fromkeys(key for config in configs.values() for key in config):
            values = {row: config.get(key) for row, config in configs.items()}
            above = f"{key.rpartition('.')[0]}.name"  # of another component: other parameters
            names = {config.get(above) for config in configs.values()}
            if len(set(map(repr, values.values()))) > 1 and (key == above or len(names) == 1):
                found.setdefault(f"{key} ({_grouped(values)})", []).append(column)
    for what in found:
        yield f"Rows differ in {what}"


def _grouped(values: Mapping[str, Any]) -> str:
    """Who has which value, the most common one last: "base: 4; else 16"."""
    rows: dict[str, list[str]] = defaultdict(list)
    for row, value in values.items():
        rows[show_value(value)].append(row)
    *rest, usual = sorted(rows, key=lambda value: len(rows[value]))
    return "; ".join([*(f"{', '.join(rows[value])}: {value}" for value in rest), f"else {usual}"])


def _comparable(book: Book, place: Place) -> dict[str, Any]:
    """A cell's experiment without its method's own keys and what is tuned."""
    row = book.plan.rows[place.row]
    cell = next(cell for cell in book.cells if cell.place == place)
    seed = book.plan.report.seeds[0]
    tree = cell.wanted(cell.first[0], "report", seed).experiment.tree()
    tuned = {key for axis in row.axes for key in axis.keys}
    return {
        key: value
        for key, value in flatten(tree).items()
        if key not in NOT_COMPARED and key not in tuned and not key.startswith("algorithm.")
    }


def _versions(book: Book, cells: Mapping[Place, CellResult]) -> Iterator[str]:
    runs = [run for cell in cells.values() for run in cell.runs]
    commits = commits_of_runs(book.measured_runs(runs).values())
    if len(commits) > 1:
        yield f"Runs are of {len(commits)} versions of the code: {', '.join(commits)}"


def _taken(book: Book, cells: Mapping[Place, CellResult]) -> Iterator[str]:
    """Where runs were not made here but taken from a published table; earlier looks at this one."""
    keys, own = {run.key for cell in cells.values() for run in cell.runs}, []
    for source in book.published:
        taken = sum(book.taken.get(key) is source for key in keys)
        if taken:
            yield f"{taken} of {len(keys)} runs are those of {source.source} ({source.made})"
            own += [source] if source.table == book.plan.table else []
    yield from looks(book.plan, own)
