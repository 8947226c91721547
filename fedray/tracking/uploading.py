"""What MLflow is missing of finished or stopped runs, out of their folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedray.errors import FedrayError, UserError
from fedray.masking import mask
from fedray.records import Run, RunFolder, find_runs, is_claimed
from fedray.tracking.describe import (
    FOLDER_TAG,
    Totals,
    data_of,
    describe_run,
    experiment_name,
    per_client_json,
    read_metadata,
    run_key,
    run_name,
)
from fedray.tracking.live import MlflowTracker
from fedray.tracking.models import add_models
from fedray.tracking.notes import run_note
from fedray.tracking.store import RunSpec, Store, reason


@dataclass(frozen=True)
class Uploaded:
    """What one upload added.

    Attributes:
        folder: the run's folder.
        run_id: MLflow's id; None for a sweep.
        rounds: rounds that were missing.
        params: params that were missing.
        files: artifacts that were missing or had changed.
    """

    folder: Path
    run_id: str | None
    rounds: int
    params: int
    files: int

    def __str__(self) -> str:
        if not (self.rounds or self.params or self.files):
            return f"{self.folder}: nothing was missing"
        if self.run_id is None:
            return f"{self.folder}: added {self.rounds} rounds of its trials"
        return (
            f"{self.folder}: added {self.rounds} rounds, {self.params} params, {self.files} files"
        )


Replay = Callable[[Path, MlflowTracker], None]


def upload(
    folders: Sequence[Path],
    uri: str,
    experiment: str | None = None,
    replay: Replay | None = None,
) -> list[Uploaded]:
    """Log what is missing of every run in or below `folders`; doing it again adds nothing.

    Args:
        folders: runs' folders or sweeps'.
        uri: an absolute tracking URI.
        experiment: MLflow experiment of runs that MLflow does not know; None: the sweep's name
            from tracking.json, else `experiment_name`.
        replay: tells a tracker all of a sweep, given its folder; needed below a sweep.json, where
            one run in MLflow is a trial with all its seeds.

    Returns:
        What was added, by run, and by sweep.

    Raises:
        UserError: when a folder holds no results, or one cannot be read.
        FedrayError: when MLflow does not take it.
    """
    stores: dict[str, Store] = {}
    uploaded = []
    sweeps = set()
    for folder, done in find_runs(folders):
        sweep = _sweep_of(folder)
        if sweep is not None:
            sweeps.add(sweep)
            continue
        usual = experiment_name(done.info.name, done.info.config)
        name = experiment or read_metadata(folder).get("experiment") or usual
        store = stores.setdefault(name, Store(uri, name))
        try:
            uploaded.append(_upload(store, folder, done))
        except FedrayError:
            raise
        except Exception as error:
            raise _failed(uri, folder, reason(error)) from error
    for sweep in sorted(sweeps):
        if replay is None:
            raise FedrayError(f"{sweep} is a sweep, and nothing was given that can read it")
        name = experiment or _name_of(sweep)
        tracker = MlflowTracker(uri, name, folder=sweep, live=False)
        replay(sweep, tracker)
        tracker.close(wait_seconds=3600)
        if tracker.failure is not None:
            raise _failed(uri, sweep, tracker.failure)
        uploaded.append(Uploaded(sweep, None, tracker.rounds_logged, 0, 0))
    return uploaded


def _sweep_of(folder: Path) -> Path | None:
    """The sweep that a run belongs to: the nearest folder above it with a sweep.json."""
    return next((above for above in folder.parents if (above / "sweep.json").is_file()), None)


def _name_of(sweep: Path) -> str:
    path = sweep / "sweep.json"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["sweep"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({reason(error)}); it is not uploaded") from None


def _failed(uri: str, folder: Path, why: str) -> FedrayError:
    return FedrayError(
        f"MLflow at {mask(uri)} did not take {folder} ({why}); "
        "start the server, or name another one with --uri, and upload again"
    )


def _upload(store: Store, folder: Path, done: Run) -> Uploaded:
    key = run_key(folder, done.info.identity)
    metadata = read_metadata(folder)
    params, tags = describe_run(done.info)
    started = _started_ms(RunFolder(folder), done)
    name = metadata.get("name") or run_name(done.info)
    data = data_of(done.info)
    tags = {**tags, FOLDER_TAG: folder.name}
    inputs = () if data is None else (data,)
    spec = RunSpec(key, name, params, tags, metadata.get("parent"), started, inputs)
    run = store.open(spec, reopen=False, everywhere=True)
    totals = Totals()
    points = [totals.point(each) for each in done.rounds]
    rounds = sum(store.log(run, point, {}) for point in points if point is not None)
    files = sum(store.add_file(run, file) for file in RunFolder(folder).artifacts)
    text = per_client_json(totals.per_client)
    files += add_models(store, run, folder)
    files += bool(text) and store.add_text(run, text, "per_client.json")
    complete = done.is_finished
    is_ended = complete or not is_claimed(RunFolder(folder))  # else its own process closes the run
    is_open = run.created or run.status == "RUNNING" or (complete and run.status != "FINISHED")
    if is_ended and is_open:
        ended = run.started_ms + round(1000 * done.costs.wall_seconds)
        store.close_run(run, "FINISHED" if complete else "KILLED", {}, ended)
    store.describe(run, run_note(done))
    return Uploaded(folder, run.run_id, rounds, run.new_params, files)


def _started_ms(folder: RunFolder, done: Run) -> int:
    """When a run began: its partition is written then, and only then."""
    if folder.partition.is_file():
        return int(folder.partition.stat().st_mtime * 1000)
    return int((folder.result.stat().st_mtime - done.costs.wall_seconds) * 1000)
