"""`fedray upload DIR ...`: upload the results of runs, sweeps and tables that MLflow lacks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from fedray.command import PATH, WORD, Command
from fedray.errors import FedrayError, UserError
from fedray.masking import mask
from fedray.storage.claim import is_claimed
from fedray.storage.files import results_home
from fedray.storage.run_folder import LIST, RunFolder, find_run_folders
from fedray.tracking import (
    Added,
    Follower,
    NotTaken,
    RunStatus,
    Upload,
    Uploader,
    resolve_uri,
    say,
    sqlite_path,
    tracked_run,
    ui_command,
)

PLAN = "plan.json"


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


def upload(folders: Sequence[Path], uri: str) -> list[Uploaded]:
    """Upload what MLflow lacks of every run and study in and below the folders.

    A second call sends nothing. A run that cannot be read, or that MLflow refuses, holds up no
    other run.

    Args:
        folders: folders of runs, sweeps or tables.
        uri: an absolute tracking URI.

    Raises:
        FedrayError: if MLflow fails.
    """
    uploader, uploaded = Uploader(uri), []
    for folder, sources in _found(folders):
        try:
            added = uploader.send(sources, say)
        except NotTaken as error:
            start = "start the server, or " if sqlite_path(uri) is None else ""
            raise FedrayError(
                f"MLflow at {mask(uri)} did not take {folder} ({error}); {start}pass "
                "another address with --uri, and upload again"
            ) from error
        refused = uploader.refused
        failed = [refused[source.name] for source in sources if source.name in refused]
        uploaded.append(Uploaded(folder, added, failed))
    return [one for one in uploaded if one.added or one.failed]


def _found(folders: Sequence[Path]) -> Iterator[tuple[Path, Sequence[Upload]]]:
    """Yield every study and every other run in and below the folders, each with what is sent."""
    homes = sorted({path.parent for folder in folders for path in folder.rglob(PLAN)})
    for home in homes:
        yield home, _of_study(home, is_going=is_claimed(RunFolder(home)))
    runs: set[Path] = set()
    for folder in (folder for folder in folders if folder not in homes):
        try:
            if (folder / LIST).exists():
                raise UserError(
                    f"{folder} lists the runs of a study but lacks plan.json; restore it from a "
                    "copy, or upload the folders of the runs"
                )
            runs |= {*find_run_folders([folder])}
        except UserError as error:
            if not any(home.is_relative_to(folder) for home in homes):
                yield folder, [_unreadable(folder, error)]
    for run in sorted(runs):
        yield run, [Upload(str(run), partial(tracked_run, run))]


def _of_study(home: Path, *, is_going: bool) -> Sequence[Upload]:
    from fedray.studies.pages import conclusion
    from fedray.studies.study import Study
    from fedray.studies.tracking import study_sources

    try:
        return study_sources(Study.read(home).look(), conclusion, is_going=is_going)
    except UserError as error:
        return [_unreadable(home, error)]


def _unreadable(folder: Path, error: UserError) -> Upload:
    def read() -> NoReturn:
        raise error

    return Upload(str(folder), read, state=str(error))


def follow_folder(folder: Path, uri: str, say: Callable[[str], object]) -> bool:
    """Keep MLflow up to date with the folder of a run or study until standard input ends.

    Standard input is the status in which the run ended, and how many seconds the end may take.

    Args:
        folder: the folder, whose files may not exist yet.
        uri: an absolute tracking URI.
        say: prints a line.

    Returns:
        True if MLflow has everything.
    """
    find = _study_follower(folder) if (folder / PLAN).is_file() else partial(_of_run, folder)
    return Follower(folder, find, Uploader(uri), say).run()


def _of_run(folder: Path, status: RunStatus | None) -> Iterable[Upload]:
    """Return a run that is followed, once it has rounds; a run that fails before is not logged."""
    files = RunFolder(folder)
    if status == "FINISHED" or files.rounds_file.is_file():
        yield Upload(str(folder), partial(tracked_run, folder, status), [files.rounds_file], status)


def _study_follower(home: Path) -> Callable[[RunStatus | None], Iterable[Upload]]:
    from fedray.studies.pages import conclusion
    from fedray.studies.study import Study
    from fedray.studies.tracking import study_sources

    study: Study | None = None

    def find(status: RunStatus | None) -> Iterable[Upload]:
        nonlocal study
        try:
            study = Study.read(home).look() if study is None else study.reread()
            going = status == "RUNNING"
            return study_sources(study, conclusion, is_going=going, only_own=True)
        except UserError as error:
            return [_unreadable(home, error)]

    return find


@click.command(cls=Command)
@click.argument("folders", nargs=-1, required=True, type=PATH)
@click.option("--uri", type=WORD, help="Default: $MLFLOW_TRACKING_URI, or the results' database.")
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
    uri = uri or resolve_uri(results_home())
    if follows:
        if len(folders) > 1:
            raise UserError("--follow takes one folder")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `ray job stop` sends it to all processes
        with os.fdopen(os.dup(1), "w") as lines:
            os.dup2(2, 1)  # keeps MLflow's output apart from ours
            is_complete = follow_folder(folders[0], uri, partial(print, file=lines, flush=True))
        os._exit(0 if is_complete else 1)  # at once: a thread may still wait for the server
    failed: list[str] = []
    for uploaded in upload(folders, uri):
        print(uploaded)
        failed += uploaded.failed
    if failed:
        raise UserError(f"{'; '.join(dict.fromkeys(failed))}; all other runs are uploaded")
    print(f"view them: {ui_command(uri)}")
    return 0
