"""What can go wrong: what the user can mend, and what happened while running."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePath
from traceback import format_exception, walk_tb

from fedray.masking import mask

LONGEST_LINE = 1000
"""Characters of an error's one line; a longer message is cut."""
MOST_SHOWN = 40
"""Valid names in a message; `fedray ls` lists all."""
PLUGIN_MARK = "__fedray_plugin__"
"""What a module of a plug-in has among its globals: the plug-in's key."""


class FedrayError(Exception):
    """Any error that fedray raises on purpose."""


class UserError(FedrayError, ValueError):
    """Something the user can mend; the commands print it as one sentence and exit with 2.

    The message says what was found, what was expected and which key or file to change.
    """


class NotFinite(FedrayError, FloatingPointError):
    """A number that is NaN or infinite: what was trained has diverged."""


@dataclass(frozen=True)
class Failure:
    """What code that a run called has raised, or why a client's step gave no reply.

    Attributes:
        cause: in one sentence.
        traceback: where in the code; "" when nothing was raised.
        diverged: whether a number that is not finite has ended it.
    """

    cause: str
    traceback: str = ""
    diverged: bool = False

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """What an exception says, its message on one line, without secrets; in a plug-in, where."""
        cause = f"{named(error)}{plugin_line(error)}"
        diverged = isinstance(error, FloatingPointError)
        if isinstance(error, CodeError):
            diverged = error.failure.diverged
        return cls(cause, mask("".join(format_exception(error))), diverged)


class CodeError(FedrayError):
    """Code that a run called (a method's, a model's, a source's) has raised an error.

    Args:
        failure: what it raised; its traceback is shown where this error is not caught.
        kept_in: the file with the traceback; "" before it is written.
    """

    def __init__(self, failure: Failure, kept_in: str = "") -> None:
        super().__init__(failure, kept_in)
        self.failure = failure
        self.kept_in = kept_in
        if failure.traceback:
            self.add_note(failure.traceback)

    def __str__(self) -> str:
        where = f" (traceback in {self.kept_in})" if self.kept_in else ""
        return f"{self.failure.cause}{where}"


class ClientError(CodeError):
    """A client's step failed; the message names the client, the round and the step."""

    def __init__(
        self, client: int, round_: int, step: str, failure: Failure, kept_in: str = ""
    ) -> None:
        super().__init__(failure, kept_in)
        self.args = (client, round_, step, failure, kept_in)  # what it is unpickled from
        self.client = client
        self.round = round_
        self.step = step

    def __str__(self) -> str:
        return f"client {self.client}, round {self.round}, step {self.step}: {super().__str__()}"

    def kept(self, file: object) -> ClientError:
        """This error, saying where its traceback is."""
        return ClientError(self.client, self.round, self.step, self.failure, str(file))


class ServerError(CodeError):
    """The server's own step failed; the message names the round and the step."""

    def __init__(self, round_: int, step: str, failure: Failure, kept_in: str = "") -> None:
        super().__init__(failure, kept_in)
        self.args = (round_, step, failure, kept_in)  # what it is unpickled from
        self.round = round_
        self.step = step

    def __str__(self) -> str:
        return f"server, round {self.round}, step {self.step}: {super().__str__()}"

    def kept(self, file: object) -> ServerError:
        """This error, saying where its traceback is."""
        return ServerError(self.round, self.step, self.failure, str(file))


class RunFailed(FedrayError):
    """A run stopped after more failures than it may survive; its last checkpoint is intact."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for a near miss, of any case, else valid names.

    Near is also the shortest name that a word of three letters and more is a part of.
    """
    names = sorted(valid)
    by_small_letters = {each.lower(): each for each in names}
    close = get_close_matches(name[:100].lower(), by_small_letters, n=1, cutoff=0.6)
    parts = [each for each in names if len(name) > 2 and name.lower() in each.lower()]
    if not close and parts:
        return f" Did you mean '{min(parts, key=len)}'?"
    if close:
        return f" Did you mean '{by_small_letters[close[0]]}'?"
    more = f", and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else ""
    return f" Valid: {', '.join(names[:MOST_SHOWN])}{more}."


def named(error: BaseException) -> str:
    """An exception's class and message, on one line."""
    message = one_line(error)
    if isinstance(error, MemoryError) and not message:
        message = "there is not enough memory"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def plugin_line(error: BaseException) -> str:
    """The last line of a plug-in that an error went through, " (mine.py, line 7)"; or nothing."""
    found = ""
    for frame, line in walk_tb(error.__traceback__):
        if PLUGIN_MARK in frame.f_globals:
            found = f" ({PurePath(frame.f_code.co_filename).name}, line {line})"
    return found


def one_line(said: object) -> str:
    """A text or an error's message on one line of bounded length, without secrets.

    Control characters are escaped.
    """
    try:
        text = mask(" ".join(str(said).split())[: 4 * LONGEST_LINE])
    except Exception as error:  # an exception of somebody else's whose message cannot be made
        text = f"a message that cannot be read ({type(error).__name__})"
    text = "".join(
        char if char.isprintable() else ascii(char)[1:-1] for char in " ".join(text.split())
    )
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]}..."


def shown(value: object, most: int = 80) -> str:
    """What was found, as an error message quotes it: in Python's notation, shortened."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= most else f"{text[:most]}..."
