"""`tracked_run`, which reads a run's folder for MLflow, and `Tracker`, which syncs during a run."""

from __future__ import annotations

import shlex
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from fedray.activity import end_waiting, say_next
from fedray.config import Experiment
from fedray.files import results_home
from fedray.masking import mask
from fedray.records import ARTIFACTS, Run, RunFolder, RunInfo, Status, is_claimed
from fedray.tracking.describe import (
    FOLDER_TAG,
    IDENTITY_TAG,
    TrackedRun,
    best_metrics,
    data_of,
    describe_run,
    experiment_name,
    per_client_json,
    read_metadata,
    run_key,
    run_name,
)
from fedray.tracking.mlflow_store import reason, resolve_uri, ui_command
from fedray.tracking.models import NAME, models_of
from fedray.tracking.notes import run_note
from fedray.tracking.process import NotTaken, StoreProcess
from fedray.tracking.view import view_path

CLOSE_SECONDS = 30.0
"""Longest wait of `Tracker.close` for MLflow."""
CLOSE_SECONDS_DOWN = 5.0
"""Longest wait of `Tracker.close` if MLflow has failed before."""
QUIET_SECONDS = 0.5
"""Wait of `Tracker.close` before it prints a message."""
CLOSE_TRIES = 3
"""Number of attempts to send the last state, a second apart."""
SHARE = 0.05
"""Largest share of a run's time in which the thread of a `Tracker` works."""
LONGEST_PAUSE = 60.0
"""Longest pause between two syncs, in seconds, however long the last one took."""


def tracked_run(
    folder: Path,
    status: Status | Literal["RUNNING"] | None = None,
    *,
    key: str | None = None,
    planned: RunInfo | None = None,
    artifacts: Sequence[str] = ARTIFACTS,
) -> TrackedRun:
    """Read a run's folder and return the run's content in MLflow.

    Args:
        folder: the run's folder.
        status: status of the run. None: unchanged while a process has claimed the folder,
            otherwise derived from the files.
        key: key of the run; None: the key in the folder's tracking.json.
        planned: describes the run while it has no result.json.
        artifacts: names of the files to upload once the run has ended.
    """
    files = RunFolder(folder)
    run = None if planned is not None and not files.has_result else files.read()
    info = planned if run is None else run.info
    assert info is not None
    if status is None:
        key = key or read_metadata(folder).get("key")
        status = folder_status(files, run)
    key = key or run_key(folder, info.identity)
    metadata = read_metadata(folder)
    params, tags = describe_run(info)
    if run is None:
        del tags[IDENTITY_TAG]  # unknown until the data is read
    data = data_of(info)
    tracked = TrackedRun(
        key=key,
        name=metadata.get("name") or run_name(info),
        params=params,
        tags={**tags, FOLDER_TAG: folder.name, "mlflow.source.name": f"fedray run {files.config}"},
        status=status,
        started_ms=started_ms(run),
        seconds=run.costs.wall_seconds if run is not None else None,
        rounds=run.rounds if run is not None else (),
        parent=metadata.get("parent"),
        data=() if data is None else (data,),
    )
    if tracked.is_going:
        return tracked
    if run is not None:
        tracked = replace(tracked, note=run_note(run), metrics=best_metrics(run))
    return with_artifacts(tracked, [(files, run)], artifacts)


def with_artifacts(
    tracked: TrackedRun,
    results: Sequence[tuple[RunFolder, Run | None]],
    artifacts: Sequence[str],
) -> TrackedRun:
    """Add the artifacts of a run that has ended: files, accuracies by client, and models.

    If `results` has several seeds, each seed gets its own folder among the artifacts.
    """
    paths: list[tuple[Path, str]] = []
    texts, models = {}, {}
    for files, run in results:
        below = files.path.name if len(results) > 1 else ""
        paths += [(files.path / name, below) for name in artifacts]
        if run is None:
            continue
        if text := per_client_json(run.rounds):
            texts[f"{below}/per_client.json".lstrip("/")] = text
        if kept := models_of(files.path, run):
            models[f"{below}/{NAME}".lstrip("/")] = kept
    return replace(tracked, files=paths, texts=texts, models=models)


def folder_status(files: RunFolder, run: Run | None) -> Status | None:
    """Return how the run in a folder ended; None while a process of this machine executes it."""
    if is_claimed(files):
        return None
    if run is not None and run.is_finished:
        return "FINISHED"
    return "FAILED" if files.error.is_file() else "KILLED"


def started_ms(run: Run | None) -> int:
    """Return when a run began, in milliseconds since the epoch; the current time if unknown."""
    began = time.time() if run is None or run.started is None else run.started.timestamp()
    return int(began * 1000)


