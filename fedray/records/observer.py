"""The interface of observers, which receive each finished round of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from fedray.records.run import Round


class Observer:
    """Receives every finished round of a run, and the run's end."""

    def after_round(self, done: Round) -> None:
        """Receive a finished round."""

    def close(self) -> None:
        """Release resources; no round follows in this process."""


@contextmanager
def closing_all(observers: Sequence[Observer]) -> Iterator[None]:
    """Close all observers on exit, in reverse order, even if one of them raises an error."""
    with ExitStack() as stack:
        for observer in observers:
            stack.callback(observer.close)
        yield
