"""How every command parses its arguments, is stopped, and reports errors in one line."""

from __future__ import annotations

import argparse
import os
import re
import select
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from traceback import extract_tb, format_exception
from types import FrameType, TracebackType
from typing import NoReturn

from fedray.errors import CodeError, Failure, FedrayError, UserError, named, one_line, shown
from fedray.files import check_path
from fedray.masking import mask
from fedray.waiting import end_waiting

USER_ERROR = 2
RUN_ERROR = 1
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
NOBODY_READS = 128 + signal.SIGPIPE

JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable in which Ray describes a submitted job."""

LONGEST_WORD = 500
"""Characters of a name that a flag takes; MLflow accepts no longer ones."""

_sigterm = threading.Event()
"""Whether SIGTERM came: Ray raises a plain `KeyboardInterrupt` in place of what stops its waits."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which `ray job stop` and batch systems send; handled like Ctrl-C."""


class CommandLine(argparse.ArgumentParser):
    """A parser whose errors are a `UserError`."""

    def error(self, message: str) -> NoReturn:
        """Raise a UserError about wrong arguments."""
        raise UserError(f"{message}; {self._hint(message)}")

    def _hint(self, message: str) -> str:
        """Return what to do; keys that are given as flags are the usual mistake."""
        found = re.match(r"unrecognized arguments: --([\w.-]+)", message)
        takes_keys = any(action.metavar == "key=value" for action in self._actions)
        if found is None or not takes_keys:
            return f"{self.prog} --help lists what there is"
        flags = [flag for action in self._actions for flag in action.option_strings]
        near = get_close_matches(f"--{found[1]}", flags, n=1, cutoff=0.7)
        if near:
            return f"did you mean {near[0]}?"
        key = found[1].replace("-", "_")
        return f"keys of the experiment have no dashes: {key}=..."

    def add_debug(self) -> None:
        """Add the flag that `run_command` reads."""
        help_ = "raise errors with their traceback, not as one line"
        self.add_argument("--debug", action="store_true", help=help_)


def add_trust(cli: argparse.ArgumentParser) -> None:
    """Add the flag for plug-ins that came with other people's files; `run_command` reads it."""
    cli.add_argument(
        "--trust",
        action="store_true",
        help="run plug-ins that come with a folder though you have never run them",
    )


def add_plugin(cli: argparse.ArgumentParser) -> None:
    """Add the flags for plug-ins: `args.plugin`, a list, and `add_trust`'s."""
    add_trust(cli)
    cli.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE",
        help="a file, folder or module of your own with methods, models, sources, ...; repeatable",
    )


