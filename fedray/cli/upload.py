"""`fedray upload DIR ...`: send to MLflow what it lacks of runs, sweeps and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from fedray.command import PATH, WORD, Command
from fedray.errors import FedrayError
from fedray.files import results_home
from fedray.masking import mask
from fedray.records import find_runs
from fedray.tracking import (
    Added,
    Store,
    TrackedRun,
    experiment_name,
    read_metadata,
    reason,
    resolve_uri,
    tracked_run,
    ui_command,
)


@dataclass(frozen=True)
class Uploaded:
    """What one upload sent of a folder.

    Attributes:
        folder: of the run or study.
        added: what each of its runs lacked.
    """

    folder: Path
    added: Sequence[Added]

    def __str__(self) -> str:
        counts = {
            "rounds": sum(each.rounds for each in self.added),
            "params": sum(each.params for each in self.added),
            "files": sum(each.files for each in self.added),
        }
        if not any(counts.values()):
            return f"{self.folder}: nothing was missing"
        added = ", ".join(f"{count} {name}" for name, count in counts.items())
        runs = f" of {len(self.added)} runs" if len(self.added) > 1 else ""
        return f"{self.folder}: added {added}{runs}"


def upload(folders: Sequence[Path], uri: str, experiment: str | None = None) -> list[Uploaded]:
    """Send to MLflow what it lacks of every run and study in or below the folders.

    A repetition sends nothing. The status of what another process is executing is left alone.

    Args:
        folders: folders of runs, sweeps or tables.
        uri: an absolute tracking URI.
        experiment: MLflow experiment of runs that MLflow does not know; None: the study's, or
            `experiment_name`.

    Raises:
        UserError: if a folder holds no results, or cannot be read.
        FedrayError: if MLflow fails.
    """
    stores: dict[str, Store] = {}
    uploaded = []
    for folder, usual, runs in _read(folders):
        name = experiment or usual
        store = stores.setdefault(name, Store(uri, name))
        try:
            uploaded.append(Uploaded(folder, [store.sync(run) for run in runs]))
        except Exception as error:
            raise FedrayError(
                f"MLflow at {mask(uri)} did not take {folder} ({reason(error)}); "
                "start the server, or name another one with --uri, and upload again"
            ) from error
    return uploaded


def _read(folders: Sequence[Path]) -> Iterable[tuple[Path, str, Sequence[TrackedRun]]]:
    """Yield each study in or below the folders, and each run of none, with its experiment."""
    from fedray.studies.pages import conclusion
    from fedray.studies.study import FILE
    from fedray.studies.tracking import study_runs

    homes = sorted({path.parent for folder in folders for path in folder.rglob(FILE)})
    tracked: set[str] = set()
    for home in homes:
        name, runs = study_runs(home, conclusion)
        tracked |= {run.key for run in runs}
        yield home, name, runs
    others = [folder for folder in folders if folder not in homes]
    for folder, run in find_runs(others):
        tracked_alone = tracked_run(folder)
        if tracked_alone.key not in tracked:
            usual = experiment_name(run.info.name, run.info.config)
            yield folder, read_metadata(folder).get("experiment") or usual, [tracked_alone]


@click.command(cls=Command)
@click.argument("folders", nargs=-1, required=True, type=PATH)
@click.option("--uri", type=WORD, help="Default: $MLFLOW_TRACKING_URI, or the results' database.")
@click.option("--experiment", type=WORD, help="MLflow experiment of what MLflow does not know.")
def command(folders: Sequence[Path], uri: str | None, experiment: str | None) -> None:
    """Send to MLflow what it lacks of runs; repeat as you like.

    FOLDERS are those of runs, sweeps or tables, or folders above them.
    """
    uri = uri or resolve_uri(results_home())
    for uploaded in upload(folders, uri, experiment):
        print(uploaded)
    print(f"look at them: {ui_command(uri)}")
