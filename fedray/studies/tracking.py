"""A study in MLflow: an experiment per study, a parent run per invocation, children below it.

The children of a table are its runs. Those of a sweep are its trials, each with its objective and
the runs of its seeds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import pandas

from fedray.config import Experiment
from fedray.errors import UserError
from fedray.results.design import Config
from fedray.results.labels import config_label, is_number, show_value
from fedray.storage.claim import is_claimed
from fedray.storage.environment import environment, versions
from fedray.storage.metric import find_metric
from fedray.storage.run import RunInfo, Status
from fedray.storage.run_folder import RunFolder
from fedray.studies.cell import RunSpec
from fedray.studies.plan import StudyPlan, known_metrics
from fedray.studies.store import sign_of
from fedray.studies.study import FILE, Study
from fedray.studies.trials import SweepOutcome, best_command, sweep_outcome
from fedray.tracking import (
    DATA_TAG,
    METHOD_TAG,
    OBJECTIVE,
    SPREAD,
    RunStatus,
    TrackedRun,
    Upload,
    as_params,
    describe_run,
    picture,
    read_metadata,
    run_key,
    source_tags,
    tracked_run,
    trials_view,
    valid_name,
)

SMALL_ARTIFACTS = ("run.json", "rounds.jsonl")
"""Files of a run that MLflow stores; only small ones, because a study has many runs."""
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
ENDS: Mapping[str, Status] = {"failed": "FAILED", "finished": "FINISHED"}
"""MLflow's status of a run that has ended; stopped and interrupted runs are KILLED."""


