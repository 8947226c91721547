"""`Uploader` sends runs to MLflow, each as often as it changes; `follow` repeats this for a folder.

Both serve `fedray upload`, the only process that writes to MLflow.
"""

from __future__ import annotations

import math
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TypeVar, get_args

from fedray.errors import FedrayError, UserError
from fedray.masking import mask
from fedray.storage.run import Status
from fedray.tracking.describe import RunStatus, TrackedRun, record_uri
from fedray.tracking.mlflow_store import Added, Store, reason, refused, set_environment, ui_command
from fedray.tracking.view import CHARTS, VIEW, view_path

OPEN_SECONDS, SYNC_SECONDS = 60.0, 3600.0
"""Longest time to open MLflow, and to send a run."""
EVERY_SECONDS = 1.0
"""Shortest pause between two looks at a folder."""
SHARE = 0.05
"""Largest share of a run's time in which `follow` works."""
LONGEST_PAUSE = 60.0
"""Longest pause between two looks, in seconds, however long the last one took."""
RETRY_SECONDS = 30.0
"""Pause after a failure of MLflow."""
CLOSE_SECONDS, CLOSE_SECONDS_DOWN = 30.0, 5.0
"""Longest time for the last state of a folder, and if MLflow has failed before."""
CLOSE_TRIES = 3
"""Number of attempts to send the last state, a second apart."""
VIEW_THEM = "view them: "
"""What begins the line that says how to view the runs; the lines below it are indented."""
T = TypeVar("T")


class NotTaken(FedrayError):
    """MLflow has failed; the message says why."""


@dataclass(frozen=True)
class Upload:
    """A run that MLflow gets.

    Attributes:
        name: identifies the run; also its folder, or that of its study.
        read: returns the run; raises UserError if its folder cannot be read.
        files: the run is sent again if one of these files has changed,
        state: or if this has.
    """

    name: str
    read: Callable[[], TrackedRun]
    files: Sequence[Path] = ()
    state: object = None

    @property
    def stamp(self) -> object:
        """Return a value that changes with the files and the state."""
        return self.state, [_stamp(file) for file in self.files]


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


class Uploader:
    """Sends runs to MLflow; a run that has not changed since is not sent again.

    Args:
        uri: an absolute tracking URI; see `resolve_uri`.

    Attributes:
        refused: why runs cannot be read, or MLflow refuses them, by the names of their uploads.
        due: names of the uploads that are still to be sent.
        page: how to open the view of the runs; "" before the first run is there.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.refused: dict[str, str] = {}
        self.due: dict[str, None] = {}
        self.page = ""
        self._stores: dict[str, Store] = {}
        self._sent: dict[str, object] = {}  # the stamps of uploads by name

    def send(self, uploads: Iterable[Upload], say: Callable[[str], object]) -> list[Added]:
        """Send what has changed since the last call; a refused run holds up no other.

        Args:
            uploads: the runs, parents before their children.
            say: called with what happened in MLflow beside the runs.

        Raises:
            NotTaken: if MLflow fails.
        """
        stamps = [(source, source.stamp) for source in uploads]
        stamps = [pair for pair in stamps if self._sent.get(pair[0].name) != pair[1]]
        self.due = {source.name: None for source, _ in stamps}
        added = []
        for source, stamp in stamps:
            try:
                added.append(self._sync(source.read(), say))
                self.refused.pop(source.name, None)
            except NotTaken:
                raise
            except Exception as error:
                why = reason(error, self.uri)
                if not refused(error):
                    raise NotTaken(why) from error
                self.refused[source.name] = why
            self._sent[source.name] = stamp
            self.due.pop(source.name, None)
        return added

    def forget_refused(self) -> None:
        """Let the next `send` try again what was refused."""
        for name in self.refused:
            self._sent.pop(name, None)

    def _sync(self, run: TrackedRun, say: Callable[[str], object]) -> Added:
        new = Store(self.uri, run.experiment, run.question)
        store = self._stores.setdefault(run.experiment, new)
        try:
            _open(store)
            added = within(SYNC_SECONDS, partial(store.sync, run))
        finally:
            for notice in store.notices:
                say(notice)
            store.notices.clear()
        self.page = self.page or _page(self.uri, store.experiment_id, run.key if run.view else VIEW)
        return added


def _open(store: Store) -> None:
    """Open an experiment; raise `NotTaken`, because no error of this is a run's."""
    try:
        within(OPEN_SECONDS, store.connect)
    except Exception as error:
        raise NotTaken(reason(error, store.uri)) from error


