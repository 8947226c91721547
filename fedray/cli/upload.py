"""`fedray upload DIR ...`: upload the results of runs, sweeps and tables that MLflow lacks."""

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
    """The result of uploading one folder.

    Attributes:
        folder: the folder of the run or study.
        added: how much was sent for each of its runs.
    """

    folder: Path
    added: Sequence[Added]

    def __str__(self) -> str:
        counts = {
            "rounds": sum(run.rounds for run in self.added),
            "params": sum(run.params for run in self.added),
            "files": sum(run.files for run in self.added),
        }
        if not any(counts.values()):
            return f"{self.folder}: nothing was missing"
        added = ", ".join(f"{count} {name}" for name, count in counts.items())
        runs = f" of {len(self.added)} runs" if len(self.added) > 1 else ""
        return f"{self.folder}: added {added}{runs}"


def upload(folders: Sequence[Path], uri: str, experiment: str | None = None) -> list[Uploaded]:
    """Upload what MLflow lacks of every run and study in and below the folders.

    A second call sends nothing. The status of runs that are still executed is not changed.

    Args:
        folders: folders of runs, sweeps or tables.
        uri: an absolute tracking URI.
        experiment: MLflow experiment for runs that are new to MLflow; None: that of the study, or
            `experiment_name`.

    Raises:
        UserError: if a folder contains no results, or cannot be read.
        FedrayError: if MLflow fails.
    """
    stores: dict[str, Store] = {}
    uploaded = []
    for folder, default_name, runs in _read(folders):
        name = experiment or default_name
        store = stores.setdefault(name, Store(uri, name))
        try:
            uploaded.append(Uploaded(folder, [store.sync(run) for run in runs]))
        except Exception as error:
            raise FedrayError(
                f"MLflow at {mask(uri)} did not take {folder} ({reason(error)}); "
                "start the server, or pass another one with --uri, and upload again"
            ) from error
    return uploaded


def _read(folders: Sequence[Path]) -> Iterable[tuple[Path, str, Sequence[TrackedRun]]]:
    """Yield folder, MLflow experiment and runs of each study, and of each run outside a study."""
    from fedray.studies.pages import conclusion
    from fedray.studies.study import FILE
    from fedray.studies.tracking import study_runs

    homes = sorted({path.parent for folder in folders for path in folder.rglob(FILE)})
    tracked: set[str] = set()
    for home in homes:
        name, runs = study_runs(home, conclusion)
        tracked |= {run.key for run in runs}
        yield home, name, runs
    remaining = [folder for folder in folders if folder not in homes]
    for folder, run in find_runs(remaining):
        tracked_alone = tracked_run(folder)
        if tracked_alone.key not in tracked:
            usual = experiment_name(run.info.name, run.info.config)
            yield folder, read_metadata(folder).get("experiment") or usual, [tracked_alone]


@click.command(cls=Command)
@click.argument("folders", nargs=-1, required=True, type=PATH)
@click.option("--uri", type=WORD, help="Default: $MLFLOW_TRACKING_URI, or the results' database.")
@click.option("--experiment", type=WORD, help="MLflow experiment for runs that are new to MLflow.")
def command(folders: Sequence[Path], uri: str | None, experiment: str | None) -> None:
    """Upload results to MLflow, as far as MLflow lacks them.

    FOLDERS contain runs, sweeps or tables, at any depth. The command can be repeated.
    """
    uri = uri or resolve_uri(results_home())
    for uploaded in upload(folders, uri, experiment):
        print(uploaded)
    print(f"view them: {ui_command(uri)}")
