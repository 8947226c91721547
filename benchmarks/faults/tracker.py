"""Train while MLflow is silent, locked or gone; then upload the run, and look into MLflow."""

from __future__ import annotations

import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from filelock import FileLock

from benchmarks.faults import harness
from benchmarks.faults.harness import SERIAL, Tally, Victim, defect
from fedray.storage.run_folder import RunFolder

IMPATIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


def run(count: int, seed: int, folder: Path) -> Tally:
    """Train `count` times, beginning with the fault of number `seed`."""
    experiment = harness.prepare(folder, "fedray.tracking.sync", "mlflow")["scaffold"]
    undisturbed, log, tally = folder / "undisturbed", folder / "log", Tally()
    harness.run_undisturbed(harness.run_command(experiment, undisturbed, SERIAL), log)
    for number in range(count):
        what, fault = FAULTS[(seed + number) % len(FAULTS)]
        out, store = folder / str(number), folder / f"store-{number}"
        store.mkdir()
        with fault(store) as uri:
            before = partial(os.environ.update, {**IMPATIENT, "MLFLOW_TRACKING_URI": uri})
            command = harness.run_command(experiment, out, SERIAL[:2], before)
            end = Victim(command, log).end()
        wrong = defect(end, out, undisturbed)
        if not wrong:
            seen = Victim(partial(look, out, f"sqlite:///{store}/mlflow.db"), log).end()
            wrong = seen.errors if seen.code else ""
        tally.add([what], "the same numbers, each once in MLflow", wrong)
        tally.print_progress()
    return tally


@contextmanager
def silent(_: Path) -> Iterator[str]:
    """Yield the address of a server that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def locked(store: Path) -> Iterator[str]:
    """Yield the address of a database that another process holds."""
    with FileLock(store / ".mlflow.db.lock"):
        yield f"sqlite:///{store}/mlflow.db"


@contextmanager
def gone(_: Path) -> Iterator[str]:
    """Yield an address at which nobody listens."""
    yield "http://127.0.0.1:1"


FAULTS: tuple[tuple[str, Callable[[Path], AbstractContextManager[str]]], ...] = (
    ("MLflow silent", silent),
    ("MLflow locked", locked),
    ("MLflow gone", gone),
)


def look(out: Path, uri: str) -> int:
    """Upload a run; return 3, and print why, if MLflow does not hold each round once."""
    from mlflow import MlflowClient

    from fedray.tracking.sync import sync

    for _ in range(2):
        sync(out, uri)
    client, done = MlflowClient(tracking_uri=uri), RunFolder(out).read()
    places = [place.experiment_id for place in client.search_experiments()]
    (found,) = client.search_runs(places, max_results=2)
    points = client.get_metric_history(found.info.run_id, "time/seconds")
    steps = Counter(point.step for point in points)
    if found.info.status != "FINISHED" or steps != Counter(one.round for one in done.rounds):
        print(f"MLflow has {found.info.status} and rounds {dict(steps)}", file=sys.stderr)
        return 3
    return 0
