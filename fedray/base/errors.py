"""Exceptions for mistakes of the user and for failures of a run, and helpers for messages."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import PurePath
from traceback import format_exception, walk_tb
from typing import Any, Self

from fedray.base.masking import mask

LONGEST_LINE = 1000
"""Maximal number of characters of an error message; longer messages are cut."""
MOST_SHOWN = 40
"""Maximal number of valid names in a message; `fedray ls` lists all."""
PLUGIN_MARK = "__fedray_plugin__"
"""The global variable of a plug-in's modules that holds the plug-in's key."""


class FedrayError(Exception):
    """Base of all errors that fedray raises on purpose."""


class UserError(FedrayError):
    """A mistake that the user can correct; commands print the message and exit with 2.

    The message says what was found, what was expected and which key or file to change.
    """


class NotFinite(FedrayError, FloatingPointError):
    """A NaN or infinite number, usually because training has diverged."""


@dataclass(frozen=True)
class Failure:
    """An exception of code that a run called, or the reason why a client step gave no reply.

    Attributes:
        cause: the cause in one sentence.
        traceback: the traceback; "" without an exception.
        diverged: True if the cause was a number that is not finite.
    """

    cause: str
    traceback: str = ""
    diverged: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Convert an exception to a failure, with secrets masked."""
        diverged = isinstance(error, FloatingPointError)
        if isinstance(error, CodeError):
            diverged = error.failure.diverged
        trace = mask("".join(format_exception(error)))
        return cls(f"{named(error)}{plugin_line(error)}", trace, diverged)


class CodeError(FedrayError):
    """An error raised by code that a run called: a method, a model or a data source.

    Args:
        failure: the error; its traceback is shown if this exception is not caught.
        kept_in: the file with the traceback; "" before the file is written.
    """

    def __init__(self, failure: Failure, kept_in: str = "") -> None:
        super().__init__(failure, kept_in)
        self.failure = failure
        self.kept_in = kept_in
        if failure.traceback:
            self.add_note(failure.traceback)

    def kept(self, file: object) -> Self:
        """Return a copy of this error that names the file with its traceback."""
        kind: Any = type(self)
        error: Self = kind(*self.args[:-1], str(file))
        return error

    def __str__(self) -> str:
        where = f" (traceback in {self.kept_in})" if self.kept_in else ""
        return f"{self.failure.cause}{where}"


class ClientError(CodeError):
    """A failed client step; the message names the client, the round and the step."""

    def __init__(
        self, client: int, round_: int, step: str, failure: Failure, kept_in: str = ""
    ) -> None:
        super().__init__(failure, kept_in)
        self.args = (client, round_, step, failure, kept_in)  # for pickle
        self.client = client
        self.round = round_
        self.step = step

    def __str__(self) -> str:
        return f"client {self.client}, round {self.round}, step {self.step}: {super().__str__()}"


class ServerError(CodeError):
    """A failed server step; the message names the round and the step."""

    def __init__(self, round_: int, step: str, failure: Failure, kept_in: str = "") -> None:
        super().__init__(failure, kept_in)
        self.args = (round_, step, failure, kept_in)  # for pickle
        self.round = round_
        self.step = step

    def __str__(self) -> str:
        return f"server, round {self.round}, step {self.step}: {super().__str__()}"


class RunFailed(FedrayError):
    """A run that had to stop; its last checkpoint is intact."""


class RayDied(RunFailed):
    """The head of the cluster, or Ray on this machine, does not answer any more."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" if a valid name is similar, else a list of valid names.

    Case is ignored. If no name is similar, the shortest name that contains `name` (three or more
    letters) is suggested.
    """
    names = sorted(valid)
    by_lower_case = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name[:100].lower(), by_lower_case, n=1, cutoff=0.6)
    parts = [lower for lower in by_lower_case if len(name) > 2 and name.lower() in lower]
    if close or parts:
        return f" Did you mean '{by_lower_case[close[0] if close else min(parts, key=len)]}'?"
    more = f", and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return f" Valid: {', '.join(names[:MOST_SHOWN])}{more}."


def named(error: BaseException) -> str:
    """Return the class and message of an exception, on one line."""
    message = one_line(error)
    if isinstance(error, MemoryError) and not message:
        message = "there is not enough memory"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def plugin_line(error: BaseException) -> str:
    """Return the innermost plug-in line of a traceback, " (mine.py, line 7)"; or ""."""
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        if PLUGIN_MARK in frame.f_globals:
            place = f" ({PurePath(frame.f_code.co_filename).name}, line {line})"
    return place


def one_line(message: object) -> str:
    """Return a text or an error's message as one line of bounded length.

    Secrets are masked, and control characters are escaped.
    """
    text = mask(" ".join(str(message).split())[: 4 * LONGEST_LINE])
    text = printable(text)
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}..."


def printable(text: str) -> str:
    """Escape control characters, and the bytes of file names that are not UTF-8."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shown(value: object, most: int = 80) -> str:
    """Return the `repr` of a value for an error message, cut after `most` characters."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= most else f"{text[:most]}..."


@cache
def warn_once(text: str) -> None:
    """Log a warning once per process."""
    logging.getLogger("fedray").warning("%s", text)
