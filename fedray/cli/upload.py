"""`fedray upload DIR ...`: upload the results of runs, sweeps and tables that MLflow lacks."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from fedray.base.errors import FedrayError, UserError
from fedray.base.masking import mask
from fedray.command import PATH, Command
from fedray.storage.run_folder import find_run_folders
from fedray.tracking.follow import follow_folder
from fedray.tracking.store import reason, resolve_uri, ui_command
from fedray.tracking.study import FILE, TrackedStudy
from fedray.tracking.sync import sync


@click.command(cls=Command)
@click.argument("folders", nargs=-1, required=True, type=PATH)
@click.option("--uri", help="Default: $MLFLOW_TRACKING_URI, or the results' database.")
@click.option(
    "--follow",
    "follows",
    is_flag=True,
    help="Follow one run, sweep or table while it grows, until standard input ends.",
)
def command(folders: Sequence[Path], uri: str | None, follows: bool) -> int:
    """Upload results to MLflow, as far as MLflow lacks them.

    FOLDERS contain runs, sweeps or tables, at any depth. The command can be repeated.
    """
    uri = uri or resolve_uri()
    if follows:
        return _follow(folders, uri)
    problems: list[str] = []
    for folder in _found(folders, problems):
        try:
            done = sync(folder, uri)
        except Exception as error:
            raise FedrayError(
                f"MLflow at {mask(uri)} did not take {folder} ({reason(error, uri)}); upload again "
                "once it does, or pass another address with --uri"
            ) from error
        counts = f"added {done.rounds} rounds, {done.files} files"
        print(f"{folder}: {counts if done.rounds or done.files else 'nothing was missing'}")
        problems += done.problems
    if problems:
        raise UserError(f"{'; '.join(dict.fromkeys(problems))}; all other runs are uploaded")
    print(f"view them: {ui_command(uri)}")
    return 0


def _found(folders: Sequence[Path], problems: list[str]) -> list[Path]:
    """Return every study in and below the folders, and every run that belongs to none of these."""
    homes = sorted({path.parent for folder in folders for path in folder.rglob(FILE)})
    members: set[str] = set()
    runs: set[Path] = set()
    for home in homes:
        try:
            study = TrackedStudy.read(home)
            members |= set() if study is None else {os.path.realpath(run) for run in study.runs}
        except UserError:
            pass  # `sync` reports it
    for folder in folders:
        try:
            runs |= {*find_run_folders([folder])}
        except UserError as error:
            if not any(home.is_relative_to(folder) for home in homes):
                problems.append(str(error))
    return [*homes, *sorted(run for run in runs if str(run) not in members)]


def _follow(folders: Sequence[Path], uri: str) -> int:
    if len(folders) > 1:
        raise UserError("--follow takes one folder")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `ray job stop` sends it to all processes
    with os.fdopen(os.dup(2), "w") as lines:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # warnings of MLflow
        say = partial(print, "tracking:", file=lines, flush=True)
        try:
            return 0 if follow_folder(folders[0], uri, say) else 1
        except Exception as error:  # stderr is gone
            say(f"{folders[0]} is no longer followed ({reason(error, uri)})")
            return 1
