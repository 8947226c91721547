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
from pathlib import Path
from typing import Any

from fedray.errors import UserError
from fedray.markdown import escape_html
from fedray.storage.claim import is_claimed
from fedray.storage.run_folder import RunFolder
from fedray.tracking import store
from fedray.tracking.describe import (
    ARTIFACT,
    MAX_TAG,
    SECONDS,
    TOTALS,
    TrackedRun,
    metrics_of,
    shorten,
    totals_of,
    tracked_run,
)
from fedray.tracking.study import VIEW, Member, TrackedStudy, saved_view, view_path

KEY_TAG, PARENT_TAG = "fedray.key", "mlflow.parentRunId"
NOTE_TAG = "mlflow.note.content"
"""Tag that MLflow shows as the description, in Markdown."""
VIEW_TAG = "mlflow.sharedViewState."
"""Prefix of an experiment's tags that hold saved views of its table of runs."""
OURS = "<!-- written by fedray; delete this line to keep your own words -->\n"
"""First line of the descriptions that `sync` may replace."""
MOST_METRICS, MOST_OTHERS = 800, 100
"""Items of a request: MLflow accepts 1000, of these 100 params and 100 tags."""


@dataclass
class Synced:
    """The result of one call of `sync`.

    Attributes:
        page: path of the page of the runs on a tracking server; "" if there is no run yet.
        rounds: how many rounds were sent.
        files: how many files were sent.
        problems: what MLflow lacks: folders that cannot be read, and files that it did not take.
    """

    page: str = ""
    rounds: int = 0
    files: int = 0
    problems: list[str] = field(default_factory=list)


def sync(
    folder: Path,
    uri: str,
    *,
    going: bool | None = None,
    sent: dict[str, object] | None = None,
) -> Synced:
    """Write to MLflow what it lacks of the folder of a run, or of a study and its runs.

    Args:
        folder: the folder of a run or study.
        uri: an absolute tracking URI.
        going: whether a process executes it; None: if a process of this machine holds the folder.
        sent: filled with what has been sent; runs that have not changed since are passed over.

    Raises:
        Exception: an error of MLflow, its server or its database.
    """
    done, sent = Synced(), {} if sent is None else sent
    target = _Target(uri, done)
    members: Mapping[str, Member | None] = {str(folder): None}
    try:
        study = TrackedStudy.read(folder)
        if study is not None:
            going, members = is_claimed(RunFolder(folder)) if going is None else going, study.runs
            target.write_parent(study, is_going=going)
    except UserError as error:
        done.problems.append(str(error))
    for name, member in members.items():
        try:
            if RunFolder(Path(name)).has_result:
                stamp = going, member, _stamp(Path(name))
                if sent.get(name) != stamp:
                    target.write(_described(tracked_run(Path(name), going), member))
                    sent[name] = stamp
        except UserError as error:
            done.problems.append(str(error))
    return done


def _described(run: TrackedRun, member: Member | None) -> TrackedRun:
    """Return a run with what its study knows of it."""
    if member is None:
        return run
    return replace(
        run,
        name=member.name,
        tags={**run.tags, **member.tags},
        status=member.status or run.status,
        metrics={**run.metrics, **member.metrics},
        note="",
    )


def _stamp(folder: Path) -> list[tuple[str, int, int]]:
    """Return a value that changes with the files of a run's folder."""
    files = [(entry.name, entry.stat()) for entry in os.scandir(folder) if entry.is_file()]
    return sorted((name, status.st_size, status.st_mtime_ns) for name, status in files)


