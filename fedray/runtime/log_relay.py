"""Collect an actor's warnings, whose output Ray does not show; the command prints them."""

from __future__ import annotations

import logging


class LogRelay(logging.Handler):
    """Collects this process's warnings until they are taken."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: list[str] = []
        logging.getLogger("fedray").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning's text."""
        self._texts.append(record.getMessage())

    def take(self) -> list[str]:
        """Return the warnings since the last call."""
        taken, self._texts = self._texts, []
        return taken
