"""What is waited for, with a count of the seconds on a terminal, until something else is said."""

from __future__ import annotations

import sys
import threading
import time
from shutil import get_terminal_size
from typing import Any, TextIO

from fedray.units import time_of

EVERY = 1.0
"""Seconds between two counts."""
COUNT = 10
"""Characters that a count may take."""


def say_next(what: str) -> None:
    """Say what is being done, or waited for, before there is anything to show.

    On a terminal the seconds are counted behind it until the next output, so that one sees that
    it lives; in a log it is one plain line.
    """
    end_waiting()
    if sys.stdout.isatty():
        _Counting(f"{what} ...")
    else:
        print(f"{what} ...", flush=True)


def end_waiting() -> None:
    """End the line of what was waited for, if it is still counted."""
    if isinstance(sys.stdout, _Ending):
        sys.stdout.counting.end()


def seconds_of(seconds: float) -> str:
    """Whole seconds: they are counted, not measured."""
    whole = int(seconds)
    return f"{whole} s" if whole < 10 else time_of(whole)


class _Counting:
    """Counts behind a line from a thread; whatever else is printed ends it first.

    Args:
        line: what is waited for.
    """

    def __init__(self, line: str) -> None:
        self._out, self._error = sys.stdout, sys.stderr
        fits = len(line) + COUNT < get_terminal_size().columns
        self._line, self._open = (f"{line} ", True) if fits else ("", False)
        self._ended = threading.Event()
        self._one = threading.RLock()
        self._show(line if fits else f"{line}\n")
        self._began = time.monotonic()
        sys.stdout = _Ending(self, self._out)
        sys.stderr = _Ending(self, self._error)
        threading.Thread(target=self._count, name="waiting", daemon=True).start()

    def _count(self) -> None:
        while not self._ended.wait(EVERY):
            with self._one:
                if not self._ended.is_set():
                    self._open = True
                    self._show(f"\r{self._line}{seconds_of(time.monotonic() - self._began)}")

    def _show(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()

    def end(self) -> None:
        """Stop counting, end the line, and leave the streams as they were."""
        with self._one:
            if self._ended.is_set():
                return
            self._ended.set()
            if self._open:
                self._show("\n")
        if isinstance(sys.stdout, _Ending) and sys.stdout.counting is self:
            sys.stdout = self._out
        if isinstance(sys.stderr, _Ending) and sys.stderr.counting is self:
            sys.stderr = self._error


class _Ending:
    """A stream that ends a count before it is written to.

    Args:
        counting: the count.
        stream: what is written to.
    """

    def __init__(self, counting: _Counting, stream: TextIO) -> None:
        self.counting = counting
        self._stream = stream

    def write(self, text: str) -> int:
        """Write behind the line of the count."""
        self.counting.end()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
