"""Texts of Ray's processes, which Ray does not show: prints, log records and Python's warnings.

A worker's answer, the server's stream of rounds and a trial's report carry the texts to the
command, which logs each with its origin (`TextLog`).
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import PurePath
from typing import Any, NamedTuple, NoReturn, Self, TextIO
from weakref import WeakSet

from fedray.config import Experiment, received_experiment
from fedray.errors import UserError, named

log = logging.getLogger(__name__)

MOST_LINES = 20
"""Printed lines of a client's step that are sent; further lines are only counted."""


class Text(NamedTuple):
    """A text of a process.

    Attributes:
        origin: the client or the process, such as "client 3"; "" for the only process of a trial.
        line: the text.
        is_warning: True for warnings and log records, False for a printed line.
    """

    origin: str
    line: str
    is_warning: bool


class Output(logging.Handler):
    """Collects what this process prints, warns of, or logs at level WARNING, until `take`.

    Use it as a context manager. The process's own log gets the printed lines, too.

    Args:
        origin: the process, such as "worker 2".
    """

    def __init__(self, origin: str) -> None:
        super().__init__(logging.WARNING)
        self._origin = origin
        self._texts: list[Text] = []
        self._partial, self._printed = "", 0

    def __enter__(self) -> Self:
        """Begin to collect."""
        global _active
        self._before = _active, sys.stdout, sys.stderr, warnings.showwarning, sys.breakpointhook
        _active, warnings.showwarning, sys.breakpointhook = self, self._warn, refuse_breakpoint
        sys.stdout, sys.stderr = _Stream(self, sys.stdout), _Stream(self, sys.stderr)
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the process's streams and hooks."""
        global _active
        _active, sys.stdout, sys.stderr, warnings.showwarning, sys.breakpointhook = self._before
        logging.getLogger().removeHandler(self)

    def take(self) -> list[Text]:
        """Return the texts since the last call."""
        self._end_lines()
        texts, self._texts = self._texts, []
        return texts

    def extend(self, texts: Iterable[Text]) -> None:
        """Add the texts of another process."""
        self._end_lines()
        self._texts += texts

    def write(self, text: str) -> None:
        """Add printed text; the part after its last line break is kept until the line ends."""
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self._print(line)

    def emit(self, record: logging.LogRecord) -> None:
        """Add a log record."""
        try:
            line = record.getMessage()
        except Exception:
            self.handleError(record)
            return
        error = record.exc_info[1] if record.exc_info else None
        self._add_warning(line if error is None else f"{line} ({named(error)})")

    @contextmanager
    def within(self, origin: str) -> Iterator[None]:
        """Give the texts of the block another origin."""
        self._end_lines()
        before, self._origin = self._origin, origin
        try:
            yield
        finally:
            self._end_lines()
            self._origin = before

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Discard the texts of the block, unless it raises an error."""
        self._end_lines()
        count = len(self._texts)
        yield
        self._end_lines()
        del self._texts[count:]

    def _warn(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        """Replace `warnings.showwarning`."""
        place = f"{PurePath(filename).name}, line {lineno}"
        self._add_warning(f"{category.__name__}: {message} ({place})")

    def _add_warning(self, line: str) -> None:
        self._texts.append(Text(self._origin, line, is_warning=True))

    def _print(self, line: str) -> None:
        line = line.rstrip("\r").rpartition("\r")[2]  # a progress bar overwrites its line
        self._printed += 1
        if self._printed <= MOST_LINES:
            self._texts.append(Text(self._origin, line, is_warning=False))

    def _end_lines(self) -> None:
        """End an incomplete line, and count the lines that were left out."""
        if self._partial:
            self.write("\n")
        if self._printed > MOST_LINES:
            more = f"and {self._printed - MOST_LINES} more lines"
            self._texts.append(Text(self._origin, more, is_warning=False))
        self._printed = 0


class _Stream:
    """A stream whose text an `Output` collects, too."""

    def __init__(self, output: Output, stream: TextIO) -> None:
        self._output = output
        self._stream = stream

    def write(self, text: str) -> int:
        self._output.write(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_active: Output | None = None
"""The `Output` that collects this process's texts, if there is one."""


class TextLog:
    """Logs texts with their origins; a warning only once, however many processes have it.

    What this process has logged itself since the object was created is not logged again.
    """

    def __init__(self) -> None:
        self._warnings: set[str] = set()
        _logs.add(self)

    def remember(self, line: str) -> bool:
        """Do not log a warning that this process has logged; return False if it was known."""
        is_new = line not in self._warnings
        self._warnings.add(line)
        return is_new

    def clear(self) -> None:
        """Forget which warnings were logged."""
        self._warnings.clear()

    def show(self, texts: Iterable[Text], run: str = "") -> None:
        """Log texts, or pass them on if an `Output` collects this process's texts.

        Args:
            texts: the texts.
            run: the run that they belong to; "" if the command has only one.
        """
        if _active is not None:
            _active.extend(texts)
            return
        for text in texts:
            if text.is_warning and text.line in self._warnings:
                continue
            if text.is_warning:
                self._warnings.add(text.line)
            log.warning("%s", ": ".join(filter(None, (run, text.origin, text.line))))


_logs: WeakSet[TextLog] = WeakSet()
text_log = TextLog()
"""The log of this process, which has each warning once, however many runs it executes."""


class _Logged(logging.Handler):
    """Lets every `TextLog` know what this process logs, and prints a warning once."""

    def emit(self, record: logging.LogRecord) -> None:
        is_new = True
        with suppress(Exception):  # other handlers report a record that cannot be formatted
            line = record.getMessage()
            is_new = text_log.remember(line) or record.name == __name__  # a printed line may recur
            for log_of_run in list(_logs):
                log_of_run.remember(line)
        if is_new and logging.lastResort is not None and not logging.getLogger().handlers:
            logging.lastResort.handle(record)  # Python does so only for loggers without handlers


logging.getLogger("fedray").addHandler(_Logged(logging.WARNING))


NOWHERE: AbstractContextManager[None] = nullcontext()


def of_clients(*clients: int) -> AbstractContextManager[None]:
    """Name these clients as the origin of the texts in the block."""
    if _active is None:
        return NOWHERE
    several = f"clients {clients[0]} to {clients[-1]}"
    return _active.within(f"client {clients[0]}" if len(clients) == 1 else several)


def unpack_experiment(text: str) -> Experiment:
    """Read an experiment from JSON and import its plug-ins, in a process of a command.

    Texts of the import are discarded, because the command has imported the plug-ins before.
    """
    with nullcontext() if _active is None else _active.forgetting():
        return received_experiment(text)


def refuse_breakpoint(*_: object, **__: object) -> NoReturn:
    """Refuse `breakpoint()`, since Ray's processes have no terminal.

    Raises:
        UserError: always.
    """
    raise UserError(
        "breakpoint() needs a terminal, which a Ray worker does not have; add --executor serial"
    )
