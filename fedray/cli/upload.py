"""`fedray upload DIR ...`: upload the results of runs, sweeps and tables that MLflow lacks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from fedray.command import PATH, WORD, Command
from fedray.errors import FedrayError, UserError
from fedray.masking import mask
from fedray.storage.files import results_home
from fedray.storage.run_folder import LIST, RunFolder, find_run_folders
from fedray.tracking import (
    Added,
    Store,
    TrackedRun,
    experiment_name,
    read_metadata,
    reason,
    refused,
    resolve_uri,
    say,
    sqlite_path,
    tracked_run,
    ui_command,
)

OPEN_SECONDS, SYNC_SECONDS = 60.0, 3600.0
"""Longest time to open MLflow, and to send a run with its models."""
T = TypeVar("T")


@dataclass(frozen=True)
class Uploaded:
    """The result of uploading one folder.

    Attributes:
        folder: the folder of the run or study.
        added: how much was sent for each of its runs.
        failed: why runs were not sent.
    """

    folder: Path
    added: Sequence[Added] = ()
    failed: Sequence[str] = ()

    def __str__(self) -> str:
        counts = {
            "rounds": sum(run.rounds for run in self.added),
            "params": sum(run.params for run in self.added),
            "files": sum(run.files for run in self.added),
        }
        lacks = f"; {len(self.failed)} failed" if self.failed else ""
        if not any(counts.values()):
            return f"{self.folder}: nothing {'was sent' if self.failed else 'was missing'}{lacks}"
        added = ", ".join(f"{count} {name}" for name, count in counts.items())
        runs = f" of {len(self.added)} runs" if len(self.added) > 1 else ""
        return f"{self.folder}: added {added}{runs}{lacks}"


def upload(folders: Sequence[Path], uri: str, experiment: str | None = None) -> list[Uploaded]:
    """Upload what MLflow lacks of every run and study in and below the folders.

    A second call sends nothing. The status of runs that are still executed is not changed. A run
    that cannot be read, or that MLflow refuses, holds up no other run.

    Args:
        folders: folders of runs, sweeps or tables.
        uri: an absolute tracking URI.
        experiment: MLflow experiment for runs that are new to MLflow; None: that of the study, or
            `experiment_name`.

    Raises:
        UserError: if a folder contains no results.
        FedrayError: if MLflow fails.
    """
    from fedray.studies.pages import conclusion
    from fedray.studies.study import FILE
    from fedray.studies.tracking import study_runs

    homes = sorted({path.parent for folder in folders for path in folder.rglob(FILE)})
    stores: dict[str, Store] = {}
    sent: set[str] = set()
    uploaded = []
    for folder in [*homes, *_single_runs(folders, homes)]:
        try:
            name, reads = study_runs(folder, conclusion) if folder in homes else _alone(folder)
        except UserError as error:
            uploaded.append(Uploaded(folder, failed=[str(error)]))
            continue
        name = experiment or name
        store = stores.setdefault(name, Store(uri, name))
        uploaded.append(_send(store, folder, reads, sent))
    return [one for one in uploaded if one.added or one.failed]


def _single_runs(folders: Sequence[Path], homes: Sequence[Path]) -> list[Path]:
    """Return the folders of runs in and below `folders`, which may hold studies only."""
    runs: set[Path] = set()
    for folder in (folder for folder in folders if folder not in homes):
        try:
            if (folder / LIST).exists():
                raise UserError(
                    f"{folder} lists the runs of a study but lacks plan.json; restore it from a "
                    "copy, or upload the folders of the runs"
                )
            runs |= {*find_run_folders([folder])}
        except UserError:
            if not any(home.is_relative_to(folder) for home in homes):
                raise
    return sorted(runs)


def _alone(folder: Path) -> tuple[str, list[Callable[[], TrackedRun]]]:
    """Return the MLflow experiment of a run, and a function that returns the run."""
    files = RunFolder(folder)
    if not os.path.lexists(files.config):
        raise UserError(f"{folder} lacks {files.config.name}; restore it from a copy")
    run, info = tracked_run(folder), files.read().info
    usual = experiment_name(info.name, info.config)
    return read_metadata(folder).get("experiment") or usual, [lambda: run]


def _send(
    store: Store, folder: Path, reads: Iterable[Callable[[], TrackedRun]], sent: set[str]
) -> Uploaded:
    """Send the runs of a folder, except those in `sent`; add their keys to `sent`."""
    added, failed = [], []
    for read in reads:
        try:
            run = read()
            if run.key not in sent:
                _within(OPEN_SECONDS, store.connect)
                added.append(_within(SYNC_SECONDS, partial(store.sync, run)))
                sent.add(run.key)
        except Exception as error:
            why = reason(error, store.uri)
            if not refused(error):
                start = "start the server, or " if sqlite_path(store.uri) is None else ""
                raise FedrayError(
                    f"MLflow at {mask(store.uri)} did not take {folder} ({why}); {start}pass "
                    "another address with --uri, and upload again"
                ) from error
            failed.append(why)
    for notice in store.notices:
        say(notice)
    store.notices.clear()
    return Uploaded(folder, added, failed)


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Call a function, for at most some seconds.

    A request times out if no byte arrives for some time, but not if one arrives now and then.

    Raises:
        TimeoutError: if the call has not returned; it goes on until the process ends.
    """
    returned: Future[T] = Future()

    def run() -> None:
        try:
            returned.set_result(call())
        except BaseException as error:
            returned.set_exception(error)

    threading.Thread(target=run, name="upload", daemon=True).start()
    try:
        return returned.result(seconds)
    except TimeoutError:
        if returned.done():
            raise
        raise TimeoutError(f"it has not answered completely within {seconds:g} s") from None


@click.command(cls=Command)
@click.argument("folders", nargs=-1, required=True, type=PATH)
@click.option("--uri", type=WORD, help="Default: $MLFLOW_TRACKING_URI, or the results' database.")
@click.option("--experiment", type=WORD, help="MLflow experiment for runs that are new to MLflow.")
def command(folders: Sequence[Path], uri: str | None, experiment: str | None) -> None:
    """Upload results to MLflow, as far as MLflow lacks them.

    FOLDERS contain runs, sweeps or tables, at any depth. The command can be repeated.
    """
    uri = uri or resolve_uri(results_home())
    failed: list[str] = []
    for uploaded in upload(folders, uri, experiment):
        print(uploaded)
        failed += uploaded.failed
    if failed:
        raise UserError(f"{'; '.join(dict.fromkeys(failed))}; all other runs are uploaded")
    print(f"view them: {ui_command(uri)}")
