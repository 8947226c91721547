"""Exceptions: mistakes that the user can mend, and failures of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePath
from traceback import format_exception, walk_tb
from typing import Any, Self

from fedray.masking import mask

LONGEST_LINE = 1000
"""Characters of an error's one line; a longer message is cut."""
MOST_SHOWN = 40
"""Valid names in a message; `fedray ls` lists all."""
PLUGIN_MARK = "__fedray_plugin__"
"""The global of a plug-in's modules that holds the plug-in's key."""


class FedrayError(Exception):
    """Any error that fedray raises on purpose."""


class UserError(FedrayError):
    """A mistake that the user can mend; commands print the message and exit with 2.

    The message says what was found, what was expected and which key or file to change.
    """


class NotFinite(FedrayError, FloatingPointError):
    """A number that is NaN or infinite: what was trained has diverged."""


@dataclass(frozen=True)
class Failure:
    """An exception of code that a run called, or the reason why a client's step gave no reply.

    Attributes:
        cause: one sentence.
        traceback: the traceback; "" if nothing was raised.
        diverged: True if a number that is not finite was the cause.
    """

    cause: str
    traceback: str = ""
    diverged: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return an exception as a failure, without secrets."""
        diverged = isinstance(error, FloatingPointError)
        if isinstance(error, CodeError):
            diverged = error.failure.diverged
        trace = mask("".join(format_exception(error)))
        return cls(f"{named(error)}{plugin_line(error)}", trace, diverged)


class CodeError(FedrayError):
    """Code that a run called (a method's, a model's, a source's) has raised an error.

    Args:
        failure: the error; its traceback is shown if this exception is not caught.
        kept_in: the file with the traceback; "" before it is written.
    """

    def __init__(self, failure: Failure, kept_in: str = "") -> None:
        super().__init__(failure, kept_in)
        self.failure = failure
        self.kept_in = kept_in
        if failure.traceback:
            self.add_note(failure.traceback)

    def kept(self, file: object) -> Self:
        """Return this error with the file that holds its traceback."""
        kind: Any = type(self)
        error: Self = kind(*self.args[:-1], str(file))
        return error

    def __str__(self) -> str:
        where = f" (traceback in {self.kept_in})" if self.kept_in else ""
        return f"{self.failure.cause}{where}"


class ClientError(CodeError):
    """A client's step failed; the message names the client, the round and the step."""

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
    """The server's own step failed; the message names the round and the step."""

    def __init__(self, round_: int, step: str, failure: Failure, kept_in: str = "") -> None:
        super().__init__(failure, kept_in)
        self.args = (round_, step, failure, kept_in)  # for pickle
        self.round = round_
        self.step = step

    def __str__(self) -> str:
        return f"server, round {self.round}, step {self.step}: {super().__str__()}"


class RunFailed(FedrayError):
    """A run stopped after more failures than it may survive; its last checkpoint is intact."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for a near miss in any case, else valid names.

    The shortest name that contains a word of three or more letters is near, too.
    """
    names = sorted(valid)
    by_small_letters = {each.lower(): each for each in names}
    close = get_close_matches(name[:100].lower(), by_small_letters, n=1, cutoff=0.6)
    parts = [each for each in by_small_letters if len(name) > 2 and name.lower() in each]
    if close or parts:
        return f" Did you mean '{by_small_letters[close[0] if close else min(parts, key=len)]}'?"
    more = f", and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return f" Valid: {', '.join(names[:MOST_SHOWN])}{more}."


def named(error: BaseException) -> str:
    """Return an exception's class and message, on one line."""
    message = one_line(error)
    if isinstance(error, MemoryError) and not message:
        message = "there is not enough memory"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def plugin_line(error: BaseException) -> str:
    """Return the last line of a plug-in in a traceback, " (mine.py, line 7)"; or ""."""
    found = ""
    for frame, line in walk_tb(error.__traceback__):
        if PLUGIN_MARK in frame.f_globals:
            found = f" ({PurePath(frame.f_code.co_filename).name}, line {line})"
    return found


def definition_line(function: Any) -> str:
    """Return where a plug-in defines a function, " (loss in mine.py, line 7)"; or ""."""
    if PLUGIN_MARK not in getattr(function, "__globals__", {}):
        return ""
    code = function.__code__
    where = f"{PurePath(code.co_filename).name}, line {code.co_firstlineno}"
    return f" ({function.__name__} in {where})"


def one_line(said: object) -> str:
    """Return a text or an error's message on one line of bounded length, without secrets.

    Control characters are escaped.
    """
    text = mask(" ".join(str(said).split())[: 4 * LONGEST_LINE])
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}..."


def shown(value: object, most: int = 80) -> str:
    """Return a value in Python's notation, shortened, for an error message."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= most else f"{text[:most]}..."
