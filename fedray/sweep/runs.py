"""The sweep in MLflow: a parent run per invocation, a child per trial with all its seeds."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

from fedray.config import Experiment
from fedray.errors import UserError
from fedray.markdown import markdown_table
from fedray.records import Run, RunFolder, RunInfo, Status, environment, is_claimed, versions
from fedray.sweep.ledger import Ledger, Trial
from fedray.sweep.seeds import merged_rounds, read_seeds, seed_folders
from fedray.sweep.show import best_command
from fedray.sweep.spec import SweepPlan, words
from fedray.tracking import (
    DATA_TAG,
    FOLDER_TAG,
    IDENTITY_TAG,
    METHOD_TAG,
    SEED_TAG,
    TrackedRun,
    Tracker,
    as_params,
    data_of,
    describe_run,
    grouped,
    picture,
    run_key,
    source_tags,
    started_ms,
    with_artifacts,
)

ENDS: dict[str, Status] = {"failed": "FAILED", "finished": "FINISHED"}
"""MLflow's status of a trial that is over; a stopped or interrupted one is KILLED."""
MOST_IN_NOTE = 10
"""Trials in the parent's description."""
SMALL_ARTIFACTS = ("result.json", "rounds.jsonl", "partition.png")
"""The files that MLflow keeps of a run in a study, of which there are many."""
ARTIFACTS = ("sweep.json", "sweep.yaml", "trials.csv", "sweep.png", "best.yaml")
Tracked = Status | Literal["RUNNING"] | None
"""A status as `TrackedRun` has it."""


class TrialRuns(Protocol):
    """Keeps MLflow up to date with the trials of a sweep or of a table."""

    def update(self, trial: Trial) -> None:
        """Bring MLflow up to date with a trial soon."""
        ...


class SweepRuns:
    """Keeps MLflow up to date with a sweep while its trials run; no call waits.

    Args:
        ledger: the invocation.
        tracker: sends the runs; the caller closes it.
    """

    def __init__(self, ledger: Ledger, tracker: Tracker) -> None:
        self._ledger = ledger
        self._tracker = tracker
        tracker.update("sweep", lambda: sweep_run(ledger, "RUNNING"))
        for trial in ledger.ordered:  # an interrupted process may have left them open
            if has_begun(ledger, trial):
                self.update(trial)

    def update(self, trial: Trial) -> None:
        """Bring MLflow up to date with a trial soon."""
        self._send(trial, "RUNNING" if trial.status == "running" else end_of(trial))

    def end(self) -> None:
        """Bring MLflow up to date with the whole sweep, which has ended."""
        for trial in self._ledger.ordered:
            if trial.status == "running":
                self._send(trial, "KILLED")
        self._tracker.update("sweep", lambda: sweep_run(self._ledger, end_of_sweep(self._ledger)))

    def _send(self, trial: Trial, status: Tracked) -> None:
        ledger, now = self._ledger, copy(trial)
        self._tracker.update(trial.name, lambda: trial_run(ledger, now, status))


def sweep_runs(home: Path) -> tuple[str, list[TrackedRun]]:
    """Read a sweep's folder as MLflow is to hold it.

    Returns:
        The MLflow experiment, and its runs, the parent first. While another process executes the
        sweep, what has not ended keeps its status.

    Raises:
        UserError: if the folder cannot be read.
    """
    ledger = Ledger.read(home)
    is_going = is_claimed(RunFolder(home))
    runs = [sweep_run(ledger, None if is_going else end_of_sweep(ledger))]
    for trial in ledger.ordered:
        if has_begun(ledger, trial):
            going = is_going and not trial.is_over
            runs.append(trial_run(ledger, trial, None if going else end_of(trial)))
    return ledger.plan.sweep, runs


def has_begun(ledger: Ledger, trial: Trial) -> bool:
    """Return True if a trial is over or has a folder."""
    return trial.is_over or (ledger.home / trial.name).is_dir()


def end_of(trial: Trial) -> Status:
    """Return MLflow's status of a trial that no process executes."""
    return ENDS.get(trial.status, "KILLED")


def end_of_sweep(ledger: Ledger) -> Status:
    """Return MLflow's status of a sweep that no process executes."""
    if ledger.status != "finished":
        return "KILLED"
    return "FINISHED" if ledger.through else "FAILED"


def sweep_run(ledger: Ledger, status: Tracked) -> TrackedRun:
    """Return the parent run of a sweep as MLflow is to hold it."""
    plan, home = ledger.plan, ledger.home
    tree = plan.model_dump(mode="json")
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
    run = TrackedRun(
        key=_sweep_key(ledger),
        name=_sweep_name(ledger),
        params=as_params(params),
        tags=tags,
        status=status,
        started_ms=int(datetime.fromisoformat(ledger.began).timestamp() * 1000),
    )
    if run.is_going:
        return run
    ends = [trial.status for trial in ledger.ordered]
    metrics: dict[str, float] = {}
    if ledger.status == "finished":  # those of an interrupted sweep are not final
        metrics = {f"trials_{end}": float(ends.count(end)) for end in ("finished", "failed")}
        if ledger.best is not None and ledger.best.objective is not None:
            metrics |= {"best_objective": ledger.best.objective}
            if ledger.best.test is not None:
                test = ledger.best.test
                metrics |= {"best_test": test, grouped(plan.metric): test}
    files = [(home / name, "") for name in ARTIFACTS]
    return replace(run, metrics=metrics, files=files, note=_note(ledger))


