"""What can go wrong, in two kinds: what the user can mend, and what happened while running."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedrayError(Exception):
    """Any error that fedray raises on purpose."""


class UserError(FedrayError, ValueError):
    """Something the user can mend; the commands print it as one sentence and exit with 2.

    The message says what was found, what was expected and which key or file to change.
    """


class ClientError(FedrayError):
    """A client's step failed; the message names the client, the round and the step."""

    def __init__(self, client: int, round_: int, step: str, cause: str) -> None:
        super().__init__(client, round_, step, cause)
        self.client = client
        self.round = round_
        self.step = step
        self.cause = cause

    def __str__(self) -> str:
        return f"client {self.client}, round {self.round}, step {self.step}: {self.cause}"


class RunFailed(FedrayError):
    """A run stopped after more failures than it may survive; its last checkpoint is intact."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for a near miss, else the list of valid names."""
    names = sorted(valid)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Valid: {', '.join(names)}."
