"""The runs of a table inside Ray Tune: each a trial, begun when its cell asks for it.

The trial, the warm processes, the watcher and the progress are the sweep's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.search import Searcher

from fedray.config import Experiment
from fedray.records import RunFolder
from fedray.sweep.command import tune_trials
from fedray.sweep.runs import TrialRuns
from fedray.sweep.seeds import MergedRound, Objective
from fedray.sweep.trial import Lockstep, reports, tell
from fedray.sweep.watch import SweepProgress, Watcher
from fedray.tables.book import Book, entry


class ReadyRuns(Searcher):  # type: ignore[misc]
    """Gives Ray Tune the runs that are ready, and waits while none is.

    Args:
        book: knows which.
    """

    def __init__(self, book: Book) -> None:
        super().__init__(metric="objective", mode="max")
        self._book = book

    def suggest(self, trial_id: str) -> Any:
        """The next run; None while there is none, and at the end that it is the end."""
        trial = self._book.next()
        if trial is not None:
            trial.status = "running"
            return {"trial": entry(trial, self._book.plan)}
        return Searcher.FINISHED if self._book.is_complete else None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Nothing: the watcher enters it in the book."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing to keep: the runs' folders are what a table is resumed from."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore."""


class TableWatcher(Watcher):
    """Writes the page whenever a cell is over, so that a night's table can be read in between.

    Args:
        book: the table.
        runs: the table in MLflow; None does not track.
        show: shows progress.
        write: writes the page.
    """

    def __init__(
        self, book: Book, runs: TrialRuns | None, show: SweepProgress, write: Callable[[], object]
    ) -> None:
        super().__init__(book, runs, show)
        self._book = book
        self._write = write
        self._over = book.cells_over

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """A run is over."""
        super().on_trial_complete(iteration, trials, trial, **info)
        if self._book.cells_over > self._over:
            self._over = self._book.cells_over
            self._write()


def run_one(config: Mapping[str, Any]) -> None:
    """The trainable: one experiment in its folder.

    Args:
        config: under "trial", what `fedray.tables.book.entry` gives.
    """
    trial = config["trial"]
    folder = Path(trial["folder"])
    tell(trial, folder, lambda: reports(_alone(trial, folder)))


def _alone(trial: Mapping[str, Any], folder: Path) -> Lockstep:
    runs = [RunFolder(folder)]
    return Lockstep(
        [experiment_in(trial)],
        folder,
        runs,
        trial["chooser"],
        trial["metric"],
        _so_far,
        wait_seconds=-1,  # for another table that has begun the same run
    )


def _so_far(rounds: Sequence[MergedRound]) -> Objective | None:
    """The last number, for who looks at the trial while it runs."""
    trained = [each for each in rounds if each.round > 0]
    found = [(each.round, value) for each in trained if (value := each.by_seed[0]) is not None]
    return Objective(found[-1][1], 0.0, [found[-1][0]]) if found else None


def experiment_in(trial: Mapping[str, Any]) -> Experiment:
    """What a trial runs, as the driver resolved it."""
    return Experiment.model_validate(json.loads(trial["experiment"]))


def fit(book: Book, watcher: Watcher, concurrent: int) -> None:
    """Let Ray Tune run what is left of a table."""
    config = tune.TuneConfig(
        search_alg=ReadyRuns(book),
        num_samples=-1,
        max_concurrent_trials=concurrent,
        metric="objective",
        mode="max",
        trial_dirname_creator=lambda trial: f"trial_{trial.config['trial']['number']:05d}",
        reuse_actors=True,
    )
    tune_trials(run_one, experiment_in, ({}, config), book.home, watcher)