def _page(uri: str, experiment_id: str, view: str) -> str:
    """Return how to open a saved view: a command and addresses, on lines of their own."""
    command, path = ui_command(uri), view_path(experiment_id, view)
    is_server = command.startswith("http")
    server = command.rstrip("/") if is_server else "http://127.0.0.1:5000"
    lines = [f"{server}{path}" if is_server else f"{command}\n  then open {server}{path}"]
    if view != VIEW:
        lines.append(f"charts: {server}{path}&{CHARTS}")
    return "\n  ".join(lines)


def within(seconds: float, call: Callable[[], T]) -> T:
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


# --- following a folder ---------------------------------------------------------------------------


class Follower:
    """Keeps MLflow up to date with a folder until standard input ends, and then sends the rest.

    A failing server is tried again after a pause. A run that cannot be read, or that MLflow
    refuses, is tried again when it has changed, and at the end. The first failure of each is said,
    and at the end whether MLflow lacks anything, with the command for a later upload.

    Args:
        folder: the folder of a run or study.
        find: returns what MLflow gets of the folder: while it grows ("RUNNING"), and at the end,
            with the status that standard input says, or None.
        uploader: sends it.
        say: prints a line.
    """

    def __init__(
        self,
        folder: Path,
        find: Callable[[RunStatus | None], Iterable[Upload]],
        uploader: Uploader,
        say: Callable[[str], object],
    ) -> None:
        self._folder, self._find, self._uploader = folder, find, uploader
        self._print = say
        self._ended = threading.Event()
        self._status: Status | None = None
        self._failure, self._is_down = "", False
        self._said: set[str] = set()

    def run(self) -> bool:
        """Follow the folder until standard input ends; return True if MLflow has everything."""
        looks = threading.Thread(target=self._follow, name="tracking", daemon=True)
        looks.start()
        word, seconds = (sys.stdin.read().split() or ["", str(CLOSE_SECONDS)])[:2]
        self._status = next((status for status in get_args(Status) if status == word), None)
        self._ended.set()
        longest = min(float(seconds), CLOSE_SECONDS_DOWN if self._is_down else math.inf)
        looks.join(longest)
        if looks.is_alive():
            self._failure = self._failure or f"not ready after {longest:g} s"
            self._uploader.due = self._uploader.due or {str(self._folder): None}
        return self._say_the_rest()

    def _follow(self) -> None:
        set_environment()
        with suppress(ImportError):  # meanwhile the run begins; `send` reports the error
            import_module("mlflow.store.tracking.sqlalchemy_store")
        pause = 0.0
        while not self._ended.wait(pause):
            began, is_first = time.monotonic(), not self._uploader.page
            self._look("RUNNING")
            worked = 0.0 if is_first else time.monotonic() - began  # without one-time imports
            pause = max(EVERY_SECONDS, min(worked / SHARE, LONGEST_PAUSE))
            pause = RETRY_SECONDS if self._is_down else pause
        for _ in range(CLOSE_TRIES):
            self._uploader.forget_refused()
            self._look(self._status)
            if not self._is_down:
                return
            time.sleep(1.0)

    def _look(self, status: RunStatus | None) -> None:
        """Send what has changed; say what fails, each reason once."""
        uploader, is_new = self._uploader, not self._uploader.page
        try:
            uploader.send(self._find(status), self._say)
            self._is_down = False
        except Exception as error:
            why = str(error) if isinstance(error, NotTaken) else reason(error)
            is_first, self._is_down, self._failure = not self._failure, True, why
            if is_first:
                is_over = self._ended.is_set()
                self._say(
                    f"MLflow at {mask(uploader.uri)} is not up to date ({why}); "
                    f"{'the' if is_over else 'the run goes on, and its'} folder is complete. "
                    f"To upload it later: {self._command}"
                )
        for why in {*uploader.refused.values()} - self._said:
            self._said.add(why)
            self._say(f"MLflow does not have a run ({why}); it gets all others")
        if is_new and uploader.page:
            self._say(f"{VIEW_THEM}{uploader.page}")
            with suppress(OSError, UserError):  # only a resumed run needs it
                record_uri(self._folder, uploader.uri)

    def _say_the_rest(self) -> bool:
        """Say what MLflow lacks at the end; return True if it is nothing."""
        uploader = self._uploader
        lacks = uploader.due.keys() | uploader.refused.keys()
        if lacks:
            why = [*([self._failure] if uploader.due else []), *uploader.refused.values()]
            self._say(
                f"MLflow at {mask(uploader.uri)} does not have all of {len(lacks)} run(s) "
                f"({'; '.join(dict.fromkeys(why))}); the results are complete. To upload them: "
                f"{self._command}"
            )
        elif self._failure or self._said:
            self._say("MLflow is complete now")
        return not lacks

    def _say(self, line: str) -> None:
        with suppress(OSError):  # the process that reads it was killed
            self._print(line)

    @property
    def _command(self) -> str:
        return f"fedray upload {shlex.quote(str(self._folder))}"
