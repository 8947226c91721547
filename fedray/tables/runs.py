"""A table in MLflow: an experiment per table, a run per cell, below it one per seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from fedray.records import Round, RunFolder, Status, versions
from fedray.sweep.ledger import Trial
from fedray.sweep.runs import ENDS, info_of
from fedray.sweep.spec import words
from fedray.tables.book import FILE, Book, folder_of, wanted_of
from fedray.tables.plan import Place
from fedray.tables.published import DATA
from fedray.tracking import (
    FOLDER_TAG,
    MlflowTracker,
    describe_run,
    grouped,
    picture,
    run_key,
    source_tags,
)
from fedray.tracking.store import DEFERRED

ARTIFACTS = (FILE, "table.yaml", DATA, "table.md", "table.tex", "table.html")


class TableRuns:
    """Feeds a tracker from the driver; no call waits for it.

    A run that several cells need is a child of the first of them.

    Args:
        book: the invocation.
        tracker: where the runs go; the caller closes it.
    """

    def __init__(self, book: Book, tracker: MlflowTracker) -> None:
        self._book = book
        self._tracker = tracker
        self._cells: dict[Place, str] = {}
        self._keys: dict[int, str] = {}

    def start(self, trial: Trial, ray_id: str | None = None) -> None:
        """Open a run below its cell, or the one that it had before an interruption."""
        wanted, plan = wanted_of(trial), self._book.plan
        cell = self._cell(wanted.place)
        params, tags = describe_run(info_of(wanted.experiment))
        tags |= {**self._tags(wanted.place), "phase": wanted.phase}
        if ray_id is not None:
            tags["ray_trial_id"] = ray_id
        identity = wanted.experiment.identity()
        config = f"{words(wanted.config)} " if wanted.config else ""
        tags |= {FOLDER_TAG: folder_of(trial).name}
        name = f"{wanted.phase} {config}seed {wanted.seed}"
        above = f"{DEFERRED}{cell}"
        folder = folder_of(trial)
        key = run_key(folder, identity, experiment=plan.table, name=name, parent=above)
        self._keys[trial.number] = key
        self._tracker.start(key, name, params=params, tags=tags, parent=cell)

    def round(self, trial: Trial, mean: Round) -> None:
        """Log a round; one that is there is skipped."""
        self._tracker.round(self._keys[trial.number], mean)

    def finish(self, trial: Trial) -> None:
        """Close a run, if it was started here and is not closed."""
        key = self._keys.pop(trial.number, None)
        if key is None:
            return
        folder = RunFolder(folder_of(trial))
        files = [folder.result, folder.partition_plot, folder.error]
        self._tracker.finish(key, ENDS.get(trial.status, "KILLED"), files)

    def end(self, metrics: Mapping[Place, Mapping[str, float]]) -> None:
        """Close what is open, the cells with what they came to.

        Args:
            metrics: of the cells that are over.
        """
        for trial in self._book.ordered:
            self.finish(trial)
        files = [self._book.home / name for name in (*ARTIFACTS, "figure.png")]
        note = f"**{self._book.plan.answers}**\n\n{picture('the table as a figure', 'figure.png')}"
        for place in self._book.plan.places if metrics else []:
            self._cell(place)
        for place, key in self._cells.items():
            status: Status = "FINISHED" if place in metrics else "KILLED"
            found = {grouped(name): value for name, value in metrics.get(place, {}).items()}
            self._tracker.finish(key, status, files, found, note)
        self._cells.clear()

    def _cell(self, place: Place) -> str:
        """The key of a cell's run, which is opened first."""
        if place not in self._cells:
            plan, home = self._book.plan, self._book.home
            whole = hashlib.sha256(plan.model_dump_json().encode()).hexdigest()
            key = f"{run_key(home, whole, experiment=plan.table, name=home.name)}-{place}"
            row = plan.rows[place.row]
            params: dict[str, Any] = {
                **{f"space.{axis}": tree for axis, tree in row.space.items()},
                **{f"tuning.{k}": v for k, v in plan.tuning.model_dump().items()},
                **{f"report.{k}": v for k, v in plan.report.model_dump().items()},
                "select": plan.select,
            }
            params = {name.replace(",", "/").replace(" ", ""): v for name, v in params.items()}
            self._tracker.start(key, str(place), params=params, tags=self._tags(place))
            self._cells[place] = key
        return self._cells[place]

    def _tags(self, place: Place) -> dict[str, str]:
        plan = self._book.plan
        where = {"row": place.row, "column": place.column}
        source = source_tags(self._book.command, versions())
        return {"table": plan.table, "scale": plan.scale, **where, **source}
