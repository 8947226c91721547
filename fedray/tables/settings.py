"""What rows of a column are run with that is not the method's own: keys, searches, local steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fedray.config import Experiment, flatten, parameters
from fedray.plugins import use
from fedray.report.runs import NOT_COMPARED
from fedray.sweep.spec import Axis, show_value
from fedray.tables.plan import Place, TablePlan

if TYPE_CHECKING:
    from fedray.tables.book import Book

OWN = "algorithm."
"""Begins the keys that are the method's own."""


def differing(book: Book) -> Iterator[str]:
    """Keys in which the rows of a column differ, besides the method's own and what is searched."""
    searched = {key for row in book.plan.rows.values() for axis in row.axes for key in axis.keys}
    found: list[str] = []
    for configs in _columns(book):
        for key in dict.fromkeys(key for config in configs.values() for key in config):
            values = {row: config.get(key) for row, config in configs.items()}
            above = f"{key.rpartition('.')[0]}.name"  # of another component: other parameters
            names = {config.get(above) for config in configs.values()}
            alike = len(set(map(repr, values.values()))) == 1
            if not alike and key not in searched and (key == above or len(names) == 1):
                shown = {row: show_value(value) for row, value in values.items()}
                found.append(f"Rows differ in {key} ({_grouped(shown)})")
    yield from dict.fromkeys(found)


def searched_unlike(book: Book) -> Iterator[str]:
    """Keys that are searched in some rows of a column and held in others, or over other values."""
    found: list[str] = []
    for configs in _columns(book):
        spaces = {row: _searched(book.plan, row) for row in configs}
        for key in dict.fromkeys(key for space in spaces.values() for key in space):
            said = {
                row: spaces[row].get(key) or f"held at {show_value(config[key])}"
                for row, config in configs.items()
                if key in config
            }
            if len(set(said.values())) > 1:
                found.append(f"Rows do not search {key} alike ({_grouped(said)})")
    yield from dict.fromkeys(found)


def unlike_steps(book: Book) -> Iterator[str]:
    """Where clients of a column's rows take different numbers of steps, as far as methods say."""
    found = []
    for column in book.plan.columns:
        steps = {row: _steps(_reported(book, Place(row, column))) for row in book.plan.rows}
        if len(set(steps.values())) > 1:
            said = _grouped({row: str(number) for row, number in steps.items()})
            found.append(
                f"Rows take different numbers of local steps for a batch in a round ({said})"
            )
    yield from dict.fromkeys(found)


def _columns(book: Book) -> Iterator[dict[str, dict[str, Any]]]:
    """Column by column, each row's experiment without its method's own keys."""
    for column in book.plan.columns:
        yield {row: _comparable(_reported(book, Place(row, column))) for row in book.plan.rows}


def _reported(book: Book, place: Place) -> Experiment:
    """A cell's first experiment of the report."""
    cell = next(cell for cell in book.cells if cell.place == place)
    return cell.wanted(cell.first[0], "report", book.plan.report.seeds[0]).experiment


def _comparable(experiment: Experiment) -> dict[str, Any]:
    return {
        key: value
        for key, value in flatten(experiment.tree()).items()
        if key not in (*NOT_COMPARED, "plugins") and not key.startswith(OWN)
    }


def _searched(plan: TablePlan, row: str) -> dict[str, str]:
    """What a row searches besides its method's own keys, in words."""
    axes = plan.rows[row].axes
    return {key: _words(axis, key) for axis in axes for key in axis.keys if not key.startswith(OWN)}


def _words(axis: Axis, key: str) -> str:
    if not axis.is_listed:
        return f"{axis.distribution} {' to '.join(map(show_value, axis.values))}"
    return ", ".join(dict.fromkeys(show_value(config[key]) for config in axis.configs))


def _steps(experiment: Experiment) -> int:
    from fedray.core import HyperParameters

    use(experiment.plugins)  # the process may be at another run's
    hparams = parameters(experiment.algorithm, "algorithm", "algorithm")
    assert isinstance(hparams, HyperParameters)
    return hparams.local_steps(experiment.local_epochs)


def _grouped(said: Mapping[str, str]) -> str:
    """Of which rows what is said, the most common one last: "base: 4; else 16"."""
    rows: dict[str, list[str]] = defaultdict(list)
    for row, words in said.items():
        rows[words].append(row)
    *rest, usual = sorted(rows, key=lambda words: len(rows[words]))
    return "; ".join([*(f"{', '.join(rows[words])}: {words}" for words in rest), f"else {usual}"])
