"""Connect to a Ray cluster or start a local Ray, and notice that Ray has died."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import (
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    WorkerCrashedError,
)

from fedray.base.errors import FedrayError, RayDied, UserError, one_line
from fedray.base.processors import allowed_cpus
from fedray.command import signals_deferred

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # keep relative paths valid in trials
    "RAY_enable_metrics_collection": "0",  # it opens a port that needs no token
}
ANSWER_SECONDS = 4.0
LOOK_SECONDS = 2.0
TRIES = 3
"""Failed connections, a second apart, after which a process counts as dead."""
LOST = (RayActorError, WorkerCrashedError, NodeDiedError, ObjectLostError, OutOfMemoryError)
"""Errors of a call whose process, node or result is lost or cannot be reached."""


def connect(num_cpus: int | None = None, num_gpus: int | None = None) -> list[dict[str, float]]:
    """Connect to the cluster at $RAY_ADDRESS, or start a local Ray; return each node's resources.

    A running cluster that RAY_ADDRESS does not name is never joined.

    Args:
        num_cpus: CPUs that a local Ray offers; None counts them.
        num_gpus: GPUs that a local Ray offers (pretended ones in tests); None: those it finds.

    Raises:
        UserError: if no cluster can be joined at $RAY_ADDRESS.
        FedrayError: if a local Ray does not start.
    """
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    if ray.is_initialized():
        return nodes()
    address = os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"address": address, "logging_level": logging.ERROR}
    if address == "local":
        options |= {
            "num_cpus": num_cpus or allowed_cpus(),  # Ray does not see an affinity
            "num_gpus": num_gpus,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
    elif address != "auto" and not answers(address):
        raise UserError(f"no Ray cluster answers at RAY_ADDRESS={address}; start it there")
    try:
        _start(options)
    except Exception as error:  # Ray has no error class for a failed start
        if address != "local":
            raise UserError(f"Ray cannot join RAY_ADDRESS={address} ({cause_of(error)})") from error
        raise FedrayError(f"Ray cannot start here ({cause_of(error)})") from error
    return nodes()


def _start(options: Mapping[str, Any]) -> None:
    """Start or join Ray; out of a thread, in one that stays.

    Linux ends Ray's processes with the thread that has started them.
    """
    if threading.current_thread() is threading.main_thread():
        with signals_deferred():
            ray.init(**options)
        return
    started: Future[Any] = Future()

    def stay() -> None:
        try:
            started.set_result(ray.init(**options))
        except Exception as error:
            started.set_exception(error)
        threading.Event().wait()

    threading.Thread(target=stay, daemon=True).start()
    started.result()


def answers(address: str) -> bool:
    """Return True if a process listens at HOST:PORT; Ray itself may wait 14 minutes for one."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS):
            return True
    except (OSError, ValueError, OverflowError):
        return False


def nodes() -> list[dict[str, float]]:
    """Return the CPUs and GPUs of each node that is alive."""
    return [
        {kind: float(node["Resources"].get(kind, 0)) for kind in ("CPU", "GPU")}
        for node in ray.nodes()
        if node["Alive"]
    ]


def check_storage(folder: Path, count: int) -> None:
    """Refuse results on the local disk of one of several nodes.

    Raises:
        UserError: if the cluster has several nodes, and FEDRAY_RESULTS does not name a folder,
            which all nodes are then assumed to share.
    """
    if count > 1 and not os.environ.get("FEDRAY_RESULTS"):
        raise UserError(
            f"the cluster has {count} nodes and results would go to {folder}, one node's own disk; "
            "set FEDRAY_RESULTS to a folder that all nodes share, for example /shared/results"
        )


def cause_of(error: Exception) -> str:
    """Return the first line of a message of Ray."""
    return one_line(str(error).strip().partition("\n")[0] or type(error).__name__)


class Liveness:
    """Notices, in the driver, that the head of the cluster or Ray on the driver's node has died.

    Ray itself waits a minute for a killed head, and then aborts the process without a sentence; for
    a killed node it waits for ever. But a killed process no longer listens at its port.
    """

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        (node,) = [one for one in ray.nodes() if one["NodeID"] == context.get_node_id()]
        head, host, port = context.gcs_address, node["NodeManagerAddress"], node["NodeManagerPort"]
        lost = "its raylet was killed, perhaps for lack of memory"
        self._addresses = {
            f"the head of Ray ({head}) has died": head,
            f"Ray on this machine has died ({lost})": f"{host}:{port}",
        }
        self._checked = time.monotonic()

    def check(self) -> None:
        """Raise a `RayDied` if Ray has died; look once in two seconds."""
        if time.monotonic() - self._checked >= LOOK_SECONDS:
            self._checked = time.monotonic()
            if died := self.cause():
                raise died

    def cause(self) -> RayDied | None:
        """Return the error if Ray does not answer for some seconds."""
        for sentence, address in self._addresses.items():
            tries = 0
            while not answers(address):
                if (tries := tries + 1) == TRIES:
                    return RayDied(sentence)
                time.sleep(1.0)
        return None