@dataclass(frozen=True)
class Conclusion:
    """The results of an invocation, for MLflow.

    Attributes:
        metrics: numbers by name; empty if the study is not finished.
        note: further description in Markdown.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


def study_sources(
    study: Study,
    conclude: Callable[[Study], Conclusion],
    *,
    is_going: bool,
    only_own: bool = False,
) -> list[Upload]:
    """Return what MLflow gets of a study, the parents first.

    Args:
        study: the study, as its plan.json is now.
        conclude: returns its results.
        is_going: whether a process executes the study. Otherwise runs that have not ended are
            KILLED.
        only_own: leave out runs that another study has sent.
    """
    states = study.states()
    for run in study.runs.values():
        if run.spec.key in study.begun:
            run.status = "running"
    status: RunStatus = "RUNNING" if is_going else _status_of(study)
    read: Callable[[], TrackedRun] = partial(
        study_run, study, status, None if is_going else partial(conclude, study)
    )
    sources = [Upload(str(study.home), read, [study.home / FILE], status)]
    if study.plan.is_sweep:
        sources += _trial_sources(study, is_going=is_going)
    runs = {spec.key: spec for cell, state in reversed(states) for spec in cell.all_runs(state)}
    for key, spec in runs.items():
        files = RunFolder(study.folder(key))
        if not (files.has_run or key in study.begun) or (only_own and not is_child(study, spec)):
            continue
        run_status = _run_status(study, spec, is_going=is_going)
        read = partial(run_of, study, spec, run_status, study.begun.get(key))
        sources.append(Upload(str(files.path), read, [files.head, files.rounds_file], run_status))
    return sources


def _trial_sources(study: Study, *, is_going: bool) -> Iterator[Upload]:
    """Yield what MLflow gets of the configurations of a sweep that have begun."""
    result = sweep_outcome(study)
    unfinished: RunStatus = "RUNNING" if is_going else "KILLED"
    for number, trial in result.trials.to_dict("index").items():
        folders = result.runs.loc[result.runs["trial"] == number, "folder"]
        if trial["status"] != "pending" or any(RunFolder(run).has_run for run in folders):
            read = partial(trial_run, study, result, number, unfinished)
            is_over = trial["status"] not in ("pending", "running")
            state = trial["status"], trial["seconds"], is_over or unfinished
            yield Upload(trial_key(study, result.configs[number]), read, state=state)


def is_child(study: Study, run: RunSpec) -> bool:
    """Return True unless another study has sent a run to MLflow; an unreadable folder is ours."""
    parent = _parent_of(study, run)
    with suppress(UserError):
        return bool(read_metadata(study.folder(run.key)).get("parent", parent) == parent)
    return True


def _status_of(study: Study) -> Status:
    if study.status == "running":
        return "KILLED"
    came_through = any(state.phase == "over" for _, state in study.states())
    return "FINISHED" if came_through else "FAILED"


def _run_status(study: Study, spec: RunSpec, *, is_going: bool) -> RunStatus | None:
    """Return the status of a run; None for one that neither ended nor runs: as its folder says."""
    key = spec.key
    if study.status_of(key) == "stopped":
        return "KILLED"
    if end := study.outcome_of(spec):  # its process may still hold the folder
        return "FAILED" if isinstance(end, str) else "FINISHED"
    if key in study.begun:
        return "RUNNING" if is_going else "KILLED"
    return "RUNNING" if is_claimed(RunFolder(study.folder(key))) else None


def run_of(
    study: Study, spec: RunSpec, status: RunStatus | None, ray_id: str | None = None
) -> TrackedRun:
    """Return a run of a study in the form sent to MLflow; `tracked_run` explains `status`."""
    folder, plan = study.folder(spec.key), study.plan
    # another study may have sent the run
    key = read_metadata(folder).get("key") or run_key(
        folder,
        spec.experiment.identity(),
        experiment=plan.name,
        name=study.name_of(spec),
        parent=_parent_of(study, spec),
    )
    planned = info_of(spec.experiment)
    run = tracked_run(folder, status, key=key, planned=planned, artifacts=SMALL_ARTIFACTS)
    tags = {**run.tags, **_tags(study), "config": config_label(spec.config)}
    if not plan.is_sweep:
        place = spec.place
        tags |= {"row": place.row, "column": place.column, "phase": spec.phase}
    if ray_id:
        tags["ray_trial_id"] = ray_id
    files = run.files if run.is_going else [*run.files, (RunFolder(folder).error, "")]
    return replace(run, tags=tags, files=files, note="", experiment=plan.name)


def trial_run(study: Study, result: SweepOutcome, number: int, unfinished: RunStatus) -> TrackedRun:
    """Return a trial of a sweep, the parent of the runs of its seeds, in the form sent to MLflow.

    Args:
        study: the sweep.
        result: its results.
        number: the index of the configuration.
        unfinished: the status of a trial that has not ended.
    """
    plan, config = study.plan, result.configs[number]
    trial = result.trials.loc[number]
    values = trial[["objective", plan.metrics[0], "std"]]
    numbers = dict(zip(trial_metrics(plan), values, strict=False))
    has_result = pandas.notna(trial["objective"])
    experiment = study.cells[0].run_spec(config, "tuning", plan.report.seeds[0]).experiment
    shared = describe_run(info_of(experiment))[1]
    label = config_label(config)
    return TrackedRun(
        key=trial_key(study, config),
        name=f"{label} (trial {number})",
        params=as_params({key: _short(config[key]) for key in swept_keys(plan)}),
        tags={
            **_tags(study),
            **{name: shared[name] for name in (METHOD_TAG, DATA_TAG)},
            "config": label,
        },
        status=unfinished
        if trial["status"] in ("pending", "running")
        else ENDS.get(trial["status"], "KILLED"),
        started_ms=_started_ms(study),
        seconds=float(trial["seconds"]),
        parent=_key_of(study),
        metrics={n: float(v) for n, v in numbers.items() if has_result and pandas.notna(v)},
        note=_note(result, number),
        experiment=plan.name,
    )


def trial_metrics(plan: StudyPlan) -> list[str]:
    """Return the names of a trial's metrics in MLflow."""
    spread = [SPREAD] if len(plan.report.seeds) > 1 else []
    return [OBJECTIVE, valid_name(f"best/{plan.metrics[0]}"), *spread]


def swept_keys(plan: StudyPlan) -> list[str]:
    """Return the searched keys with more than one value; all keys if there is none."""
    values = {
        key: {repr(config[key]) for config in axis.configs}
        for axis in plan.axes
        for key in axis.keys
    }
    return [key for key, several in values.items() if len(several) > 1] or [*values]


def _short(value: Any) -> Any:
    return show_value(value) if isinstance(value, Mapping) else value


def _note(result: SweepOutcome, number: int) -> str:
    """Return the description of a trial."""
    plan, trial = result.plan, result.trials.loc[number]
    parts = [f"**{config_label(result.configs[number])}**"]
    parts += [f"failed: {trial['reason']}"] if trial["reason"] else []
    if pandas.notna(trial["objective"]):
        seeds = len(plan.report.seeds)
        over = f", standard deviation {trial['std']:.4f} over {seeds} seeds" if seeds > 1 else ""
        parts.append(f"{result.chooser} **{trial['objective']:.4f}**{over}")
    what = f"A configuration of {plan.title}: {plan.answers}"
    repeat = f"Repeat: `{best_command(plan, result.configs[number])}`"
    return "\n\n".join(["; ".join(parts), what, repeat])


