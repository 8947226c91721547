"""Observers of a run: they see each round once it is over, wherever the run is driven."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from fedray.records.run import Round


class Observer:
    """Sees every round of a run once it is over, and the run's end."""

    def after_round(self, done: Round) -> None:
        """See a round."""

    def close(self) -> None:
        """See that no round follows in this process."""


@contextmanager
def closing_all(observers: Sequence[Observer]) -> Iterator[None]:
    """Close observers at the end, the last one first, each even if another raises an error."""
    with ExitStack() as stack:
        for observer in observers:
            stack.callback(observer.close)
        yield
