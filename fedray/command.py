"""The frame of all commands: parsing arguments, stopping, and one-line error messages."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from textwrap import TextWrapper
from traceback import extract_tb, format_exception
from types import FrameType
from typing import Any, NoReturn, TextIO, TypeVar, cast

import click

from fedray.base.activity import Escaping, end_waiting
from fedray.base.errors import CodeError, Failure, FedrayError, UserError, named, nearest, one_line
from fedray.base.masking import mask
from fedray.base.shipped import names

USER_ERROR = 2
RUN_ERROR = 1
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
NOBODY_READS = 128 + signal.SIGPIPE

WIDTH = 80
SETTINGS = {"max_content_width": WIDTH, "help_option_names": ["-h", "--help"]}

_sigterm = threading.Event()
"""Set by SIGTERM, because Ray replaces the exception that ends its waits by `KeyboardInterrupt`."""
F = TypeVar("F", bound=Callable[..., Any])


class Terminated(KeyboardInterrupt):
    """SIGTERM, which `ray job stop` and batch systems send; handled like Ctrl-C."""


# --- arguments ------------------------------------------------------------------------------------


class Command(click.Command):
    """A command with the flag `--debug`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"context_settings": SETTINGS, **kwargs})
        help_ = "Print the traceback of an error, too."
        flag = click.Option(["--debug"], is_flag=True, expose_value=False, help=help_)
        self.params.append(flag)


