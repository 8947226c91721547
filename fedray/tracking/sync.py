"""`sync(folder, uri)`: write to MLflow what it lacks of a run or study; nothing else writes to it.

A call can be repeated after any failure: it asks MLflow for its content and sends the rest. Time
stamps of metrics are computed from the run (its start and the seconds of its rounds), so that a
request whose answer was lost adds nothing when it is repeated.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from fedray.base.errors import UserError
from fedray.base.markdown import escape_html
from fedray.storage.run_folder import RunFolder
from fedray.tracking import describe, store
from fedray.tracking.describe import SECONDS, TrackedRun, tracked_run
from fedray.tracking.study import VIEW, TrackedMember, TrackedStudy, saved_view, view_path

KEY_TAG, PARENT_TAG = "fedray.key", "mlflow.parentRunId"
NOTE_TAG = "mlflow.note.content"
"""Tag that MLflow shows as the description, in Markdown."""
VIEW_TAG = "mlflow.sharedViewState."
"""Prefix of an experiment's tags that hold saved views of its table of runs."""
OURS = "<!-- written by fedray; delete this line to keep your own words -->\n"
"""First line of the descriptions that `sync` may replace."""
MOST_METRICS, MOST_OTHERS = 800, 100
"""Items of a request: MLflow accepts 1000, of these 100 params and 100 tags."""
Sent: TypeAlias = dict[str, object]  # what was sent of runs, by their folders


@dataclass
class Synced:
    """The result of one call of `sync`.

    Attributes:
        page: path of the page of the runs on a tracking server; "" if there is no run yet.
        rounds, files: how many were sent.
        problems: what MLflow lacks: folders that cannot be read, and files that it did not take.
    """

    page: str = ""
    rounds: int = 0
    files: int = 0
    problems: list[str] = field(default_factory=list)


def sync(folder: Path, uri: str, going: bool = False, sent: Sent | None = None) -> Synced:
    """Write to MLflow what it lacks of the folder of a run, or of a study and its runs.

    Args:
        folder: the folder of a run or study.
        uri: an absolute tracking URI.
        going: whether a process executes it; what has not finished is KILLED otherwise.
        sent: filled with what has been sent; runs that have not changed since are passed over.

    Raises:
        Exception: an error of MLflow, its server or its database.
    """
    done, sent = Synced(), {} if sent is None else sent
    target = _Target(uri, done)
    members: Mapping[str, TrackedMember] = {str(folder): TrackedMember()}
    try:
        study = TrackedStudy.read(folder)
        if study is not None:
            members = study.runs
            parent = study.parent
            is_killed = parent.status == "RUNNING" and not going
            target.write(replace(parent, status="KILLED") if is_killed else parent, study)
    except UserError as error:
        done.problems.append(str(error))
    for name, member in members.items():
        try:
            _sync_run(target, name, member, going, sent)
        except UserError as error:
            done.problems.append(str(error))
    return done


def _sync_run(target: _Target, name: str, member: TrackedMember, going: bool, sent: Sent) -> None:
    """Write the run in a folder, unless it has not begun, or not changed since it was sent."""
    if RunFolder(Path(name)).has_run:
        found = [entry for entry in os.scandir(name) if entry.is_file(follow_symlinks=False)]
        state = sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in found)
        if sent.get(name) != (state, going, member):
            target.write(member.described(tracked_run(Path(name), going)))
            sent[name] = state, going, member


