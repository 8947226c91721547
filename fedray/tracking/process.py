"""A process that writes runs to MLflow, so that the training process does not import MLflow."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
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
    """MLflow did not accept a run.

    Attributes:
        reason: a short reason.
        is_refusal: True if MLflow refused only this run and may accept others.
    """

    def __init__(self, reason: str, *, is_refusal: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_refusal = is_refusal


@dataclass(frozen=True)
class _Answer:
    """The outcome of one `Store.sync`; `reason` is "" if MLflow accepted the run."""

    experiment_id: str
    reason: str = ""
    is_refusal: bool = False
    notices: tuple[str, ...] = ()


class StoreProcess:
    """A `Store` in its own process.

    The process ends with this one, even if this one is killed.

    Args:
        uri: an absolute tracking URI; see `resolve_uri`.
        starts: whether the process starts now and imports MLflow; False: at the first `sync`.

    Attributes:
        uri: the tracking URI.
        experiment_id: MLflow's id of the experiment; "" until the process has opened it.
        notices: what the last `sync` changed in MLflow beside the run; see `Store`.

    Raises:
        UserError: if MLflow is not installed.
    """

    def __init__(self, uri: str, *, starts: bool = True) -> None:
        check_installed()
        self.uri = uri
        self.experiment_id = ""
        self.notices: tuple[str, ...] = ()
        self._has_ended = False
        self._process: subprocess.Popen[bytes] | None = self._start() if starts else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def sync(self, run: TrackedRun, experiment: str, question: str) -> None:
        """Bring a run in MLflow up to date, and wait for the result; see `Store`.

        Raises:
            NotTaken: if MLflow fails, or the process has ended; the next call starts a new one.
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
        self.experiment_id, self.notices = answer.experiment_id, answer.notices
        if answer.reason:
            raise NotTaken(answer.reason, is_refusal=answer.is_refusal)

    def end(self) -> None:
        """Kill the process."""
        self._has_ended = True
        self._kill()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,  # not reached by Ctrl-C, so that the last state is still sent
        )
        assert process.stdin is not None
        with suppress(OSError):  # the process has ended; `sync` reports this
            _send(process.stdin, self.uri)
        return process

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()


def _send(stream: Any, value: Any) -> None:
    stream.write(pickle.dumps(value))  # nothing is sent of a value that cannot be pickled
    stream.flush()


def serve() -> None:
    """Sync each run that arrives on stdin, and answer on stdout; end when stdin is closed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `ray job stop` sends it to a job's processes
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep MLflow's output apart from the answers
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
            answer = _Answer(store.experiment_id, reason(error, uri), refused(error))
        _send(answers, replace(answer, notices=tuple(store.notices)))
        store.notices.clear()


def _receive(arrived: SimpleQueue[Any]) -> None:
    """Queue the runs that arrive; end the process when the other end closes the stream."""
    with suppress(EOFError):
        while True:
            arrived.put(pickle.load(sys.stdin.buffer))
    os._exit(0)


def _import_mlflow(uri: str) -> None:
    """Import the modules that the first `sync` needs; `sync` reports import errors."""
    with suppress(ImportError):
        import_module("mlflow")
        if sqlite_path(uri) is not None:
            import_module("mlflow.store.tracking.sqlalchemy_store")
            import_module("sqlalchemy.orm").configure_mappers()
