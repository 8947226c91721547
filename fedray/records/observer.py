"""Observers of a run, which see each round after it has finished."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from fedray.records.run import Round


class Observer:
    """Sees every finished round of a run, and the run's end."""

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
