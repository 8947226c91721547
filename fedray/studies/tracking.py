"""A study in MLflow: an experiment per study, a parent per invocation, its runs below it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fedray.results.labels import config_label
from fedray.results.record import Measured
from fedray.storage.environment import versions
from fedray.storage.metric import find_metric
from fedray.studies.plan import RunSpec, StudyPlan, known_metrics
from fedray.studies.store import sign_of
from fedray.studies.study import FILE, Study
from fedray.tracking.describe import (
    ARTIFACT,
    RunStatus,
    TrackedRun,
    as_params,
    source_tags,
)
from fedray.tracking.study import OBJECTIVE, TrackedMember, TrackedStudy

ARTIFACTS = {
    "sweep": (FILE, "sweep.yaml", "trials.csv", "sweep.png", "best.yaml"),
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


@dataclass(frozen=True)
class Conclusion:
    """The results of an invocation, for MLflow.

    Attributes:
        metrics: numbers by name; empty if the study is not finished.
        note: further description in Markdown.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


def write_tracking(study: Study, conclusion: Conclusion | None = None) -> None:
    """Write what MLflow shows of a study into its folder.

    Args:
        study: the study, as its process knows it.
        conclusion: its results; None: the study goes on.
    """
    tracked_study(study, conclusion).write(study.home)


def tracked_study(study: Study, conclusion: Conclusion | None = None) -> TrackedStudy:
    """Return what MLflow shows of a study; `write_tracking` explains the arguments."""
    plan = study.plan
    swept = swept_keys(plan) if plan.is_sweep else []
    metric = find_metric(plan.chosen_by(next(iter(plan.rows))), known_metrics())
    return TrackedStudy(
        parent=_parent(study, conclusion),
        runs={
            os.path.relpath(study.folder(key), study.home): _member(study, spec)
            for key, spec in study.needed.items()
        },
        question=plan.answers,
        swept=[*as_params(dict.fromkeys(swept))],
        is_min=metric is not None and sign_of(metric) < 0,
    )


def _member(study: Study, spec: RunSpec) -> TrackedMember:
    """Return what a study knows of a run."""
    tags = {**_tags(study), "config": config_label(spec.config)}
    if not study.plan.is_sweep:
        tags |= {"row": spec.place.row, "column": spec.place.column, "phase": spec.phase}
    status: RunStatus | None = None
    metrics = {}
    end = study.end_of(spec)
    if study.status_of(spec) == "stopped":
        status = "KILLED"
    elif isinstance(end, Measured):
        status, metrics = "FINISHED", {OBJECTIVE: end.choice}
    elif end is not None:
        status = "FAILED"
    return TrackedMember(study.name_of(spec), tags, metrics, status)


def swept_keys(plan: StudyPlan) -> list[str]:
    """Return the searched keys with more than one value; all keys if there is none."""
    values = {
        key: {repr(config[key]) for config in axis.configs}
        for axis in plan.axes
        for key in axis.keys
    }
    return [key for key, several in values.items() if len(several) > 1] or [*values]


def _parent(study: Study, conclusion: Conclusion | None) -> TrackedRun:
    """Return the parent run of an invocation."""
    plan = study.plan
    params: dict[str, Any] = {
        **_spaces(plan),
        **{f"tuning.{k}": v for k, v in plan.tuning.model_dump(exclude_none=True).items()},
        **{f"report.{k}": v for k, v in plan.report.model_dump(exclude_none=True).items()},
        **{f"set.{key}": value for key, value in {**plan.set, **plan.given}.items()},
        "experiment": plan.experiment,
        "metrics": plan.metrics,
        "select": plan.select,
        "at": plan.at,
    }
    params = {name.replace(",", "/").replace(" ", ""): v for name, v in params.items()}
    tags = {**_tags(study), "answers": plan.answers, "select": plan.select, "chosen": plan.how}
    digest = hashlib.sha256(f"{plan.model_dump_json()} {study.began}".encode()).hexdigest()
    about = Conclusion() if conclusion is None else conclusion
    figure = f"![{plan.answers}]({ARTIFACT}{FIGURES[plan.kind]})"
    return TrackedRun(
        key=digest[:32],
        name=f"{plan.name}-{study.home.name}",
        experiment=plan.name,
        params=as_params(params),
        tags=tags,
        status=_status_of(study, conclusion),
        started_ms=round(1000 * datetime.fromisoformat(study.began).timestamp()),
        metrics=about.metrics,
        files=[Path(name) for name in ARTIFACTS[plan.kind]],
        note="\n\n".join([about.note or f"**{plan.answers}**", figure]),
    )


def _status_of(study: Study, conclusion: Conclusion | None) -> RunStatus:
    if conclusion is None or study.status == "running":
        return "RUNNING"  # or KILLED, if no process executes it
    came_through = any(state.phase == "over" for state in study.states)
    return "FINISHED" if came_through else "FAILED"


def _spaces(plan: StudyPlan) -> dict[str, Any]:
    """Return the search space by axis; by row and axis if rows search different spaces."""
    spaces = {row: of.space for row, of in plan.rows.items()}
    first = next(iter(spaces.values()))
    if all(space == first for space in spaces.values()):
        return {f"space.{axis}": tree for axis, tree in first.items()}
    return {
        f"space.{row}.{axis}": tree for row, space in spaces.items() for axis, tree in space.items()
    }


def _tags(study: Study) -> dict[str, str]:
    plan = study.plan
    return {
        plan.kind: plan.name,
        "scale": plan.scale,
        **source_tags(study.command, versions()),
    }
