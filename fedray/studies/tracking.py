"""A study in MLflow: an experiment per study, a parent run per invocation, a child per run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fedray.compare.labels import config_label
from fedray.config import Experiment
from fedray.records import RunFolder, RunInfo, Status, environment, is_claimed, versions
from fedray.studies.cell import RunSpec
from fedray.studies.study import FILE, Study, StudyRun
from fedray.tracking import (
    DATA_TAG,
    METHOD_TAG,
    TrackedRun,
    Tracker,
    as_params,
    describe_run,
    picture,
    read_metadata,
    run_key,
    source_tags,
    tracked_run,
)

SMALL_ARTIFACTS = ("result.json", "rounds.jsonl", "partition.png")
"""The files that MLflow keeps of a run in a study, of which there are many."""
ARTIFACTS = {
    "sweep": (FILE, "sweep.yaml", "trials.csv", "means.csv", "sweep.png", "best.yaml"),
    "table": (
        FILE,
        "table.yaml",
        "table.json",
        "table.md",
        "table.tex",
        "table.html",
        "figure.png",
    ),
}
FIGURES = {"sweep": "sweep.png", "table": "figure.png"}
ENDS: Mapping[str, Status] = {"failed": "FAILED", "finished": "FINISHED"}
"""MLflow's status of a run that has ended; a stopped or interrupted one is KILLED."""
Tracked = Status | Literal["RUNNING"] | None
"""A status as `TrackedRun` has it."""


