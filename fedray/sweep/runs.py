"""The sweep in MLflow: a parent run per invocation, a child per trial."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fedray.config import Experiment
from fedray.sweep.ledger import Ledger, Trial
from fedray.sweep.spec import words
from fedray.tracking import MlflowTracker, Status, describe_run, run_key, tracker_for


class SweepRuns:
    """Feeds MLflow from the driver; nothing waits for it, not even for the parent run.

    Args:
        ledger: the invocation.
        hashes: partition hashes by `partition_key`, as far as known.

    Raises:
        UserError: when MLflow is not installed or its URI cannot be used.
    """

    def __init__(self, ledger: Ledger, hashes: Mapping[str, str]) -> None:
        self._ledger = ledger
        self._hashes = hashes
        self._keys: dict[int, str] = {}
        self.parent = tracker_for(ledger.question.sweep, ledger.home)
        self._calls = ThreadPoolExecutor(1, thread_name_prefix="sweep-runs")
        self._children: MlflowTracker | None = None
        self._calls.submit(self._open)

    def _open(self) -> None:
        """Open the parent and make the children's tracker; the first call of the thread."""
        question, home = self._ledger.question, self._ledger.home
        asked = question.model_dump(mode="json")
        identity = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
        params = {key: asked[key] for key in ("search", "metric", "at", "mode", "seeds", "asha")}
        params |= {f"space.{key}": value for key, value in question.space.items()}
        params |= {f"set.{key}": value for key, value in question.set.items()}
        params["experiment"] = question.experiment
        tags = {"sweep": question.sweep, "scale": question.scale, "answers": question.answers}
        name = f"{question.sweep}-{home.name}"
        key = run_key(home, identity, experiment=question.sweep, name=name)
        parent = self.parent.start_parent(name, params, tags, key=key)
        self._children = MlflowTracker(self.parent.uri, question.sweep, parent=parent, folder=home)

    def start(self, trial: Trial, experiment: Experiment, ray_id: str) -> None:
        """Open a trial's run, or the one that it had before an interruption."""
        question = self._ledger.question
        seeds = ",".join(str(seed) for seed in question.seeds)
        params, tags = describe_run(experiment)
        tags |= {
            "seed": seeds,
            "sweep": question.sweep,
            "trial": str(trial.number),
            "config": words(trial.config),
            "ray_trial_id": ray_id,
        }
        found = [
            self._hashes.get(partition_key(question.experiment_of(trial.config, seed)))
            for seed in question.seeds
        ]
        if all(found):
            tags["partition_sha256"] = ",".join(str(one) for one in found)
        folder = self._ledger.home / trial.name
        self._keys[trial.number] = run_key(
            folder,
            f"{experiment.identity()}-{seeds}",
            experiment=question.sweep,
            name=trial.name,
        )
        self._later("start", trial, trial.name, params={**params, "seed": seeds}, tags=tags)

    def round(self, trial: Trial, row: Mapping[str, Any]) -> None:
        """Log a round of a trial; one that is there already is skipped."""
        self._later("round", trial, row)

    def finish(self, trial: Trial, status: Status) -> None:
        """Close a trial's run, if it was opened here."""
        if trial.number not in self._keys:
            return
        metrics = {}
        if trial.objective is not None and trial.status in ("finished", "stopped"):
            metrics = {"objective": trial.objective, "objective_std": trial.std}
            metrics["best_round"] = float(trial.best_round or 0)
        self._later("finish", trial, status, self._artifacts(trial), metrics)

    def _later(self, call: str, trial: Trial, *args: Any, **kwargs: Any) -> None:
        key = self._keys[trial.number]

        def do() -> None:
            assert self._children is not None
            getattr(self._children, call)(key, *args, **kwargs)

        self._calls.submit(do)

    def _artifacts(self, trial: Trial) -> list[Path]:
        """Files of a trial; with several seeds, links whose names tell them apart."""
        folder = self._ledger.home / trial.name
        seeds = self._ledger.question.seeds
        found = []
        for name in ("result.json", "partition.png"):
            for seed in seeds:
                path = folder / f"seed_{seed}" / name
                if len(seeds) > 1 and path.exists():
                    stem, end = name.split(".")
                    link = folder / f"{stem}_seed_{seed}.{end}"
                    link.unlink(missing_ok=True)
                    link.hardlink_to(path)
                    path = link
                found.append(path)
        return [*found, folder / "error.txt"]

    def close(self, status: Status, artifacts: Sequence[Path] = ()) -> None:
        """Close the sweep's run with its table and figure, and write what is left."""
        self._calls.shutdown(wait=True)
        metrics: dict[str, float] = {}
        best = self._ledger.best
        if best is not None and best.objective is not None:
            metrics = {"best_objective": best.objective, "best_trial": float(best.number)}
        ends = [trial.status for trial in self._ledger.ordered]
        metrics |= {f"trials_{end}": float(ends.count(end)) for end in ("finished", "failed")}
        if self._children is not None:
            self._children.close()
            self.parent.finish_parent(status, artifacts, metrics)
        self.parent.close()


def partition_key(experiment: Experiment) -> str:
    """What a partition follows from: the data's keys and the seed."""
    return f"{experiment.data.model_dump_json()}/{experiment.seed}"