def _sweep_name(ledger: Ledger) -> str:
    return f"{ledger.plan.sweep}-{ledger.home.name}"


def _sweep_key(ledger: Ledger) -> str:
    plan = ledger.plan
    tree = plan.model_dump(mode="json")
    identity = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
    return run_key(ledger.home, identity, experiment=plan.sweep, name=_sweep_name(ledger))


def trial_run(ledger: Ledger, trial: Trial, status: Tracked) -> TrackedRun:
    """Return the run of a trial as MLflow is to hold it: the means over its seeds.

    Raises:
        UserError: if a result is damaged, unless the trial has failed.
    """
    plan, folder = ledger.plan, ledger.home / trial.name
    try:
        runs = read_seeds(folder, plan)
    except UserError:
        if trial.status != "failed":
            raise
        runs = []
    experiment = plan.experiment_of(trial.config, plan.seeds[0])
    params, tags = describe_run(info_of(experiment))
    del tags[IDENTITY_TAG]  # each seed has its own
    seeds = ",".join(str(seed) for seed in plan.seeds)
    name = f"{words(trial.config)} (trial {trial.number})"
    files = seed_folders(folder, plan.seeds)
    begun = [started_ms(run) for run in runs]
    run = TrackedRun(
        key=run_key(folder, f"{experiment.identity()}-{seeds}", experiment=plan.sweep, name=name),
        name=name,
        params={**params, "seed": seeds},
        tags={**tags, SEED_TAG: seeds, **_trial_tags(plan, trial, runs)},
        status=status,
        started_ms=min(begun, default=int(time.time() * 1000)),
        seconds=trial.seconds or None,
        rounds=[merged.mean for merged in merged_rounds(runs, plan)],
        parent=_sweep_key(ledger),
        data=[data for each in runs if (data := data_of(each.info)) is not None],
        metrics=_trial_metrics(trial),
    )
    if run.is_going:
        return run
    results = [(each, runs[number] if runs else None) for number, each in enumerate(files)]
    run = with_artifacts(run, results, SMALL_ARTIFACTS)
    return replace(run, files=[*run.files, (RunFolder(folder).error, "")])


def _trial_tags(plan: SweepPlan, trial: Trial, runs: Sequence[Run]) -> dict[str, str]:
    """Return the tags in which a trial's run differs from a run by itself."""
    tags = {
        **source_tags(f"fedray sweep {plan.sweep}", versions()),
        FOLDER_TAG: trial.name,
        "sweep": plan.sweep,
        "trial": str(trial.number),
        "config": words(trial.config),
        **_marks(plan),
    }
    if trial.ray_id is not None:
        tags["ray_trial_id"] = trial.ray_id
    if runs:
        tags[IDENTITY_TAG] = ",".join(run.info.identity for run in runs)
        tags["partition_sha256"] = ",".join(str(run.info.partition_sha256) for run in runs)
    return tags


def _trial_metrics(trial: Trial) -> dict[str, float]:
    if trial.objective is None or trial.status not in ("finished", "stopped"):
        return {}
    metrics = {"objective": trial.objective, "objective_std": trial.std}
    if trial.test is not None:
        metrics |= {"test": trial.test, "test_std": trial.test_std}
    return metrics


def _marks(plan: SweepPlan) -> dict[str, str]:
    """Return the tags about selection: on which images, and the label of the numbers."""
    chosen = {} if plan.select == "nothing" else {"chosen": plan.how}
    return {"select": plan.select, **chosen}


def _what_all_share(plan: SweepPlan) -> dict[str, str]:
    """Return the tags of method and data that all trials share."""
    _, tags = describe_run(info_of(plan.some_experiment()))
    swept = {".".join(key.split(".")[:2]) for key in plan.keys}
    shared = {}
    if not swept & {"algorithm", "algorithm.name"}:
        shared[METHOD_TAG] = tags[METHOD_TAG]
    if not swept & {"data", "data.source", "data.root"}:
        shared[DATA_TAG] = tags[DATA_TAG]
    return shared


def _note(ledger: Ledger) -> str:
    """Return the description of a sweep: the question, the best trials, the figure."""
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
        parts.append(
            markdown_table(["configuration", plan.objective, f"{plan.metric} (test)"], rows)
        )
        parts.append(picture(f"{plan.metric} against what was swept", "sweep.png"))
    if best is not None:
        parts.append(f"The best one alone: `{best_command(plan, best.config)}`")
    return "\n\n".join(parts)


def info_of(experiment: Experiment) -> RunInfo:
    """Return what is known of a run before it begins."""
    return RunInfo(
        name=experiment.name,
        scale=experiment.scale,
        algorithm=experiment.algorithm.name,
        config=experiment.tree(),
        seed=experiment.seed,
        identity=experiment.identity(),
        environment=environment(experiment.threads),
    )