class LazyGroup(click.Group):
    """A group of commands whose modules are imported when they are called.

    Attributes:
        what: what a command is, for messages.
        sections: the commands with their lines in the help, by section.
    """

    what = "command"
    sections: Mapping[str, Mapping[str, str]]

    def place(self, name: str) -> str:
        """Return "module:attribute" of a command."""
        raise NotImplementedError

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands in the order of the help."""
        return [name for lines in self.sections.values() for name in lines]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None for an option, and while the shell completes words."""
        is_other = ctx.resilient_parsing and cmd_name not in self.list_commands(ctx)
        return None if is_other or cmd_name.startswith("-") else self.find(cmd_name)

    def find(self, name: str) -> click.Command:
        """Import and return a command; raise `UserError` if there is none of this name."""
        known = [name for lines in self.sections.values() for name in lines]
        if name not in known:
            raise UserError(f"there is no {self.what} '{name}'.{nearest(name, known)}")
        module, _, attribute = self.place(name).partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands into the help text, by section."""
        for section, lines in self.sections.items():
            with formatter.section(section):
                formatter.write_dl(list(lines.items()), col_max=12)


_is_program = False
"""Whether `run` executes the command line of this process."""


PATH = click.Path(path_type=Path)


def completed(*kinds: str) -> Callable[..., list[str]]:
    """Return what completes a word in the shell: shipped names of these kinds, see `FOLDERS`."""
    return lambda ctx, param, begun: [
        name for kind in kinds for name in names(kind) if name.startswith(begun)
    ]


def indented(text: str, indent: int = 2) -> list[str]:
    """Return the lines of a text in 80 columns, behind an indent."""
    wrapper = TextWrapper(WIDTH - indent, break_long_words=False, break_on_hyphens=False)
    return [" " * indent + line for line in wrapper.wrap(text)]


def keys(function: F) -> F:
    """Add the arguments KEY=VALUE, passed as `keys`."""
    return click.argument("keys", nargs=-1, metavar="[KEY=VALUE]...")(function)


def plugins(function: F, **more: Any) -> F:
    """Add the flag `--plugin`, passed as the tuple `plugin`."""
    text = "Your file, package or installed module with methods, models, ...; repeatable."
    more = {"multiple": True, "metavar": "FILE", "help": text, **more}
    return click.option("--plugin", **more)(function)


def plugins_of_runs(function: F) -> F:
    """Add the flag `--plugin` to a command that runs what the runs in folders have used."""
    text = "Your copy of a plug-in that the run used; repeatable."
    return plugins(function, expose_value=False, callback=_name_plugins, help=text)


def _name_plugins(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> None:
    if given:
        from fedray.config.plugins import named_plugins

        named_plugins(given)


# --- running --------------------------------------------------------------------------------------


def run(command: click.Command, argv: Sequence[str] | None = None, prog: str = "fedray") -> int:
    """Run a command; report exceptions as one line on stderr, with secrets masked.

    Args:
        command: the command; it returns its exit code, or None for 0.
        argv: the arguments; None: those of the process.
        prog: the name of the program, for help texts.

    Returns:
        The exit code: 2 for a `UserError`, 1 for any other error, 130 after Ctrl-C, 143 after
        SIGTERM, 141 if the reader of stdout has closed the pipe.
    """
    global _is_program
    _is_program = argv is None
    words = tuple(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a character gets a "?"
            stream.reconfigure(errors="replace")
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, Escaping(stream)) for stream in before)
    try:
        with sigterm_raised():
            code = _invoked(command, list(words), prog)
            sys.stdout.flush()
            return code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USER_ERROR
    except click.UsageError as error:
        say_wrong(wrong_words(error))
        return USER_ERROR
    except KeyboardInterrupt as stop:
        say_stopped(stop)
        return TERMINATED if _is_terminated(stop) else INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return NOBODY_READS
    except Exception as error:
        return _report(error, "--debug" in words)
    finally:
        end_waiting()
        sys.stdout, sys.stderr = before


def _report(error: Exception, debug: bool) -> int:
    """Print an error, and with `debug` its traceback before; return the exit code."""
    if debug:
        print(mask("".join(format_exception(error))), file=sys.stderr, end="")
    if isinstance(error, OSError) and error.filename:
        error = UserError(f"{os.fsdecode(error.filename)}: {error.strerror}")
    if isinstance(error, UserError):
        say_wrong(error)
        return USER_ERROR
    is_ours = isinstance(error, FedrayError)
    text = one_line(error) if is_ours else f"{_placed(error)}; --debug shows the traceback"
    _say(f"failed: {text}")
    return RUN_ERROR


def wrong_words(error: click.UsageError) -> str:
    """Return what is wrong with the words of a command line, and where to read the right ones."""
    is_unknown = isinstance(error, click.NoSuchOption)  # click would suggest any other one
    message = (error.message if is_unknown else error.format_message()).rstrip(".")
    ctx = error.ctx
    return message if ctx is None else f"{message} (see {ctx.command_path} --help)"


def is_program() -> bool:
    """Return True if this process runs one command, the one of its command line, and then ends."""
    return _is_program


def _invoked(command: click.Command, words: list[str], prog: str) -> int:
    """Parse the arguments and run the command.

    Raises:
        CodeError: if user code called `sys.exit`, whose status must not become the command's.
    """
    try:
        with command.make_context(prog, words) as ctx:
            return int(command.invoke(ctx) or 0)
    except click.exceptions.Exit as end:  # --help, --version
        return end.exit_code
    except SystemExit as error:
        raise CodeError(replace(Failure.of(error), cause=_placed(error))) from error


@contextmanager
def sigterm_raised() -> Iterator[None]:
    """Raise `Terminated` in the main thread on SIGTERM, so that files and runs are closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _sigterm.clear()
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Act on Ctrl-C and SIGTERM after the block; on a second signal, at once.

    A process that is interrupted while Ray starts cannot end cleanly: it aborts. Ray also replaces
    the SIGTERM handler; the one before is set again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    received: list[int] = []

    def defer(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1 and callable(before[number]):
            before[number](number, frame)

    try:
        for number in before:
            signal.signal(number, defer)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number in received[:1]:
        signal.raise_signal(number)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second signal must not interrupt cleaning up
    _sigterm.set()
    raise Terminated


def _is_terminated(stop: KeyboardInterrupt) -> bool:
    return isinstance(stop, Terminated) or _sigterm.is_set()


def say_stopped(stop: KeyboardInterrupt, how_to_go_on: str = "") -> None:
    """Print that the command was stopped, at most once per exception.

    Args:
        stop: the exception.
        how_to_go_on: how to continue, appended to the message.
    """
    if getattr(stop, "said", False):
        return
    what = "terminated" if _is_terminated(stop) else "interrupted"
    _say("; ".join(filter(None, (what, one_line(how_to_go_on)))))
    stop.said = True  # type: ignore[attr-defined]


def say_wrong(error: object) -> None:
    """Print a user's mistake as one line on stderr."""
    _say(f"error: {one_line(error)}")


def go_on_with(*words: object) -> str:
    """Return a hint with the command that continues a stopped one.

    Args:
        words: the arguments of `python -m`.
    """
    return f"go on with: {shlex.join(['python', '-m', *map(str, words)])}"


def _placed(error: BaseException) -> str:
    """Return an error's class and message with the file and line that raised it."""
    last = extract_tb(error.__traceback__)[-1]
    return f"{named(error)} ({last.filename}, line {last.lineno})"


def _discard_output() -> None:
    with suppress(OSError):  # stdout of a notebook or a test has no file descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
