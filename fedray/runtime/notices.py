"""What fedray says in an actor, brought to the command: Ray keeps an actor's output to itself."""

from __future__ import annotations

import logging


class Notices(logging.Handler):
    """Collects this process's warnings of fedray until they are taken."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: list[str] = []
        logging.getLogger("fedray").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning's text."""
        self._said.append(record.getMessage())

    def take(self) -> list[str]:
        """What was said since this was called last."""
        taken, self._said = self._said, []
        return taken
