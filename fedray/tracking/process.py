"""A process that writes runs to MLflow, so that the process that trains does not import it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from queue import SimpleQueue
from typing import Any, Self

from fedray.tracking.describe import TrackedRun
from fedray.tracking.mlflow_store import (
    Store,
    check_installed,
    reason,
    refused,
    set_environment,
    sqlite_path,
)

_SERVE = "from fedray.tracking.process import serve; serve()"


class NotTaken(Exception):
    """MLflow did not take a run.

    Attributes:
        reason: why, in a few words.
        is_refusal: whether MLflow may take other runs.
    """

    def __init__(self, reason: str, *, is_refusal: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_refusal = is_refusal


@dataclass(frozen=True)
class _Answer:
    """What came of one `Store.sync`; `reason` is "" if MLflow took the run."""

    experiment_id: str
    reason: str = ""
    is_refusal: bool = False


class StoreProcess:
    """A `Store` in a process of its own, which imports MLflow at once.

    The process ends with this one, however this one ends.

    Args:
        uri: an absolute tracking URI; see `resolve_uri`.

    Attributes:
        uri: the same.
        experiment_id: MLflow's id of the experiment; "" until the process has opened it.

    Raises:
        UserError: if MLflow is not installed.
    """

    def __init__(self, uri: str) -> None:
        check_installed()
        self.uri = uri
        self.experiment_id = ""
        self._has_ended = False
        self._process: subprocess.Popen[bytes] | None = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def sync(self, run: TrackedRun, experiment: str, question: str) -> None:
        """Make MLflow hold this run, and wait until it does; see `Store`.

        Raises:
            NotTaken: if MLflow fails, or the process has ended; the next call starts another one.
        """
        if self._has_ended:
            raise NotTaken("tracking has ended")
        try:
            self._process = process = self._process or self._start()
            assert process.stdin is not None
            assert process.stdout is not None
            _send(process.stdin, (run, experiment, question))
            answer = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            self._kill()
            raise NotTaken("the process that writes to MLflow ended unexpectedly") from None
        self.experiment_id = answer.experiment_id
        if answer.reason:
            raise NotTaken(answer.reason, is_refusal=answer.is_refusal)

    def end(self) -> None:
        """End the process at once."""
        self._has_ended = True
        self._kill()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,  # Ctrl-C ends the run, whose last state is still sent
        )
        assert process.stdin is not None
        with suppress(OSError):  # has ended already; `sync` finds out
            _send(process.stdin, self.uri)
        return process

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


def _send(stream: Any, value: Any) -> None:
    pickle.dump(value, stream)
    stream.flush()


def serve() -> None:
    """Sync each run that arrives on stdin, and answer on stdout; end when stdin is closed."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what MLflow prints is no answer
    arrived = SimpleQueue[Any]()
    threading.Thread(target=_receive, args=(arrived,), daemon=True).start()
    uri = arrived.get()
    set_environment()
    _import_mlflow(uri)
    stores: dict[str, Store] = {}
    while True:
        run, experiment, question = arrived.get()
        store = stores.setdefault(experiment, Store(uri, experiment, question))
        try:
            store.sync(run)
            answer = _Answer(store.experiment_id)
        except Exception as error:
            answer = _Answer(store.experiment_id, reason(error), refused(error))
        _send(answers, answer)


def _receive(arrived: SimpleQueue[Any]) -> None:
    """Hand on what arrives; end the process when the other one has ended or closed the stream."""
    with suppress(EOFError):
        while True:
            arrived.put(pickle.load(sys.stdin.buffer))
    os._exit(0)


def _import_mlflow(uri: str) -> None:
    """Import what the first `sync` would import, for a database too; errors come again there."""
    with suppress(ImportError):
        import_module("mlflow")
        if sqlite_path(uri) is not None:
            import_module("mlflow.store.tracking.sqlalchemy_store")
            import_module("sqlalchemy.orm").configure_mappers()
