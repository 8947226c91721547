"""`tracked_run`, which reads a run's folder for MLflow, and `Tracker`, which syncs during a run."""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from fedray.activity import end_waiting, say_next
from fedray.config import Experiment
from fedray.errors import UserError
from fedray.masking import MASK, mask
from fedray.storage.claim import is_claimed
from fedray.storage.entries import check_entries
from fedray.storage.files import results_home
from fedray.storage.run import Run, RunInfo, Status
from fedray.storage.run_folder import ARTIFACTS, RunFolder
from fedray.tracking.describe import (
    FOLDER_TAG,
    IDENTITY_TAG,
    URI,
    TrackedRun,
    best_metrics,
    data_of,
    describe_run,
    experiment_name,
    per_client_json,
    read_metadata,
    record_uri,
    run_key,
    run_name,
)
from fedray.tracking.mlflow_store import reason, resolve_uri, sqlite_path, ui_command
from fedray.tracking.models import NAME, models_of
from fedray.tracking.notes import run_note
from fedray.tracking.process import NotTaken, StoreProcess
from fedray.tracking.view import CHARTS, VIEW, view_path

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
_SERVER = ""
"""Key of the reason for which MLflow, and no single run, has failed."""
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
    check_entries(folder)
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


def read_run(read: Callable[[], TrackedRun]) -> TrackedRun:
    """Call `read`.

    Raises:
        NotTaken: with the reason, if the run cannot be read.
    """
    try:
        return read()
    except Exception as error:
        raise NotTaken(reason(error), is_refusal=True) from error


class Tracker:
    """Keeps MLflow up to date from a thread, so that runs never wait for MLflow.

    The thread reads a run's folder; another process writes to MLflow (`StoreProcess`). A failing
    server is tried again after a pause. A run whose folder cannot be read, or that MLflow refuses,
    is tried again with its next update and at the end, and holds up no other run. The first failure
    of each is reported on stderr, and at the end whether MLflow lacks anything; the messages
    contain the command for a later upload.

    Args:
        uri: an absolute tracking URI; see `resolve_uri`.
        experiment: MLflow experiment.
        folder: folder of the run or study, for the messages.
        question: see `Store`.
        retry_seconds: pause after a failure of the server.
        process: a process already started for `uri`; it is ended with the tracker.

    Attributes:
        failure: reason of the first failure; None without failures.
        view: name of the saved view that `hint` opens.
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
        # at the first update: a run's processes need the CPUs until the first round is over
        self._process = process or StoreProcess(uri, starts=False)
        self._due: dict[str, Callable[[], TrackedRun]] = {}
        self._left_out: dict[str, Callable[[], TrackedRun]] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.failure: str | None = None
        self.view = VIEW
        self._causes: dict[str, str] = {}
        self._down = False
        self._is_recorded = folder is None
        self._retry = retry_seconds

    @property
    def hint(self) -> str:
        """Return how to view the runs: a command, and the addresses of the pages if known."""
        command, experiment_id = ui_command(self.uri), self._process.experiment_id
        if not experiment_id:
            return command
        path, is_server = view_path(experiment_id, self.view), command.startswith("http")
        server = command.rstrip("/") if is_server else "http://127.0.0.1:5000"
        lines = [f"{server}{path}" if is_server else f"{command}\n  then open {server}{path}"]
        if self.view != VIEW:
            lines.append(f"charts: {server}{path}&{CHARTS}")
        return "\n  ".join(lines)

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
        if self._thread.is_alive() or self._due:
            cause = self._causes.get(_SERVER) or f"not ready after {wait_seconds:g} s"
            self.failure = self.failure or cause
            say(
                f"MLflow at {mask(self.uri)} does not have all of {len(self._due)} run(s) "
                f"({cause}); the results are complete. To upload them: {self._command}"
            )
        elif self.failure is not None and not self._left_out:
            say("MLflow is complete now")
        if self._left_out:
            causes = dict.fromkeys(self._causes[name] for name in self._left_out)
            say(
                f"MLflow does not have all of {len(self._left_out)} run(s), and has all others: "
                f"{'; '.join(causes)}. Once that is mended: {self._command}"
            )

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
            if self._closing:
                self._due, self._left_out = {**self._left_out, **self._due}, {}
            due = dict(self._due)
        self._down = False
        for name, read in due.items():
            try:
                self._process.sync(read_run(read), self._experiment, self._question)
            except NotTaken as error:
                if not error.is_refusal:
                    return self._fail(error.reason)
                self._leave_out(name, read, error.reason)
            except Exception as error:
                return self._fail(reason(error))
            else:
                self._settle(name, read)
            for notice in self._process.notices:
                say(notice)
        return None

    def _settle(self, name: str, read: Callable[[], TrackedRun]) -> None:
        """Record that a run is up to date, unless a later update has replaced it."""
        if not self._is_recorded and self._folder is not None:
            self._is_recorded = True
            with suppress(OSError, UserError):  # only a resumed run needs it
                record_uri(self._folder, self.uri)
        with self._changed:
            self._left_out.pop(name, None)
            if self._due.get(name) is read:
                del self._due[name]

    def _leave_out(self, name: str, read: Callable[[], TrackedRun], why: str) -> None:
        """Record that a run cannot be sent, and report each reason once."""
        is_new = why not in self._causes.values()
        self._causes[name], self.failure = why, self.failure or why
        with self._changed:
            if self._due.get(name) is read:
                self._left_out[name] = self._due.pop(name)
        if is_new:
            say(f"MLflow does not have a run ({why}); it gets all others")

    def _fail(self, why: str) -> None:
        """Record and report that MLflow has failed."""
        self._down, self._causes[_SERVER] = True, why
        if self.failure is None:
            self.failure = why
            say(
                f"MLflow at {mask(self.uri)} is not up to date ({why}); "
                f"{'the' if self._closing else 'the run goes on, and its'} folder is complete. "
                f"To upload it later: {self._command}"
            )

    @property
    def _command(self) -> str:
        folder = shlex.quote(str(self._folder)) if self._folder else "<the run's folder>"
        return f"fedray upload {folder}"


def start_process() -> StoreProcess:
    """Start the process that writes to $MLFLOW_TRACKING_URI, or to the results' database."""
    return StoreProcess(resolve_uri(results_home()))