def study_run(
    study: Study, status: RunStatus, conclude: Callable[[], Conclusion] | None = None
) -> TrackedRun:
    """Return the parent run of an invocation in the form sent to MLflow."""
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
    tags = {**_tags(study), "answers": plan.answers, "select": plan.select}
    if plan.select != "nothing":
        tags["chosen"] = plan.how
    run = TrackedRun(
        key=_key_of(study),
        name=_name_of(study),
        params=as_params(params),
        tags={**tags, **_shared_tags(study)},
        status=status,
        started_ms=_started_ms(study),
        view=_view_of(plan) if plan.is_sweep else {},
        experiment=plan.name,
        question=plan.answers,
    )
    if conclude is None:
        return run
    conclusion = conclude()
    figure = picture(plan.answers, FIGURES[plan.kind])
    return replace(
        run,
        metrics=conclusion.metrics,
        files=[(study.home / name, "") for name in ARTIFACTS[plan.kind]],
        note="\n\n".join(filter(None, [conclusion.note or f"**{plan.answers}**", figure])),
    )


def _view_of(plan: StudyPlan) -> dict[str, Any]:
    """Return the saved view of a sweep's trials."""
    keys, metric = (
        swept_keys(plan),
        find_metric(plan.chosen_by(next(iter(plan.rows))), known_metrics()),
    )
    return trials_view(
        [*as_params(dict.fromkeys(keys))],
        trial_metrics(plan),
        of_numbers=all(
            is_number(config[key])
            for axis in plan.axes
            for config in axis.configs
            for key in keys
            if key in config
        ),
        is_min=metric is not None and sign_of(metric) < 0,
    )


def _spaces(plan: StudyPlan) -> dict[str, Any]:
    """Return the search space by axis; by row and axis if rows search different spaces."""
    spaces = {row: of.space for row, of in plan.rows.items()}
    first = next(iter(spaces.values()))
    if all(space == first for space in spaces.values()):
        return {f"space.{axis}": tree for axis, tree in first.items()}
    return {
        f"space.{row}.{axis}": tree for row, space in spaces.items() for axis, tree in space.items()
    }


def _started_ms(study: Study) -> int:
    return int(datetime.fromisoformat(study.began).timestamp() * 1000)


def trial_key(study: Study, config: Config) -> str:
    """Return the key in MLflow of a trial of a sweep."""
    digest = hashlib.sha256(repr(sorted(config.items())).encode()).hexdigest()[:12]
    return f"{_key_of(study)}-{digest}"


def _parent_of(study: Study, run: RunSpec) -> str:
    """Return the key of a run's parent: its trial in a sweep, otherwise the invocation."""
    return trial_key(study, run.config) if study.plan.is_sweep else _key_of(study)


def _name_of(study: Study) -> str:
    return f"{study.plan.name}-{study.home.name}"


def _key_of(study: Study) -> str:
    digest = hashlib.sha256(study.plan.model_dump_json().encode()).hexdigest()
    return run_key(study.home, digest, experiment=study.plan.name, name=_name_of(study))


def _tags(study: Study) -> dict[str, str]:
    plan = study.plan
    return {
        plan.kind: plan.name,
        "scale": plan.scale,
        **source_tags(study.command, versions()),
    }


def _shared_tags(study: Study) -> dict[str, str]:
    """Return the tags of method and data that all runs share."""
    tags_of_runs: list[Mapping[str, str]] = []
    for cell in study.cells:
        for config in cell.first[:1] + cell.first[-1:]:
            experiment = cell.run_spec(config, "tuning", study.plan.report.seeds[0]).experiment
            tags_of_runs.append(describe_run(info_of(experiment))[1])
    return {
        name: tags_of_runs[0][name]
        for name in (METHOD_TAG, DATA_TAG)
        if tags_of_runs
        and len({tags.get(name) for tags in tags_of_runs}) == 1
        and name in tags_of_runs[0]
    }


def info_of(experiment: Experiment) -> RunInfo:
    """Return the description of a run that has not begun."""
    return RunInfo(
        name=experiment.name,
        scale=experiment.scale,
        algorithm=experiment.algorithm.name,
        config=experiment.record(),
        seed=experiment.seed,
        identity=experiment.identity(),
        environment=environment(experiment.threads),
    )
