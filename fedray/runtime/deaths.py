"""What Ray raises when processes or nodes are gone, in our own terms."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import (
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
    return str(error).strip().splitlines()[0]