def as_path(text: str) -> Path:
    """Return a path on the command line; raise argparse.ArgumentTypeError if it cannot be one."""
    try:
        return Path(check_path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def as_word(text: str) -> str:
    """Return a name on the command line: not empty, printable and of bounded length."""
    if not text.strip() or not text.isprintable() or len(text) > LONGEST_WORD:
        raise argparse.ArgumentTypeError(
            f"a name of at most {LONGEST_WORD} characters is expected, found {shown(text)}"
        )
    return text


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Return a function that reads a whole number from `low` to `high` on the command line."""

    def read(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII) or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(
                f"{shown(text)} is no whole number from {low} to {high}"
            )
        return int(text)

    return read


def run_command(
    cli: CommandLine, action: Callable[[argparse.Namespace], int], argv: Sequence[str] | None
) -> int:
    """Parse the arguments and run `action`; report exceptions as one line on stderr.

    With `--debug` only a `UserError` is one line; other exceptions are raised. Secrets are masked.

    Returns:
        The action's exit code; 2 for a `UserError`, 1 for any other error, 130 after Ctrl-C, 143
        after SIGTERM, 141 if the reader of the output has closed it.
    """
    debug = False
    try:
        with sigterm_raised():
            args = parsed(cli, argv)
            debug = args.debug
            code = _acted(action, args)
            sys.stdout.flush()
            return code
    except UserError as error:
        say_wrong(error)
        return USER_ERROR
    except KeyboardInterrupt as stop:
        say_stopped(stop)
        return TERMINATED if _is_terminated(stop) else INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return NOBODY_READS
        if debug:
            sys.excepthook = _print_masked
            raise
        _say(f"failed: {_described(error)}")
        return RUN_ERROR
    finally:
        end_waiting()


def _acted(action: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command's action, with plug-ins trusted after `--trust`.

    Raises:
        CodeError: if code called `sys.exit` or `os._exit`, whose 0 would stand for success.
    """
    if trusts := getattr(args, "trust", False):
        from fedray.plugins import trust_all

        trust_all()
    try:
        with _exits_raised():
            return action(args)
    except SystemExit as error:
        raise CodeError(replace(Failure.of(error), cause=_placed(error))) from error
    finally:
        if trusts:
            trust_all(False)


@contextmanager
def _exits_raised() -> Iterator[None]:
    """Raise SystemExit in place of `os._exit`, but in forked children and other threads."""
    leave, process, thread = os._exit, os.getpid(), threading.get_ident()

    def raise_exit(status: int) -> NoReturn:
        if (os.getpid(), threading.get_ident()) != (process, thread):
            leave(status)
        raise SystemExit(f"os._exit({status})")

    os._exit = raise_exit
    try:
        yield
    finally:
        os._exit = leave


@contextmanager
def sigterm_raised() -> Iterator[None]:
    """Raise SIGTERM as `Terminated` in the main thread, so that open files are closed."""
    with sigterm_kept():
        if threading.current_thread() is threading.main_thread():
            _sigterm.clear()
            signal.signal(signal.SIGTERM, _terminate)
        yield


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM after code that sets its own, as Ray does when it starts."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not stop the closing
    _sigterm.set()
    raise Terminated


def _is_terminated(stop: KeyboardInterrupt) -> bool:
    return isinstance(stop, Terminated) or _sigterm.is_set()


def parsed(cli: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse arguments, with flags between key=value arguments unless there are subcommands."""
    nested = any(isinstance(action, argparse._SubParsersAction) for action in cli._actions)
    return cli.parse_args(argv) if nested else cli.parse_intermixed_args(argv)


def say_stopped(stop: KeyboardInterrupt, how_to_go_on: str = "") -> None:
    """Print once, before anything is closed, that the command was stopped.

    Args:
        stop: the exception.
        how_to_go_on: a hint.
    """
    if getattr(stop, "said", False):
        return
    what = "terminated" if _is_terminated(stop) else "interrupted"
    _say("; ".join(filter(None, (what, one_line(how_to_go_on)))))
    stop.said = True  # type: ignore[attr-defined]


def say_wrong(error: object) -> None:
    """Print a mistake of the user in one line."""
    _say(f"error: {one_line(error)}")


def go_on_with(*words: object) -> str:
    """Return the command that continues a stopped one: in a Ray job, another job.

    Args:
        words: the arguments of `python -m`.
    """
    command = shlex.join(["python", "-m", *map(str, words)])
    job = os.environ.get(JOB)
    if job is None:
        return f"go on with: {command}"
    here = " --working-dir ." if "working_dir" in job else ""
    return f"go on with: ray job submit{here} -- {command}"


def _print_masked(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print a traceback without secrets."""
    print(mask("".join(format_exception(kind, error, trace))), file=sys.stderr, end="")


def _described(error: Exception) -> str:
    """Return a message about an error, with its place unless fedray raised it on purpose."""
    if isinstance(error, FedrayError):
        return one_line(error)
    return f"{_placed(error)}; --debug shows the traceback"


def _placed(error: BaseException) -> str:
    """Return an error with the file and line that raised it."""
    last = extract_tb(error.__traceback__)[-1]
    return f"{named(error)} ({last.filename}, line {last.lineno})"


def _nobody_reads() -> bool:
    """Return True if the reader of stdout has closed it, and drop the rest of the output."""
    try:
        output = sys.stdout.fileno()
    except OSError:  # in a notebook or a test it is no file
        return False
    poll = select.poll()
    poll.register(output, 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