class _Target:
    """A store, in it one experiment, and in this the parent of a study's runs.

    Args:
        uri: the tracking URI.
        done: counts what is sent.
    """

    def __init__(self, uri: str, done: Synced) -> None:
        self._uri, self._client, self._done = uri, store.client_of(uri), done
        self._kinds = import_module("mlflow.entities")
        self._experiment_id = self._parent_id = ""

    def write(self, run: TrackedRun, study: TrackedStudy | None = None) -> None:
        """Write what MLflow lacks of a run, or of the parent of a study's runs.

        Raises:
            UserError: if MLflow has everything but the run's files.
        """
        with store.alone(self._uri):
            if not self._experiment_id:
                self._open(run.experiment, study)
            held = self._find(run)
            self._write_content(held, run)
            if study is not None:
                self._parent_id = held.info.run_id
                self._save_view(study)
        try:
            if run.status != "RUNNING":
                self._write_files(held.info.run_id, run)
        except Exception as error:
            raise UserError(
                f"MLflow lacks files of {run.name} ({store.reason(error, self._uri)}); a server "
                "that serves artifacts can take them (mlflow server --artifacts-destination DIR)"
            ) from error

    def _open(self, name: str, study: TrackedStudy | None) -> None:
        """Find an experiment; create it if missing, and restore a deleted one."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            path = store.sqlite_path(self._uri)
            tags = {"mlflow.experimentKind": "custom_model_development"}  # not agents
            tags[VIEW_TAG + VIEW] = saved_view()
            if study is not None and study.question:
                tags[NOTE_TAG] = escape_html(study.question)
            location = path and (path.parent / "mlartifacts").as_uri()
            self._experiment_id = self._client.create_experiment(name, location, tags)
        else:
            self._experiment_id = found.experiment_id
            if found.lifecycle_stage == "deleted":
                self._client.restore_experiment(found.experiment_id)
        self._done.page = view_path(self._experiment_id, study.parent.key if study else VIEW)

    def _save_view(self, study: TrackedStudy) -> None:
        """Save the view of a study's runs with the experiment, unless it is there."""
        tag = VIEW_TAG + study.parent.key
        if tag not in self._client.get_experiment(self._experiment_id).tags:
            view = saved_view(study, self._parent_id)
            self._client.set_experiment_tag(self._experiment_id, tag, view)

    def _find(self, run: TrackedRun) -> Any:
        """Return the run with this key; create it if missing.

        Of several runs, left by a request that a server received twice, return the fullest.
        """
        tags, of_key = {KEY_TAG: run.key}, f"tags.`{KEY_TAG}` = '{run.key}'"
        if found := self._client.search_runs([self._experiment_id], of_key):
            return max(found, key=lambda held: (len(held.data.metrics), held.info.run_id))
        return self._client.create_run(self._experiment_id, run.started_ms, tags, run.name)

    def _write_content(self, held: Any, run: TrackedRun) -> None:
        """Write all but the files. Params, tags and rounds in MLflow are not changed."""
        run_id, is_over = held.info.run_id, run.status != "RUNNING"
        self._write_data(held, run)
        metrics = self._new_rounds(held, run)
        tags = {name: text for name, text in run.tags.items() if name not in held.data.tags}
        if self._parent_id not in ("", run_id, held.data.tags.get(PARENT_TAG)):
            tags[PARENT_TAG] = self._parent_id  # new, or the former one was deleted
        if is_over:
            metrics += self._new_results(held, run)
            tags |= self._new_note(held, run)
        new = {name: text for name, text in run.params.items() if name not in held.data.params}
        params = [self._kinds.Param(*item) for item in new.items()]
        texts = [self._kinds.RunTag(*item) for item in tags.items()]
        while params or texts or metrics:
            self._client.log_batch(
                run_id,
                metrics=metrics[:MOST_METRICS],
                params=params[:MOST_OTHERS],
                tags=texts[:MOST_OTHERS],
            )
            metrics = metrics[MOST_METRICS:]
            params, texts = params[MOST_OTHERS:], texts[MOST_OTHERS:]
        ended = run.ended_ms if is_over else None
        if not is_over and held.info.status != "RUNNING":
            self._client.update_run(run_id, status="RUNNING")
        elif run.status != held.info.status or ended not in (None, held.info.end_time):
            self._client.set_terminated(run_id, run.status, end_time=ended)

    def _write_data(self, held: Any, run: TrackedRun) -> None:
        known = {item.dataset.digest for item in held.inputs.dataset_inputs}
        if run.data is not None and run.data["digest"] not in known:
            data = self._kinds.Dataset(source_type="fedray", **run.data)
            context = [self._kinds.InputTag("mlflow.data.context", "clients")]
            self._client.log_inputs(held.info.run_id, [self._kinds.DatasetInput(data, context)])

    def _new_rounds(self, held: Any, run: TrackedRun) -> list[Any]:
        """Return the metrics of the rounds that MLflow lacks or has in part."""
        steps: set[int] = set()
        if SECONDS in held.data.metrics:
            history = self._client.get_metric_history(held.info.run_id, SECONDS)
            steps = {point.step for point in history}
        metrics = []
        for done, totals in describe.totals_of(run.rounds):
            if done.round not in steps:
                stamp = run.started_ms + round(1000 * totals[describe.TOTALS[-1]])
                values = {**describe.metrics_of(done), **totals}
                values[SECONDS] = values.pop(SECONDS)  # last: a round that has it is complete
                metrics += [self._kinds.Metric(*item, stamp, done.round) for item in values.items()]
                self._done.rounds += 1
        return metrics

    def _new_results(self, held: Any, run: TrackedRun) -> list[Any]:
        """Return the final metrics that differ in MLflow, at the step of the last round."""
        step = run.rounds[-1].round if run.rounds else 0
        stamp = run.ended_ms or round(1000 * time.time())
        known = held.data.metrics
        new = {name: value for name, value in run.metrics.items() if known.get(name) != value}
        return [self._kinds.Metric(*item, stamp, step) for item in new.items()]

    def _new_note(self, held: Any, run: TrackedRun) -> dict[str, str]:
        """Return the tag of the description, with HTML escaped, unless a user has written one."""
        before = held.data.tags.get(NOTE_TAG, "")
        link = rf"get-artifact?run_uuid={held.info.run_id}&path=\1"
        text = OURS + re.sub(rf"{describe.ARTIFACT}([\w.-]+)", link, escape_html(run.note))
        is_ours = not before or before.startswith(OURS.strip())
        return {NOTE_TAG: text} if run.note and is_ours and text != before else {}

    def _write_files(self, run_id: str, run: TrackedRun) -> None:
        """Send files that are missing or differ in size."""
        sizes = {item.path: item.file_size for item in self._client.list_artifacts(run_id)}
        for path in run.files:
            is_new = path.is_file() and sizes.get(path.name) != path.stat().st_size
            if is_new and not path.is_symlink():
                self._client.log_artifact(run_id, str(path))
                self._done.files += 1