class Tracker:
    """Keeps MLflow up to date from a thread, so that runs never wait for MLflow.

    The thread reads a run's folder; another process writes to MLflow (`StoreProcess`). A failing
    server is tried again after a pause. The first failure is reported on stderr, and at the end
    whether MLflow lacks anything; both messages contain the command for a later upload.

    Args:
        uri: an absolute tracking URI; see `resolve_uri`.
        experiment: MLflow experiment.
        folder: folder of the run or study, for the messages.
        question: see `Store`.
        retry_seconds: pause after a failure of the server.
        process: a process already started for `uri`; it is ended with the tracker.

    Attributes:
        failure: reason of the first failure of MLflow; None without failures.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        *,
        folder: Path | None = None,
        question: str = "",
        retry_seconds: float = 30.0,
        process: StoreProcess | None = None,
    ) -> None:
        self.uri = uri
        self._folder = folder
        self._experiment, self._question = experiment, question
        self._process = process or StoreProcess(uri)
        self._due: dict[str, Callable[[], TrackedRun]] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.failure: str | None = None
        self._cause = ""
        self._down = False
        self._retry = retry_seconds

    @property
    def hint(self) -> str:
        """Return how to view the runs: a command, and the address of the page if known."""
        command, experiment_id = ui_command(self.uri), self._process.experiment_id
        if not experiment_id:
            return command
        if command.startswith("http"):
            return command.rstrip("/") + view_path(experiment_id)
        return f"{command}\n  then open http://127.0.0.1:5000{view_path(experiment_id)}"

    def follow(self, folder: Path, status: Status | Literal["RUNNING"]) -> None:
        """Schedule an update of MLflow from the folder of a run; see `update`."""
        self.update(str(folder), lambda: tracked_run(folder, status))

    def update(self, name: str, read: Callable[[], TrackedRun]) -> None:
        """Schedule an update of a run in MLflow, and return without waiting.

        Args:
            name: identifies the run; a later update replaces one that has not been sent.
            read: called in the thread to read the run's state when it is sent. Runs are sent in
                the order of their first update, so call this for a parent before its children.
        """
        with self._changed:
            if self._closing:
                raise RuntimeError("the tracker is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="tracking", daemon=True)
                self._thread.start()
            self._due[name] = read
            self._changed.notify()

    def close(self, wait_seconds: float | None = None) -> None:
        """Send pending updates, wait for a limited time, and end the writing process."""
        with self._changed:
            first, self._closing = not self._closing, True
            self._changed.notify()
        if first:
            try:
                self._wait(wait_seconds)
            finally:
                self._process.end()

    def _wait(self, wait_seconds: float | None) -> None:
        """Wait until all updates are sent; after too long, report the runs that MLflow lacks."""
        if self._thread is None:
            return
        if wait_seconds is None:
            wait_seconds = CLOSE_SECONDS_DOWN if self._down else CLOSE_SECONDS
        self._thread.join(min(QUIET_SECONDS, wait_seconds))
        if self._thread.is_alive():
            say_next("writing the rest to MLflow")
            self._thread.join(max(0.0, wait_seconds - QUIET_SECONDS))
            end_waiting()
        late = self._thread.is_alive() or bool(self._due)
        if late and self.failure is None:
            self.failure = self._cause = f"not ready after {wait_seconds:g} s"
        if late:
            self._say(
                f"MLflow at {mask(self.uri)} does not have all of {len(self._due)} run(s) "
                f"({self._cause}); the results are complete. To upload them: {self._command}"
            )
        elif self.failure is not None:
            self._say("MLflow is complete now")

    # --- the thread -------------------------------------------------------------------------------

    def _write(self) -> None:
        pause, closing = 0.0, False
        while not closing:
            with self._changed:
                self._changed.wait_for(lambda: self._closing, pause)
                self._changed.wait_for(lambda: self._closing or self._due)
                closing = self._closing
            is_connected, began = self._process.experiment_id != "", time.monotonic()
            self._flush()
            worked = time.monotonic() - began if is_connected else 0.0  # without one-time imports
            pause = self._retry if self._down else min(worked / SHARE, LONGEST_PAUSE)
        for _ in range(CLOSE_TRIES - 1):
            if self._down:
                time.sleep(min(self._retry, 1.0))
                self._flush()

    def _flush(self) -> None:
        """Sync all scheduled runs; stop at the first failure of MLflow."""
        with self._changed:
            due = dict(self._due)
        self._down = False
        for name, read in due.items():
            try:
                self._process.sync(read(), self._experiment, self._question)
            except Exception as error:
                self._down = True
                self._fail(error.reason if isinstance(error, NotTaken) else reason(error))
                if isinstance(error, NotTaken) and error.is_refusal:
                    continue
                return
            with self._changed:
                if self._due[name] is read:  # not replaced by a later update
                    del self._due[name]

    def _fail(self, why: str) -> None:
        self._cause = why
        if self.failure is None:
            self.failure = why
            self._say(
                f"MLflow at {mask(self.uri)} is not up to date ({why}); the run goes on, and its "
                f"folder is complete. To upload it later: {self._command}"
            )

    @property
    def _command(self) -> str:
        folder = shlex.quote(str(self._folder)) if self._folder else "<the run's folder>"
        return f"fedray upload {folder}"

    def _say(self, what: str) -> None:
        print(f"tracking: {what}", file=sys.stderr, flush=True)


def start_process() -> StoreProcess:
    """Start the process that writes to $MLFLOW_TRACKING_URI, or to the results' database."""
    return StoreProcess(resolve_uri(results_home()))


def tracker_for(experiment: str, folder: Path | None = None, question: str = "") -> Tracker:
    """Return a tracker for $MLFLOW_TRACKING_URI, or for the results' database."""
    return Tracker(resolve_uri(results_home()), experiment, folder=folder, question=question)


def run_tracker(
    experiment: Experiment, folder: Path, process: StoreProcess | None = None
) -> Tracker:
    """Return a tracker for a run that belongs to no study; see `tracker_for`."""
    process = process or start_process()
    name = experiment_name(experiment.name, experiment.tree())
    return Tracker(process.uri, name, folder=folder, process=process)
