"""Notice within seconds that Ray itself has died while a command waits for its results.

Ray waits a minute for a killed head, and then aborts the process; for a killed node it waits until
another one has room. But a killed process no longer listens at its port.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

from fedray.errors import RayDied, one_line
from fedray.runtime.local_ray import answers

log = logging.getLogger(__name__)

LOST = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError, OutOfMemoryError)
"""Errors of a call whose process, node or result is lost or cannot be reached."""
TRIES = 3
"""Failed connections, a second apart, after which a process counts as dead."""
STILL_SECONDS = 10.0
"""How long nothing arrives before stopped processes are looked for."""


def cause_of(error: Exception) -> str:
    """Return the first line of Ray's message about a loss."""
    return one_line(str(error).strip().partition("\n")[0] or type(error).__name__)


class Liveness:
    """Watches, from the driver, the head of the connected cluster and Ray on the driver's node."""

    def __init__(self) -> None:
        node_id = ray.get_runtime_context().get_node_id()
        node = next(node for node in ray.nodes() if node["NodeID"] == node_id)
        head = ray.get_runtime_context().gcs_address
        self._addresses = {
            f"the head of Ray ({head}) has died or cannot be reached": head,
            "Ray on this machine has died (its raylet was killed, perhaps for lack of memory)": (
                f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
            ),
        }
        self._head = head
        self._checked = self._arrived = time.monotonic()
        self._reported: set[int] = set()

    def wait(self, ref: Any, seconds: float = math.inf) -> bool:
        """Wait until a reference, or the next item of a stream of references, is ready.

        Returns:
            True; False after `seconds` without it.

        Raises:
            RayDied: if Ray dies.
        """
        self.arrived()
        while not (is_ready := ray.wait([ref], timeout=1.0)[0]):
            self.look()
            if time.monotonic() - self._arrived > seconds:
                break
        self.look()
        return bool(is_ready)

    def look(self) -> None:
        """Check Ray at most once a second, and stopped processes if nothing arrives.

        Raises:
            RayDied: if Ray does not answer.
        """
        now = time.monotonic()
        if now - self._checked >= 1.0:
            self.check()
            if now - self._arrived > STILL_SECONDS:
                self._report_stopped()

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

    def arrived(self) -> None:
        """Record that a result has arrived by another way than `wait`."""
        self._arrived = time.monotonic()

    def _report_stopped(self) -> None:
        """Warn once of each stopped process of Ray on this machine, which nobody else mentions."""
        for process in self._processes():
            try:
                is_stopped = process.status() == psutil.STATUS_STOPPED
                if is_stopped and process.pid not in self._reported:
                    self._reported.add(process.pid)
                    name = (process.cmdline() or [process.name()])[0]
                    log.warning(
                        "process %d (%s) is stopped, and the run waits for it; go on with "
                        "kill -CONT %d",
                        process.pid,
                        name,
                        process.pid,
                    )
            except psutil.Error:  # it has ended
                continue

    def _processes(self) -> Iterator[psutil.Process]:
        """Yield the processes of a Ray that this one started, and of one that it has joined."""
        yield from psutil.Process().children(recursive=True)
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if (
                    process.name() == "raylet"
                    and f"--gcs-address={self._head}" in process.cmdline()
                ):
                    yield from process.children(recursive=True)
