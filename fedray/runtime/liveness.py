"""Notice that Ray itself has died while a process waits for its results.

Ray waits a minute for a killed head, and then aborts the process; for a killed node it waits until
another one has room. But a killed process no longer listens at its port.
"""

from __future__ import annotations

import math
import time
from typing import Any

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

from fedray.errors import RayDied, one_line
from fedray.runtime.cluster import answers

LOST = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError, OutOfMemoryError)
"""Errors of a call whose process, node or result is lost or cannot be reached."""
TRIES = 3
"""Failed connections, a second apart, after which a process counts as dead."""
LOOK_SECONDS = 2.0


def cause_of(error: Exception) -> str:
    """Return the first line of Ray's message about a loss."""
    return one_line(str(error).strip().partition("\n")[0] or type(error).__name__)


class Liveness:
    """Watches, from the driver, the head of the connected cluster and Ray on the driver's node."""

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        (node,) = [one for one in ray.nodes() if one["NodeID"] == context.get_node_id()]
        self._addresses = {
            f"the head of Ray ({context.gcs_address}) has died": context.gcs_address,
            "Ray on this machine has died (its raylet was killed, perhaps for lack of memory)": (
                f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
            ),
        }
        self._checked = time.monotonic()

    def wait(self, ref: Any, seconds: float = math.inf) -> bool:
        """Wait until a reference, or the next item of a stream of references, is ready.

        Returns:
            True; False after `seconds` without it.

        Raises:
            RayDied: if Ray dies.
        """
        end = time.monotonic() + seconds
        while not (is_ready := ray.wait([ref], timeout=LOOK_SECONDS)[0]):
            if time.monotonic() > end:
                break
            self.look()
        self.look()
        return bool(is_ready)

    def look(self) -> None:
        """Check Ray, unless that was done a moment ago.

        Raises:
            RayDied: if Ray does not answer.
        """
        if time.monotonic() - self._checked >= LOOK_SECONDS:
            self.check()

    def check(self) -> None:
        """Return if Ray answers.

        Raises:
            RayDied: if it does not answer for some seconds.
        """
        for sentence, address in self._addresses.items():
            for _ in range(TRIES):
                if answers(address):
                    break
                time.sleep(1.0)
            else:
                raise RayDied(sentence)
        self._checked = time.monotonic()
