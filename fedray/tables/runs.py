"""A table in MLflow: an experiment per table, a run per cell, below it one per seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from fedray.records import RunFolder, is_claimed, versions
from fedray.sweep.ledger import Trial
from fedray.sweep.runs import SMALL_ARTIFACTS, Tracked, end_of, info_of
from fedray.sweep.spec import words
from fedray.tables.agenda import Wanted
from fedray.tables.book import FILE, Book, wanted_of
from fedray.tables.outcome import Outcome, outcome
from fedray.tables.plan import Place
from fedray.tables.published import DATA
from fedray.tracking import (
    TrackedRun,
    Tracker,
    as_params,
    grouped,
    picture,
    read_metadata,
    run_key,
    source_tags,
    tracked_run,
)

ARTIFACTS = (FILE, "table.yaml", DATA, "table.md", "table.tex", "table.html", "figure.png")
CellMetrics = Mapping[Place, Mapping[str, float]]
"""Final metrics of the cells that are over, by place."""


class TableRuns:
    """Keeps MLflow up to date with a table while its runs go; no call waits.

    A run that several cells need is a child of the first of them.

    Args:
        book: the invocation.
        tracker: sends the runs; the caller closes it.
    """

    def __init__(self, book: Book, tracker: Tracker) -> None:
        self._book = book
        self._tracker = tracker
        self._cells: set[Place] = set()

    def update(self, trial: Trial) -> None:
        """Bring MLflow up to date with a run soon, and with its cell before."""
        self._send(trial, "RUNNING" if trial.status == "running" else end_of(trial))

    def end(self, metrics: CellMetrics) -> None:
        """Bring MLflow up to date with the table, which has ended."""
        for trial in self._book.ordered:
            if trial.status == "running":
                self._send(trial, "KILLED")
        for place in self._book.plan.places if metrics else self._cells:
            self._tracker.update(str(place), partial(ended_cell, self._book, place, metrics))

    def _send(self, trial: Trial, status: Tracked) -> None:
        book, wanted, ray_id = self._book, wanted_of(trial), trial.ray_id
        if wanted.place not in self._cells:
            self._cells.add(wanted.place)
            cell = partial(cell_run, book, wanted.place, "RUNNING")
            self._tracker.update(str(wanted.place), cell)
        self._tracker.update(wanted.key, partial(run_of, book, wanted, status, ray_id))


def table_runs(home: Path) -> tuple[str, list[TrackedRun]]:
    """Read a table's folder as MLflow is to hold it.

    Returns:
        The MLflow experiment, and its runs, cells first: of each cell that has runs, those that are
        reported and those that it was tuned with. While another process executes the table, what
        has not ended keeps its status.

    Raises:
        UserError: if the folder cannot be read.
    """
    book = Book.read(home)
    found = outcome(book)
    is_going = is_claimed(RunFolder(home))
    metrics = cell_metrics(found)
    cells, runs = [], {}
    for place, cell in found.cells.items():
        wanted = [each for each in cell.runs if RunFolder(book.folder(each.key)).has_result]
        if wanted:
            going = is_going and place not in metrics
            cells.append(cell_run(book, place, None) if going else ended_cell(book, place, metrics))
        for each in wanted:
            if each.key not in runs:
                runs[each.key] = run_of(book, each, None)
    return book.plan.table, [*cells, *runs.values()]


def run_of(book: Book, wanted: Wanted, status: Tracked, ray_id: str | None = None) -> TrackedRun:
    """Return one run of a table as MLflow is to hold it; see `tracked_run` for the status."""
    folder, plan = book.folder(wanted.key), book.plan
    metadata = read_metadata(folder)
    if status is None and metadata:
        key = metadata["key"]  # perhaps of another table
    else:
        config = f"{words(wanted.config)} " if wanted.config else ""
        key = run_key(
            folder,
            wanted.experiment.identity(),
            experiment=plan.table,
            name=f"{wanted.phase} {config}seed {wanted.seed}",
            parent=_cell_key(book, wanted.place),
        )
    planned = info_of(wanted.experiment)
    run = tracked_run(folder, status, key=key, planned=planned, artifacts=SMALL_ARTIFACTS)
    tags = {**run.tags, **_tags(book, wanted.place), "phase": wanted.phase}
    if ray_id is not None:
        tags["ray_trial_id"] = ray_id
    files = run.files if run.is_going else [*run.files, (RunFolder(folder).error, "")]
    return replace(run, tags=tags, files=files, note="")


def ended_cell(book: Book, place: Place, metrics: CellMetrics) -> TrackedRun:
    """Return the parent run of a cell that has ended, with what it came to if it is over."""
    run = cell_run(book, place, "FINISHED" if place in metrics else "KILLED")
    note = f"**{book.plan.answers}**\n\n{picture('the table as a figure', 'figure.png')}"
    return replace(
        run,
        metrics={grouped(name): value for name, value in metrics.get(place, {}).items()},
        files=[(book.home / name, "") for name in ARTIFACTS],
        note=note,
    )


def cell_run(book: Book, place: Place, status: Tracked) -> TrackedRun:
    """Return the parent run of a cell as MLflow is to hold it."""
    plan = book.plan
    row = plan.rows[place.row]
    params: dict[str, Any] = {
        **{f"space.{axis}": tree for axis, tree in row.space.items()},
        **{f"tuning.{k}": v for k, v in plan.tuning.model_dump().items()},
        **{f"report.{k}": v for k, v in plan.report.model_dump().items()},
        "select": plan.select,
    }
    params = {name.replace(",", "/").replace(" ", ""): v for name, v in params.items()}
    return TrackedRun(
        key=_cell_key(book, place),
        name=str(place),
        params=as_params(params),
        tags=_tags(book, place),
        status=status,
        started_ms=int(datetime.fromisoformat(book.began).timestamp() * 1000),
    )


def cell_metrics(found: Outcome) -> dict[Place, dict[str, float]]:
    """Return the metrics of each cell that is over: means over seeds."""
    metrics: dict[Place, dict[str, float]] = {}
    for place, cell in found.cells.items():
        if cell.standing.phase != "over":
            continue
        values = [one.measured.values for one in cell.seeds if one.measured is not None]
        metrics[place] = {
            name: sum(value[name] for value in values) / len(values)
            for name in (values[0] if values else ())
        }
    return metrics


def _cell_key(book: Book, place: Place) -> str:
    whole = hashlib.sha256(book.plan.model_dump_json().encode()).hexdigest()
    home = run_key(book.home, whole, experiment=book.plan.table, name=book.home.name)
    return f"{home}-{place}"


def _tags(book: Book, place: Place) -> dict[str, str]:
    plan = book.plan
    where = {"row": place.row, "column": place.column}
    source = source_tags(book.command, versions())
    return {"table": plan.table, "scale": plan.scale, **where, **source}
