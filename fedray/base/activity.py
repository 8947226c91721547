"""What a command prints on a terminal: counted seconds while it waits, and progress bars, by rich.

A log gets plain lines.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text

from fedray.base.errors import printable
from fedray.base.units import time_of

_counts: list[Progress] = []
"""The count that the next output ends, if any."""
_bars: list[Progress] = []
"""The bar that is shown, if any; rich prints other output above it."""


class Escaping:
    """A standard stream that ends a count, and escapes control characters of strangers' files.

    Bold and coloured text, and the return to the start of a line that is counted on, stay.
    """

    _CONTROL = re.compile(
        r"(?!\A\r)(?!\x1b\[(?:[39]?[0-7];?)+m)"
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
    )

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text, whose control characters are shown as text."""
        end_waiting()
        self.stream.write(self._CONTROL.sub(lambda found: ascii(found[0])[1:-1], text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class Elapsed(ProgressColumn):
    """Column with the elapsed seconds, which shows that the command is alive."""

    def render(self, task: Task) -> Text:
        """Return the elapsed seconds as text."""
        return Text(seconds_of(task.elapsed or 0))


class _Waiting(Elapsed):
    def render(self, task: Task) -> Text:
        return Text(f"{task.description} ... {super().render(task)}")


def say_next(what: str) -> None:
    """Print what the command does or waits for next.

    On a terminal, seconds are counted after the text until the next output, and a progress bar is
    ended before. A log gets one plain line.
    """
    end_waiting()
    while _bars:
        _bars.pop().stop()
    if not is_terminal():
        print(f"{what} ...", flush=True)
        return
    is_ours = isinstance(sys.stdout, Escaping)  # it ends the count; elsewhere, rich prints above
    _counts.append(
        Progress(
            _Waiting(),
            console=console(),
            refresh_per_second=2,
            redirect_stdout=not is_ours,
            redirect_stderr=not is_ours,
        )
    )
    _counts[0].add_task(what)
    _counts[0].start()


def end_waiting() -> None:
    """End a running count and its line, if there is one."""
    with suppress(IndexError):
        _counts.pop().stop()


def is_terminal() -> bool:
    """Return True if lines of standard output can be written again."""
    return sys.stdout.isatty() and console().is_interactive


def console() -> Console:
    """Return rich's view of standard output as it is, whose control characters rich needs."""
    stream = sys.stdout
    while isinstance(stream, Escaping):
        stream = stream.stream
    return Console(file=stream)


def seconds_of(seconds: float) -> str:
    """Format a duration in whole seconds."""
    whole = int(seconds)
    return f"{whole} s" if whole < 10 else time_of(whole)


class Lines:
    """Lines that are printed one after the other, on a terminal above a progress bar.

    Args:
        columns: the columns of the bar.
        fields: first values of the bar's fields.
    """

    def __init__(self, *columns: ProgressColumn, **fields: Any) -> None:
        self.bar = Progress(*columns, console=console()) if is_terminal() else None
        if self.bar is not None:
            self._task = self.bar.add_task("starting", **fields)

    def __enter__(self) -> Self:
        end_waiting()
        if self.bar is not None:
            self.bar.start()
            _bars.append(self.bar)
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def say(self, line: str, in_log: str = "") -> None:
        """Print a line; a log adds `in_log` to it."""
        if self.bar is None:
            print(f"{line}  {in_log}".rstrip(), flush=True)
        else:
            self.bar.console.print(printable(line), highlight=False, markup=False)

    def update(self, **fields: Any) -> None:
        """Change the fields of the bar."""
        if self.bar is not None:
            self.bar.update(self._task, **fields)