def uri_of(folder: Path) -> tuple[str, str]:
    """Return the tracking URI of a run or study that may have begun earlier, and a notice or "".

    Without $MLFLOW_TRACKING_URI, for example in a resumed job whose environment lacks it, a run
    goes on in the store in which it began.
    """
    uri, began = resolve_uri(results_home()), None
    with suppress(UserError):  # the first sync reports a damaged tracking.json
        began = read_metadata(folder).get(URI)
    path = sqlite_path(began or "")
    if began in (None, mask(uri)) or (path is not None and not path.is_file()):
        return uri, ""
    if os.environ.get("MLFLOW_TRACKING_URI"):
        return uri, (
            f"{folder} began in MLflow at {began} and goes on at {mask(uri)}; for its run there: "
            f"fedray upload --uri ADDRESS {shlex.quote(str(folder))}"
        )
    if MASK in began:
        return uri, (
            f"{folder} began in MLflow at {began}, but MLFLOW_TRACKING_URI is not set, and its run "
            f"there stays RUNNING; it goes on at {uri}. Set MLFLOW_TRACKING_URI to go on there"
        )
    return began, f"MLFLOW_TRACKING_URI is not set; {folder} goes on in MLflow at {began}"


def tracker_for(experiment: str, folder: Path, question: str = "") -> Tracker:
    """Return a tracker for a run or study in `folder`, at the address that `uri_of` returns."""
    return _tracker(experiment, folder, question, None)


def run_tracker(
    experiment: Experiment, folder: Path, process: StoreProcess | None = None
) -> Tracker:
    """Return a tracker for a run that belongs to no study; see `tracker_for`.

    Args:
        experiment: the run's experiment.
        folder: the run's folder.
        process: a process that was started early; it is replaced if it has another address.
    """
    return _tracker(experiment_name(experiment.name, experiment.tree()), folder, "", process)


def _tracker(name: str, folder: Path, question: str, process: StoreProcess | None) -> Tracker:
    uri, notice = uri_of(folder)
    if notice:
        say(notice)
    if process is not None and process.uri != uri:
        process.end()
        process = None
    return Tracker(uri, name, folder=folder, question=question, process=process)


def say(what: str) -> None:
    """Print a message about tracking."""
    print(f"tracking: {what}", file=sys.stderr, flush=True)
