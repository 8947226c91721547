"""The sweep in MLflow: a parent run per invocation, a child per trial with all its seeds."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fedray.sweep.ledger import Ledger, Trial
from fedray.sweep.spec import words
from fedray.tracking import MlflowTracker, Status, describe_run, run_key

log = logging.getLogger(__name__)

ENDS: dict[str, Status] = {"failed": "FAILED", "finished": "FINISHED"}
"""How a trial's run ends; a stopped or interrupted one is KILLED."""
ARTIFACTS = ("sweep.json", "sweep.yaml", "trials.csv", "sweep.png", "best.yaml")


class SweepRuns:
    """Feeds a tracker from the driver; no call waits for it, not even for the parent run.

    Args:
        ledger: the invocation.
        tracker: where the runs go; the caller closes it.
    """

    def __init__(self, ledger: Ledger, tracker: MlflowTracker) -> None:
        self._ledger = ledger
        self._tracker = tracker
        self._keys: dict[int, str] = {}
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="sweep-runs")
        self._later(self._open)

    def _open(self) -> None:
        """Open the parent; the thread's first call, the trials' come after it."""
        question, home = self._ledger.question, self._ledger.home
        asked = question.model_dump(mode="json")
        identity = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        params = {key: asked[key] for key in ("search", "metric", "at", "mode", "seeds", "asha")}
        # MLflow's names have no commas
        params |= {f"space.{'/'.join(axis.keys)}": axis.tree() for axis in question.axes}
        params |= {f"set.{key}": value for key, value in question.set.items()}
        params["experiment"] = question.experiment
        tags = {"sweep": question.sweep, "scale": question.scale, "answers": question.answers}
        name = f"{question.sweep}-{home.name}"
        key = run_key(home, identity, experiment=question.sweep, name=name)
        self._tracker.start_parent(name, params, tags, key=key)

    def start(self, trial: Trial, ray_id: str | None = None) -> None:
        """Open a trial's run, or the one that it had before an interruption."""
        question = self._ledger.question
        experiment = question.experiment_of(trial.config, question.seeds[0])
        seeds = ",".join(str(seed) for seed in question.seeds)
        params, tags = describe_run(experiment)
        tags |= {
            "seed": seeds,
            "sweep": question.sweep,
            "trial": str(trial.number),
            "config": words(trial.config),
        }
        if ray_id is not None:
            tags["ray_trial_id"] = ray_id
        folder, identity = self._ledger.home / trial.name, f"{experiment.identity()}-{seeds}"
        key = run_key(folder, identity, experiment=question.sweep, name=trial.name)
        self._keys[trial.number] = key
        params["seed"] = seeds
        self._later(lambda: self._tracker.start(key, trial.name, params=params, tags=tags))

    def round(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Log a round of a trial; one that is there already is skipped."""
        key = self._keys[trial.number]
        self._later(lambda: self._tracker.round(key, row))

    def finish(self, trial: Trial) -> None:
        """Close a trial's run, if it was started here and is not closed."""
        key = self._keys.pop(trial.number, None)
        if key is None:
            return
        metrics = {}
        if trial.objective is not None and trial.status in ("finished", "stopped"):
            metrics = {"objective": trial.objective, "objective_std": trial.std}
        folder, status = self._ledger.home / trial.name, ENDS.get(trial.status, "KILLED")
        files = [
            folder / f"seed_{seed}" / name
            for seed in self._ledger.question.seeds
            for name in ("result.json", "partition.png")
        ]
        files.append(folder / "error.txt")
        self._later(lambda: self._tracker.finish(key, status, files, metrics))

    def end(self) -> None:
        """Close what is open, the parent at last with table and figure."""
        ledger = self._ledger
        for trial in ledger.ordered:
            self.finish(trial)
        ends = [trial.status for trial in ledger.ordered]
        metrics = {f"trials_{end}": float(ends.count(end)) for end in ("finished", "failed")}
        status: Status = "KILLED"
        if ledger.status == "finished":
            status = "FAILED" if ledger.best is None else "FINISHED"
        if ledger.best is not None and ledger.best.objective is not None:
            metrics |= {"best_objective": ledger.best.objective}
        files = [ledger.home / name for name in ARTIFACTS]
        self._later(lambda: self._tracker.finish_parent(status, files, metrics))
        self._calls.shutdown(wait=True)

    def _later(self, call: Callable[[], object]) -> None:
        self._calls.submit(_said, call)


def _said(call: Callable[[], object]) -> None:
    """Make a call whose error nobody waits for."""
    try:
        call()
    except Exception:
        log.warning("the tracker failed; results and sweep.json are complete", exc_info=True)


def replay(home: Path, tracker: MlflowTracker) -> None:
    """Tell a tracker all of a sweep, out of its folder.

    Args:
        home: the invocation's folder.
        tracker: skips what it has; the caller closes it.

    Raises:
        UserError: when the folder cannot be read.
    """
    from fedray.sweep.trial import read_rows

    ledger = Ledger.read(home)
    runs = SweepRuns(ledger, tracker)
    for trial in ledger.ordered:
        rows = read_rows(home / trial.name, ledger.question)
        if not rows and not trial.is_over:
            continue
        runs.start(trial)
        for row in rows:
            runs.round(trial, row)
        runs.finish(trial)
    runs.end()
