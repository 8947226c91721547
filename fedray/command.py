"""How every command reads its words, is stopped, and says in one line what went wrong."""

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
"""The variable in which Ray tells a submitted job what it is."""

LONGEST_WORD = 500
"""Characters of a name that a flag takes; MLflow takes no longer ones."""


_sigterm = threading.Event()
"""Whether SIGTERM came: Ray raises a plain `KeyboardInterrupt` in place of what stops its waits."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which `ray job stop` and batch systems send; what stops for Ctrl-C stops for it."""


class CommandLine(argparse.ArgumentParser):
    """A parser whose errors are one sentence, as all others are."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the words.

        Raises:
            UserError: always.
        """
        raise UserError(f"{message}; {self._hint(message)}")

    def _hint(self, message: str) -> str:
        """What to do about wrong words; keys that are given as flags are the usual mistake."""
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
        self.add_argument(
            "--debug",
            action="store_true",
            help="raise errors with their traceback, not as one line",
        )


def add_trust(cli: argparse.ArgumentParser) -> None:
    """Add the flag for plug-ins that came with somebody else's files; `run_command` reads it."""
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
    """A folder's path on the command line.

    Raises:
        argparse.ArgumentTypeError: for what can be no folder.
    """
    try:
        return Path(check_path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def as_word(text: str) -> str:
    """A name on the command line.

    Raises:
        argparse.ArgumentTypeError: for nothing, and for what cannot be printed or is too long.
    """
    if not text.strip() or not text.isprintable() or len(text) > LONGEST_WORD:
        raise argparse.ArgumentTypeError(
            f"a name of at most {LONGEST_WORD} characters is expected, found {shown(text)}"
        )
    return text


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """What reads a whole number on the command line, `low` and `high` included."""

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
    """Parse the words and act; what is raised becomes one line on stderr and an exit code.

    With `--debug` only what the user can mend is one line; anything else is raised.
    Secrets in what is printed are masked.

    Returns:
        The action's exit code; 2 for what the user can mend, 1 for a run that failed and for an
        error in the code, 130 after Ctrl-C, 143 after SIGTERM, 141 when nobody reads the output.
    """
    debug = False
    try:
        with sigterm_raised():
            args = parsed(cli, argv)
            debug = args.debug
            with _exits_said(), _plugins_trusted(getattr(args, "trust", False)):
                code = action(args)
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


@contextmanager
def _plugins_trusted(asked: bool) -> Iterator[None]:
    """Run plug-ins without a question, if `--trust` asks for it."""
    if not asked:
        yield
        return
    from fedray.plugins import trust_all

    trust_all()
    try:
        yield
    finally:
        trust_all(False)


@contextmanager
def _exits_said() -> Iterator[None]:
    """Report code that called `sys.exit` or `os._exit` as failed.

    Its exit code would otherwise be the command's, and 0 would stand for success.

    Raises:
        CodeError: in place of its SystemExit; SIGTERM raises `Terminated`.
    """
    leave, process, thread = os._exit, os.getpid(), threading.get_ident()

    def raise_exit(status: int) -> NoReturn:
        if (os.getpid(), threading.get_ident()) != (process, thread):
            leave(status)  # of a forked child, or of a thread that ends the process
        raise SystemExit(f"os._exit({status})")

    os._exit = raise_exit
    try:
        yield
    except SystemExit as error:
        raise CodeError(replace(Failure.of(error), cause=_placed(error))) from error
    finally:
        os._exit = leave


@contextmanager
def sigterm_raised() -> Iterator[None]:
    """Raise SIGTERM as `Terminated`, so that what is open is closed; in the main thread alone."""
    with sigterm_kept():
        if threading.current_thread() is threading.main_thread():
            _sigterm.clear()
            signal.signal(signal.SIGTERM, _terminate)
        yield


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Put the handler of SIGTERM back after code that sets its own, as Ray does when it starts."""
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
    """The words of a command, with flags between key=value words where it can have them.

    Raises:
        UserError: as the parser's errors.
    """
    return cli.parse_intermixed_args(argv) if _intermixed(cli) else cli.parse_args(argv)


def _intermixed(cli: argparse.ArgumentParser) -> bool:
    """Whether flags may stand between key=value words; commands with commands cannot have that."""
    return not any(isinstance(action, argparse._SubParsersAction) for action in cli._actions)


def say_stopped(stop: KeyboardInterrupt, how_to_go_on: str = "") -> None:
    """Say at once that the command was stopped: who stopped it may not wait until all is closed.

    Args:
        stop: what was raised; it is said of it once.
        how_to_go_on: what there is to do about it.
    """
    if getattr(stop, "said", False):
        return
    what = "terminated" if _is_terminated(stop) else "interrupted"
    _say("; ".join(filter(None, (what, one_line(how_to_go_on)))))
    stop.said = True  # type: ignore[attr-defined]


def say_wrong(error: object) -> None:
    """Say in one line what the user can mend."""
    _say(f"error: {one_line(error)}")


def go_on_with(*words: object) -> str:
    """What to do about a command that was stopped: the command that goes on where it was.

    Inside a job of Ray's that is another job: this one's cluster is not where the user is.

    Args:
        words: behind `python -m`.
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
    """Print a traceback as Python does, without secrets."""
    print(mask("".join(format_exception(kind, error, trace))), file=sys.stderr, end="")


def _described(error: Exception) -> str:
    """What happened; of what was not raised on purpose, also where."""
    if isinstance(error, FedrayError):
        return one_line(error)
    return f"{_placed(error)}; --debug shows the traceback"


def _placed(error: BaseException) -> str:
    """What was raised, and where."""
    last = extract_tb(error.__traceback__)[-1]
    return f"{named(error)} ({last.filename}, line {last.lineno})"


def _nobody_reads() -> bool:
    """Whether who read stdout has closed it; then what is left in it is let go."""
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