@dataclass(frozen=True)
class Conclusion:
    """The results of an invocation, for MLflow.

    Attributes:
        metrics: numbers by name; empty if the study is not over.
        note: the rest of its description, in Markdown.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


class StudyTracker:
    """Keeps MLflow up to date with a study while its runs go; no call waits.

    Args:
        study: the invocation.
        tracker: sends the runs; the caller closes it.
    """

    def __init__(self, study: Study, tracker: Tracker) -> None:
        self._study = study
        self._tracker = tracker
        tracker.update("study", partial(study_run, study, "RUNNING"))

    def update(self, run: StudyRun) -> None:
        """Bring MLflow up to date with a run soon."""
        self._send(run, "RUNNING" if run.status == "running" else ENDS.get(run.status, "KILLED"))

    def end(self, conclude: Callable[[], Conclusion]) -> None:
        """Bring MLflow up to date with the study, which has ended."""
        for run in self._study.runs.values():
            if run.status == "running":
                self._send(run, "KILLED")
        study = self._study
        for spec in _of_earlier(study):
            self._tracker.update(spec.key, partial(run_of, study, spec, None))
        self._tracker.update("study", lambda: study_run(study, _end_of(study), conclude()))

    def _send(self, run: StudyRun, status: Tracked) -> None:
        make = partial(run_of, self._study, run.spec, status, run.ray_id)
        self._tracker.update(run.spec.key, make)


def _of_earlier(study: Study) -> list[RunSpec]:
    """Return the runs that an earlier process ended and no other invocation sent to MLflow."""
    own, now = _key_of(study), {run.spec.key for run in study.runs.values()}
    known = {run.key: run for cell, at in study.states() for run in cell.all_runs(at)}
    return [
        run
        for key, run in known.items()
        if key not in now
        and RunFolder(study.folder(key)).has_result
        and read_metadata(study.folder(key)).get("parent", own) == own
    ]


def study_runs(home: Path, conclude: Callable[[Study], Conclusion]) -> tuple[str, list[TrackedRun]]:
    """Read a study's folder as MLflow is to hold it.

    Returns:
        The MLflow experiment, and its runs, the parent first. While another process executes the
        study, what has not ended keeps its status.

    Raises:
        UserError: if the folder cannot be read.
    """
    study = Study.read(home)
    going = is_claimed(RunFolder(home))
    runs = [study_run(study, None if going else _end_of(study), conclude(study))]
    keys = dict[str, RunSpec]()
    for cell, state in study.states():
        for spec in cell.all_runs(state):
            if RunFolder(study.folder(spec.key)).has_result:
                keys.setdefault(spec.key, spec)
    runs += [run_of(study, spec, None) for spec in keys.values()]
    return study.plan.name, runs


def _end_of(study: Study) -> Status:
    if study.status != "finished":
        return "KILLED"
    came_through = any(state.phase == "over" for _, state in study.states())
    return "FINISHED" if came_through else "FAILED"


def run_of(study: Study, spec: RunSpec, status: Tracked, ray_id: str | None = None) -> TrackedRun:
    """Return one run of a study as MLflow is to hold it; see `tracked_run` for the status."""
    folder, plan = study.folder(spec.key), study.plan
    metadata = read_metadata(folder)
    if status is None and metadata:
        key = metadata["key"]  # perhaps of another study
    else:
        key = run_key(
            folder,
            spec.experiment.identity(),
            experiment=plan.name,
            name=study.name_of(spec),
            parent=_key_of(study),
        )
    planned = info_of(spec.experiment)
    run = tracked_run(folder, status, key=key, planned=planned, artifacts=SMALL_ARTIFACTS)
    tags = {**run.tags, **_tags(study), "config": config_label(spec.config)}
    if not plan.is_sweep:
        place = spec.place
        tags |= {"row": place.row, "column": place.column, "phase": spec.phase}
    if ray_id is not None:
        tags["ray_trial_id"] = ray_id
    files = run.files if run.is_going else [*run.files, (RunFolder(folder).error, "")]
    return replace(run, tags=tags, files=files, note="")


def study_run(study: Study, status: Tracked, conclusion: Conclusion | None = None) -> TrackedRun:
    """Return the parent run of an invocation as MLflow is to hold it."""
    plan = study.plan
    params: dict[str, Any] = {
        **{f"space.{axis}": tree for axis, tree in plan.rows[next(iter(plan.rows))].space.items()},
        **{f"tuning.{k}": v for k, v in plan.tuning.model_dump().items()},
        **{f"report.{k}": v for k, v in plan.report.model_dump().items()},
        **{f"set.{key}": value for key, value in {**plan.set, **plan.given}.items()},
        "experiment": plan.experiment,
        "metrics": plan.metrics,
        "select": plan.select,
        "at": plan.at,
    }
    params = {name.replace(",", "/").replace(" ", ""): v for name, v in params.items()}
    tags = {**_tags(study), "answers": plan.answers, "select": plan.select}
    if plan.select != "nothing":
        tags["chosen"] = plan.how
    run = TrackedRun(
        key=_key_of(study),
        name=_name_of(study),
        params=as_params(params),
        tags={**tags, **_shared_tags(study)},
        status=status,
        started_ms=int(datetime.fromisoformat(study.began).timestamp() * 1000),
    )
    if run.is_going or conclusion is None:
        return run
    figure = picture(plan.answers, FIGURES[plan.kind])
    return replace(
        run,
        metrics=conclusion.metrics,
        files=[(study.home / name, "") for name in ARTIFACTS[plan.kind]],
        note="\n\n".join(filter(None, [f"**{plan.answers}**", conclusion.note, figure])),
    )


def _name_of(study: Study) -> str:
    return f"{study.plan.name}-{study.home.name}"


def _key_of(study: Study) -> str:
    whole = hashlib.sha256(study.plan.model_dump_json().encode()).hexdigest()
    return run_key(study.home, whole, experiment=study.plan.name, name=_name_of(study))


def _tags(study: Study) -> dict[str, str]:
    plan = study.plan
    return {
        plan.kind: plan.name,
        "scale": plan.scale,
        **source_tags(study.command, versions()),
    }


def _shared_tags(study: Study) -> dict[str, str]:
    """Return the tags of method and data that all runs share."""
    found: list[Mapping[str, str]] = []
    for cell in study.cells:
        for config in cell.first[:1] + cell.first[-1:]:
            experiment = cell.run_spec(config, "tuning", study.plan.tuning_seeds[0]).experiment
            found.append(describe_run(info_of(experiment))[1])
    return {
        name: found[0][name]
        for name in (METHOD_TAG, DATA_TAG)
        if found and len({tags.get(name) for tags in found}) == 1 and name in found[0]
    }


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
