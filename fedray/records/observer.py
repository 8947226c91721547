"""Observers of a run: they see each round once it is over, wherever the run is driven."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from fedray.errors import ClientError, ServerError
from fedray.records.run import Round


class Observer:
    """Sees every round of a run once it is over, and the run's end."""

    def after_round(self, done: Round) -> None:
        """See a round."""

    def after_failure(self) -> None:
        """See that a client's or the server's step failed in the round after the last one."""

    def close(self) -> None:
        """See that no round follows in this process."""


@contextmanager
def closing_all(observers: Sequence[Observer]) -> Iterator[None]:
    """Close observers at the end, the last one first, each even if another raises an error."""
    with ExitStack() as stack:
        for observer in observers:
            stack.callback(observer.close)
        try:
            yield
        except (ClientError, ServerError):
            for observer in observers:
                observer.after_failure()
            raise
