"""`tracked_run`, which reads a run's folder for MLflow; in which store a folder's run goes on."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedray.errors import UserError
from fedray.masking import MASK, mask
from fedray.storage.claim import is_claimed
from fedray.storage.files import results_home
from fedray.storage.run import Run, RunInfo
from fedray.storage.run_folder import ARTIFACTS, RunFolder
from fedray.tracking.describe import (
    FOLDER_TAG,
    IDENTITY_TAG,
    URI,
    RunStatus,
    TrackedRun,
    best_metrics,
    data_of,
    describe_run,
    experiment_name,
    per_client_json,
    read_metadata,
    run_key,
    run_name,
    run_note,
)
from fedray.tracking.mlflow_store import resolve_uri, sqlite_path


def tracked_run(
    folder: Path,
    status: RunStatus | None = None,
    *,
    key: str | None = None,
    planned: RunInfo | None = None,
    artifacts: Sequence[str] = ARTIFACTS,
) -> TrackedRun:
    """Read a run's folder and return the run's content in MLflow.

    Args:
        folder: the run's folder.
        status: status of the run. None: RUNNING while a process of this machine has claimed the
            folder, otherwise derived from the files.
        key: key of the run; None: the key in the folder's tracking.json.
        planned: describes the run while it has no result.json.
        artifacts: names of the files to upload once the run has ended.
    """
    files = RunFolder(folder)
    run = None if planned is not None and not files.has_result else files.read()
    info = planned if run is None else run.info
    assert info is not None
    metadata = read_metadata(folder)
    if key is None:  # the identity of a study's run does not include its data
        key = metadata["key"] if "parent" in metadata else run_key(folder, info.identity)
    params, tags = describe_run(info)
    if run is None:
        del tags[IDENTITY_TAG]  # unknown until the data is read
    metadata = read_metadata(folder)
    data = data_of(info)
    tracked = TrackedRun(
        key=key,
        name=metadata.get("name") or run_name(info),
        params=params,
        tags={**tags, FOLDER_TAG: folder.name, "mlflow.source.name": f"fedray run {files.config}"},
        status=status or folder_status(files, run),
        started_ms=started_ms(run),
        seconds=run.costs.wall_seconds if run is not None else None,
        rounds=run.rounds if run is not None else (),
        parent=metadata.get("parent"),
        data=() if data is None else (data,),
        experiment=metadata.get("experiment") or experiment_name(info.name, info.config),
    )
    if tracked.is_going:
        return tracked
    tracked = replace(tracked, files=[(folder / name, "") for name in artifacts])
    if run is None:
        return tracked
    clients = per_client_json(run.rounds)
    return replace(
        tracked,
        note=run_note(run),
        metrics=best_metrics(run),
        texts={"per_client.json": clients} if clients else {},
    )


def folder_status(files: RunFolder, run: Run | None) -> RunStatus:
    """Return the status of the run in a folder."""
    if is_claimed(files):
        return "RUNNING"
    if run is not None and run.is_finished:
        return "FINISHED"
    return "FAILED" if files.error.is_file() else "KILLED"


def started_ms(run: Run | None) -> int:
    """Return when a run began, in milliseconds since the epoch; the current time if unknown."""
    began = time.time() if run is None or run.started is None else run.started.timestamp()
    return int(began * 1000)


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
