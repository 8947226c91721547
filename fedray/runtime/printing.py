"""Capture what methods print on a Ray worker: Ray does not show it, so replies carry it."""

from __future__ import annotations

import sys
from typing import NoReturn

from fedray.errors import UserError

MOST_LINES = 20
"""Printed lines of a client's step that are sent; further lines are only counted."""


class Printed:
    """A replacement for `sys.stdout` that collects printed lines until `take` returns them."""

    def __init__(self) -> None:
        self._stream = sys.stdout
        self._text = ""
        sys.stdout = self
        sys.breakpointhook = refuse_breakpoint

    def write(self, text: str) -> int:
        """Collect a text, and write it to the worker's log."""
        self._text += text
        return self._stream.write(text)

    def take(self) -> tuple[str, ...]:
        """Return the lines since the last call: at most `MOST_LINES`, and a count of the rest."""
        if not self._text:
            return ()
        lines, self._text = self._text.splitlines(), ""
        if len(lines) > MOST_LINES:
            lines[MOST_LINES:] = [f"and {len(lines) - MOST_LINES} more lines"]
        return tuple(lines)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


def refuse_breakpoint(*_: object, **__: object) -> NoReturn:
    """Refuse `breakpoint()`, since a worker has no terminal.

    Raises:
        UserError: always.
    """
    raise UserError(
        "breakpoint() needs a terminal, which a Ray worker does not have; add --executor serial"
    )