class _Target:
    """A store, in it one experiment, and in this the parent of a study's runs.

    Args:
        uri: the tracking URI.
        done: counts what is sent.
    """

    def __init__(self, uri: str, done: Synced) -> None:
        self.done = done
        self._uri, self._client = uri, store.client_of(uri)
        self._experiment_id = self._parent_id = ""
        self._view = VIEW

    def write_parent(self, study: TrackedStudy, *, is_going: bool) -> None:
        """Write the parent of a study's runs, and the view of them."""
        run, self._view = study.parent, study.parent.key
        if run.status == "RUNNING" and not is_going:
            run = replace(run, status="KILLED")
        with store.alone(self._uri):
            self._open(run.experiment, study.question)
        self._parent_id = self.write(run)
        tag = f"{VIEW_TAG}{run.key}"
        if tag not in self._client.get_experiment(self._experiment_id).tags:
            view = study.view(self._parent_id)
            self._client.set_experiment_tag(self._experiment_id, tag, view)

    def write(self, run: TrackedRun) -> str:
        """Write what MLflow lacks of a run; return its id there.

        Raises:
            UserError: if MLflow has everything but the run's files.
        """
        with store.alone(self._uri):
            if not self._experiment_id:
                self._open(run.experiment)
            held = self._find(run)
            self._write_content(held, run)
        try:
            if run.status != "RUNNING":
                self._write_files(held.info.run_id, run)
        except Exception as error:
            raise UserError(
                f"MLflow lacks files of {run.name} ({store.reason(error, self._uri)}); a server "
                "that serves artifacts can take them (mlflow server --artifacts-destination DIR)"
            ) from error
        return str(held.info.run_id)

    def _open(self, name: str, question: str = "") -> None:
        """Find an experiment; create it if missing, and restore a deleted one."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            path = store.sqlite_path(self._uri)
            self._experiment_id = self._client.create_experiment(
                name,
                artifact_location=path and (path.parent / "mlartifacts").as_uri(),
                tags={
                    "mlflow.experimentKind": "custom_model_development",  # not agents
                    f"{VIEW_TAG}{VIEW}": saved_view(VIEW, 0, [], {}),
                    **({NOTE_TAG: escape_html(question)} if question else {}),
                },
            )
        else:
            self._experiment_id = found.experiment_id
            if found.lifecycle_stage == "deleted":
                self._client.restore_experiment(found.experiment_id)
        self.done.page = view_path(self._experiment_id, self._view)

    def _find(self, run: TrackedRun) -> Any:
        """Return the run with this key; create it if missing.

        Of several runs, left by a request that a server received twice, return the fullest.
        """
        key, of_key = {KEY_TAG: run.key}, f"tags.`{KEY_TAG}` = '{run.key}'"
        if found := self._client.search_runs([self._experiment_id], filter_string=of_key):
            return max(found, key=lambda held: (len(held.data.metrics), held.info.run_id))
        return self._client.create_run(
            self._experiment_id, start_time=run.started_ms, tags=key, run_name=run.name
        )

    def _write_content(self, held: Any, run: TrackedRun) -> None:
        """Write all but the files. Params, tags and rounds in MLflow are not changed."""
        from mlflow.entities import Param, RunTag

        run_id, is_over = held.info.run_id, run.status != "RUNNING"
        self._write_data(held, run)
        metrics = self._new_rounds(held, run)
        tags = {name: text for name, text in run.tags.items() if name not in held.data.tags}
        if self._parent_id not in ("", held.data.tags.get(PARENT_TAG)):
            tags[PARENT_TAG] = self._parent_id  # new, or the former one was deleted
        if is_over:
            metrics += self._new_results(held, run)
            tags |= self._new_note(held, run)
        params = [Param(*item) for item in run.params.items() if item[0] not in held.data.params]
        texts = [RunTag(name, shorten(text, MAX_TAG)) for name, text in tags.items()]
        while params or texts or metrics:
            self._client.log_batch(
                run_id,
                metrics=metrics[:MOST_METRICS],
                params=params[:MOST_OTHERS],
                tags=texts[:MOST_OTHERS],
            )
            metrics, params = metrics[MOST_METRICS:], params[MOST_OTHERS:]
            texts = texts[MOST_OTHERS:]
        ended = run.ended_ms if is_over else None
        if not is_over and held.info.status != "RUNNING":
            self._client.update_run(run_id, status="RUNNING")
        elif run.status != held.info.status or ended not in (None, held.info.end_time):
            self._client.set_terminated(run_id, run.status, end_time=ended)

    def _write_data(self, held: Any, run: TrackedRun) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        known = {item.dataset.digest for item in held.inputs.dataset_inputs}
        if run.data is not None and run.data["digest"] not in known:
            data = Dataset(source_type="fedray", **run.data)
            context = [InputTag("mlflow.data.context", "clients")]
            self._client.log_inputs(held.info.run_id, [DatasetInput(data, context)])

    def _new_rounds(self, held: Any, run: TrackedRun) -> list[Any]:
        """Return the metrics of the rounds that MLflow lacks or has in part."""
        from mlflow.entities import Metric

        steps: set[int] = set()
        if SECONDS in held.data.metrics:
            history = self._client.get_metric_history(held.info.run_id, SECONDS)
            steps = {point.step for point in history}
        metrics = []
        for done, totals in totals_of(run.rounds):
            if done.round not in steps:
                stamp = run.started_ms + round(1000 * totals[TOTALS[-1]])
                values = {**metrics_of(done), **totals}
                values[SECONDS] = values.pop(SECONDS)  # last: a round that has it is complete
                metrics += [Metric(*item, stamp, done.round) for item in values.items()]
                self.done.rounds += 1
        return metrics

    def _new_results(self, held: Any, run: TrackedRun) -> list[Any]:
        """Return the final metrics that differ in MLflow, at the step of the last round."""
        from mlflow.entities import Metric

        step = run.rounds[-1].round if run.rounds else 0
        stamp = run.ended_ms or round(1000 * time.time())
        known = held.data.metrics
        new = {name: value for name, value in run.metrics.items() if known.get(name) != value}
        return [Metric(*item, stamp, step) for item in new.items()]

    def _new_note(self, held: Any, run: TrackedRun) -> dict[str, str]:
        """Return the tag of the description, with HTML escaped, unless a user has written one."""
        before = held.data.tags.get(NOTE_TAG, "")
        link = rf"get-artifact?run_uuid={held.info.run_id}&path=\1"
        text = OURS + re.sub(rf"{ARTIFACT}([\w.-]+)", link, escape_html(run.note))
        is_ours = not before or before.startswith(OURS.strip())
        return {NOTE_TAG: text} if run.note and is_ours and text != before else {}

    def _write_files(self, run_id: str, run: TrackedRun) -> None:
        """Send files that are missing or differ in size."""
        sizes = {item.path: item.file_size for item in self._client.list_artifacts(run_id)}
        for path in run.files:
            is_file = path.is_file() and not path.is_symlink()
            if is_file and sizes.get(path.name) != path.stat().st_size:
                self._client.log_artifact(run_id, str(path))
                self.done.files += 1
