"""The sweep in MLflow: a parent run per invocation, a child per trial with all its seeds."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from fedray.config import Experiment
from fedray.errors import Failure
from fedray.records import Round, RunFolder, RunInfo, Status, environment, versions
from fedray.sweep.ledger import Ledger, Trial
from fedray.sweep.seeds import read_merged, seed_folders
from fedray.sweep.show import best_command
from fedray.sweep.spec import SweepPlan, words
from fedray.tracking import (
    DATA_TAG,
    FOLDER_TAG,
    IDENTITY_TAG,
    METHOD_TAG,
    SEED_TAG,
    MlflowTracker,
    describe_run,
    grouped,
    picture,
    run_key,
    source_tags,
    table,
)

log = logging.getLogger(__name__)

ENDS: dict[str, Status] = {"failed": "FAILED", "finished": "FINISHED"}
"""How a trial's run ends; a stopped or interrupted one is KILLED."""
MOST_IN_NOTE = 10
"""Trials in the parent's description."""
ARTIFACTS = ("sweep.json", "sweep.yaml", "trials.csv", "sweep.png", "best.yaml")


class TrialRuns(Protocol):
    """Trials as a tracker shows them; what the driver tells of them."""

    def start(self, trial: Trial, ray_id: str | None = None) -> None:
        """Open a trial's run, or the one that it had before an interruption."""
        ...

    def round(self, trial: Trial, mean: Round) -> None:
        """Log a round of a trial; one that is there is skipped."""
        ...

    def finish(self, trial: Trial) -> None:
        """Close a trial's run."""
        ...


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
        plan, home = self._ledger.plan, self._ledger.home
        tree = plan.model_dump(mode="json")
        identity = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
        params = {
            key: tree[key]
            for key in ("search", "metric", "objective", "select", "at", "mode", "seeds", "asha")
        }
        # MLflow's names have no commas
        params |= {f"space.{'/'.join(axis.keys)}": axis.tree() for axis in plan.axes}
        params |= {f"set.{key}": value for key, value in plan.set.items()}
        params["experiment"] = plan.experiment
        tags = {"sweep": plan.sweep, "scale": plan.scale, "answers": plan.answers}
        tags |= _marks(plan)
        tags |= _what_all_share(plan)
        tags |= source_tags(f"fedray sweep {plan.sweep}", versions())
        name = f"{plan.sweep}-{home.name}"
        key = run_key(home, identity, experiment=plan.sweep, name=name)
        self._tracker.start_parent(name, params, tags, key=key)

    def start(self, trial: Trial, ray_id: str | None = None) -> None:
        """Open a trial's run, or the one that it had before an interruption."""
        plan = self._ledger.plan
        experiment = plan.experiment_of(trial.config, plan.seeds[0])
        seeds = ",".join(str(seed) for seed in plan.seeds)
        params, tags = describe_run(info_of(experiment))
        del tags[IDENTITY_TAG]  # the seeds' own are added at the end, with the data's hash
        tags |= source_tags(f"fedray sweep {plan.sweep}", versions())
        tags |= {
            SEED_TAG: seeds,
            FOLDER_TAG: trial.name,
            "sweep": plan.sweep,
            "trial": str(trial.number),
            "config": words(trial.config),
            **_marks(plan),
        }
        if ray_id is not None:
            tags["ray_trial_id"] = ray_id
        folder, identity = self._ledger.home / trial.name, f"{experiment.identity()}-{seeds}"
        name = f"{words(trial.config)} (trial {trial.number})"
        key = run_key(folder, identity, experiment=plan.sweep, name=name)
        self._keys[trial.number] = key
        params["seed"] = seeds
        self._later(lambda: self._tracker.start(key, name, params=params, tags=tags))

    def round(self, trial: Trial, mean: Round) -> None:
        """Log a round of a trial, the mean over its seeds; one that is there is skipped."""
        key = self._keys[trial.number]
        self._later(lambda: self._tracker.round(key, mean))

    def finish(self, trial: Trial) -> None:
        """Close a trial's run, if it was started here and is not closed."""
        key = self._keys.pop(trial.number, None)
        if key is None:
            return
        metrics = {}
        if trial.objective is not None and trial.status in ("finished", "stopped"):
            metrics = {"objective": trial.objective, "objective_std": trial.std}
            if trial.test is not None:
                metrics |= {"test": trial.test, "test_std": trial.test_std}
        folder, status = self._ledger.home / trial.name, ENDS.get(trial.status, "KILLED")
        seeds = seed_folders(folder, self._ledger.plan.seeds)
        files = [file for seed in seeds for file in (seed.result, seed.partition_plot)]
        files.append(RunFolder(folder).error)
        self._later(lambda: self._tracker.finish(key, status, files, metrics))

    def end(self) -> None:
        """Close what is open, the parent at last with table and figure."""
        ledger = self._ledger
        for trial in ledger.ordered:
            self.finish(trial)
        ends = [trial.status for trial in ledger.ordered]
        metrics: dict[str, float] = {}  # of an interrupted sweep they are not final
        status: Status = "KILLED"
        if ledger.status == "finished":
            status = "FINISHED" if ledger.through else "FAILED"
            metrics = {f"trials_{end}": float(ends.count(end)) for end in ("finished", "failed")}
        if metrics and ledger.best is not None and ledger.best.objective is not None:
            metrics |= {"best_objective": ledger.best.objective}
            if ledger.best.test is not None:
                test = ledger.best.test
                metrics |= {"best_test": test, grouped(ledger.plan.metric): test}
        files = [ledger.home / name for name in ARTIFACTS]
        note = _note(ledger)
        self._later(lambda: self._tracker.finish_parent(status, files, metrics, note))
        self._calls.shutdown(wait=True)

    def _later(self, call: Callable[[], object]) -> None:
        self._calls.submit(_logged, call)


