"""What Ray raises when processes or nodes are gone, in our own terms.

A death is a process that ended while its node lives: the step that it was running may be to blame,
so deaths are counted. An outage is anything else: a process that cannot be reached, a node that is
gone or was taken back. Nobody's step is to blame, so outages are waited out: with growing pauses,
and for a time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
    WorkerCrashedError,
)

from fedray.errors import FedrayError, RunFailed

DEATHS = (RayActorError, WorkerCrashedError, NodeDiedError, OutOfMemoryError)
"""What Ray raises when a process or its node is gone, or was ended because memory ran out."""

_NODE_GONE = "node has died"
"""What Ray says of an actor that went with its node."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds between two tries; every pause is twice as long as the one before."""


def is_outage(error: BaseException) -> bool:
    """Whether an error of `DEATHS`, or a lost object, says nothing against a step that was run.

    Ray's ActorUnavailableError means that a process cannot be reached just now; of a node that is
    gone it comes first, until Ray is sure.
    """
    if isinstance(error, RayActorError):
        gone = error.preempted or _NODE_GONE in str(error)
        return gone or isinstance(error, ActorUnavailableError)
    return isinstance(error, NodeDiedError | ObjectLostError | StatesLost)


class Patience:
    """How much goes wrong before a run gives up: deaths by their number, outages by their time.

    Args:
        deaths: how many deaths it survives of each whom they are counted against.
        seconds: how long nothing may succeed while there are outages.
    """

    def __init__(self, deaths: int, seconds: float) -> None:
        self._most, self._seconds = deaths, seconds
        self._deaths: Counter[int] = Counter()
        self._since: float | None = None
        self._pause = FIRST_PAUSE

    def success(self) -> None:
        """Note that something succeeded: whatever outage there was is over."""
        self._since, self._pause = None, FIRST_PAUSE

    def is_used_up(self, error: Exception, whom: Iterable[int] = (0,)) -> bool:
        """Note that `error` happened to `whom`; whether it is the one too many."""
        if not is_outage(error):
            self._deaths.update(whom)
            return max(self._deaths.values()) > self._most
        now = time.monotonic()
        self._since = self._since or now
        return now - self._since > self._seconds

    def pause(self) -> None:
        """Sleep before the next try after an outage, longer every time."""
        if self._since is not None:
            time.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    @property
    def deaths(self) -> int:
        """The most deaths that anyone was counted."""
        return max(self._deaths.values(), default=0)


class StatesLost(RunFailed):
    """Clients' states went with the node that held them; the last checkpoint has older ones."""


def get(refs: Any) -> Any:
    """`ray.get` with errors in our own terms.

    Raises:
        One of `DEATHS`: when the worker died, or cannot be reached.
        ObjectLostError: when the node with the answer is gone.
        StatesLost: when the states that the worker needed are.
    """
    try:
        return ray.get(refs)
    except RayTaskError as error:
        if isinstance(error.cause, ObjectLostError):
            raise states_lost(error.cause) from error
        raise error.cause from (None if isinstance(error.cause, FedrayError) else error)


def states_lost(error: Exception) -> StatesLost:
    """The error that says so."""
    return StatesLost(f"the node that held clients' states is gone: {first_line(error)}")


def raise_if_unstartable(error: Exception) -> None:
    """Tell a worker whose start raises an error from one that died.

    Raises:
        RunFailed: when it cannot start.
    """
    if isinstance(error, RayActorError) and error.actor_init_failed:
        raise RunFailed(f"a worker cannot start: {str(error).strip().splitlines()[-1]}") from error


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
