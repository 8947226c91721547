"""Print what a command waits for; on a terminal, count the seconds until the next output."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from shutil import get_terminal_size
from typing import Any, TextIO

from fedray.units import time_of

EVERY = 1.0
"""Seconds between two updates of the count."""
COUNT = 10
"""Characters reserved for the count."""


def say_next(what: str) -> None:
    """Print what the command does or waits for next.

    On a terminal, seconds are counted after the text until the next output, and a progress bar is
    ended before. A log gets one plain line.
    """
    end_waiting()
    while _BARS:
        _BARS.pop()()
    if sys.stdout.isatty():
        _Counting(f"{what} ...")
    else:
        print(f"{what} ...", flush=True)


def begin_bar(start: Callable[[], object], stop: Callable[[], object]) -> None:
    """Start a progress bar on the terminal; `stop` is called before the next counted line.

    The library of the bars replaces the standard streams while a bar is shown, and would print each
    second of the count on a new line.
    """
    end_waiting()
    start()
    _BARS.append(stop)


def end_waiting() -> None:
    """End a running count and its line, if there is one."""
    if isinstance(sys.stdout, _Ending):
        sys.stdout.end()


def seconds_of(seconds: float) -> str:
    """Format a duration in whole seconds."""
    whole = int(seconds)
    return f"{whole} s" if whole < 10 else time_of(whole)


class _Counting:
    """A thread that counts seconds after a line until something else is written."""

    def __init__(self, line: str) -> None:
        self._streams = sys.stdout, sys.stderr
        fits = len(line) + COUNT < get_terminal_size().columns
        self._line, self._open = (f"{line} ", True) if fits else ("", False)
        self._ended = threading.Event()
        self._lock = threading.RLock()
        self._show(line if fits else f"{line}\n")
        sys.stdout, sys.stderr = _LAST[:] = [_Ending(self.end, stream) for stream in self._streams]
        threading.Thread(target=self._count, name="waiting", daemon=True).start()

    def _count(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(EVERY):
            with self._lock:
                if not self._ended.is_set():
                    self._open = True
                    self._show(f"\r{self._line}{seconds_of(time.monotonic() - began)}")

    def _show(self, text: str) -> None:
        self._streams[0].write(text)
        self._streams[0].flush()

    def end(self) -> None:
        """Stop counting, end the line, and restore the streams."""
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
            if self._open:
                self._show("\n")
        if isinstance(sys.stdout, _Ending):
            sys.stdout = self._streams[0]
        if isinstance(sys.stderr, _Ending):
            sys.stderr = self._streams[1]


class _Ending:
    """A stream whose first write ends the count."""

    def __init__(self, end: Callable[[], None], stream: TextIO) -> None:
        self.end = end
        self._stream = stream

    def write(self, text: str) -> int:
        self.end()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_BARS: list[Callable[[], object]] = []
"""What stops the progress bars that are shown."""
_LAST: list[_Ending] = []
"""The streams of the last count, kept alive: `print` in Python 3.11 holds no reference to
`sys.stdout` and crashes if the write frees the stream."""