def _marks(plan: SweepPlan) -> dict[str, str]:
    """On which images is chosen, and what that makes of the numbers."""
    chosen = {} if plan.select == "nothing" else {"chosen": plan.how}
    return {"select": plan.select, **chosen}


def _what_all_share(plan: SweepPlan) -> dict[str, str]:
    """The method and the data, where these are not what is swept."""
    _, tags = describe_run(info_of(plan.some_experiment()))
    swept = {".".join(key.split(".")[:2]) for key in plan.keys}
    shared = {}
    if not swept & {"algorithm", "algorithm.name"}:
        shared[METHOD_TAG] = tags[METHOD_TAG]
    if not swept & {"data", "data.source", "data.root"}:
        shared[DATA_TAG] = tags[DATA_TAG]
    return shared


def _note(ledger: Ledger) -> str:
    """The parent's description: the question, the best trials, the figure."""
    plan, best = ledger.plan, ledger.best
    sign = 1 if plan.mode == "min" else -1
    over = [trial for trial in ledger.through if trial.objective is not None]
    ranked = sorted(over, key=lambda trial: sign * (trial.objective or 0.0))[:MOST_IN_NOTE]
    rows = [
        [
            words(trial.config),
            f"{trial.objective:.4f}",
            "" if trial.test is None else f"{trial.test:.4f}",
        ]
        for trial in ranked
    ]
    parts = [f"**{plan.answers}**", f"{len(ledger.ordered)} trials [{plan.scale} scale]."]
    if rows:
        parts.append(table(["configuration", plan.objective, f"{plan.metric} (test)"], rows))
        parts.append(picture(f"{plan.metric} against what was swept", "sweep.png"))
    if best is not None:
        parts.append(f"The best one alone: `{best_command(plan, best.config)}`")
    return "\n\n".join(parts)


def _logged(call: Callable[[], object]) -> None:
    """Make a call whose error nobody waits for."""
    try:
        call()
    except Exception as error:
        trace = Failure.of(error).traceback
        log.warning("the tracker failed; results and sweep.json are complete\n%s", trace)


def info_of(experiment: Experiment) -> RunInfo:
    """What is known of a trial's runs before they begin."""
    return RunInfo(
        name=experiment.name,
        scale=experiment.scale,
        algorithm=experiment.algorithm.name,
        config=experiment.tree(),
        seed=experiment.seed,
        identity=experiment.identity(),
        environment=environment(experiment.threads),
    )


def replay(home: Path, tracker: MlflowTracker) -> None:
    """Log a finished sweep to a tracker, from its folder.

    Args:
        home: the invocation's folder.
        tracker: skips what it has; the caller closes it.

    Raises:
        UserError: when the folder cannot be read.
    """
    ledger = Ledger.read(home)
    runs = SweepRuns(ledger, tracker)
    for trial in ledger.ordered:
        rounds = read_merged(home / trial.name, ledger.plan)
        if not rounds and not trial.is_over:
            continue
        runs.start(trial)
        for merged in rounds:
            runs.round(trial, merged.mean)
        runs.finish(trial)
    runs.end()
