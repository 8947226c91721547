"""What can go wrong: what the user can mend, and what happened while running.

Also how a command says it: one sentence and an exit code.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from traceback import extract_tb, format_exception
from types import TracebackType

from fedray.masking import mask

USER_ERROR = 2
RUN_ERROR = 1
INTERRUPTED = 130


class FedrayError(Exception):
    """Any error that fedray raises on purpose."""


class UserError(FedrayError, ValueError):
    """Something the user can mend; the commands print it as one sentence and exit with 2.

    The message says what was found, what was expected and which key or file to change.
    """


@dataclass(frozen=True)
class Failure:
    """What code that a run called has raised, or why a client's step gave no reply.

    Attributes:
        cause: in one sentence.
        traceback: where in the code; "" when nothing was raised.
    """

    cause: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """What an exception says, its message on one line, without secrets."""
        return cls(mask(_named(error)), mask("".join(format_exception(error))))


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


class RunFailed(FedrayError):
    """A run stopped after more failures than it may survive; its last checkpoint is intact."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for a near miss, else the list of valid names."""
    names = sorted(valid)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Valid: {', '.join(names)}."


def add_debug(cli: ArgumentParser) -> None:
    """Add the flag that `guard` reads."""
    cli.add_argument(
        "--debug", action="store_true", help="raise errors with their traceback, not as one line"
    )


def guard(command: Callable[[Namespace], int], args: Namespace) -> int:
    """Run a command; turn what it raises into one line on stderr and an exit code.

    With `args.debug` only what the user can mend is one line; anything else is raised. Secrets in
    what is printed are masked.

    Returns:
        The command's exit code; 2 for what the user can mend, 1 for a run that failed and for an
        error in the code, 130 after Ctrl-C.
    """
    try:
        return command(args)
    except UserError as error:
        print(mask(f"error: {error}"), file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("interrupted; the last checkpoint is intact", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if args.debug:
            sys.excepthook = _print_masked
            raise
        print(mask(f"failed: {_one_line(error)}"), file=sys.stderr)
        return RUN_ERROR


def _print_masked(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print a traceback as Python does, without secrets."""
    print(mask("".join(format_exception(kind, error, trace))), file=sys.stderr, end="")


def _one_line(error: Exception) -> str:
    """What happened; of what was not raised on purpose, also where."""
    if isinstance(error, FedrayError):
        return str(error)
    last = extract_tb(error.__traceback__)[-1]
    where = f"({last.filename}, line {last.lineno})"
    return f"{_named(error)} {where}; --debug shows the traceback"


def _named(error: BaseException) -> str:
    """An exception's class and message, on one line."""
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
