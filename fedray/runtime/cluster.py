"""Connect to a Ray cluster or start a local Ray, and decide where the server runs."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedray.command import signals_deferred
from fedray.errors import FedrayError, UserError
from fedray.processors import allowed_cpus

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # keep relative paths valid in trials
    "RAY_enable_metrics_collection": "0",  # it opens a port that needs no token
}
ANSWER_SECONDS = 4.0


def connect(num_cpus: int | None = None, num_gpus: int | None = None) -> list[dict[str, float]]:
    """Connect to the cluster at $RAY_ADDRESS, or start a local Ray; return each node's resources.

    A running cluster that RAY_ADDRESS does not name is never joined.

    Args:
        num_cpus: CPUs that a local Ray offers; None counts them.
        num_gpus: GPUs that a local Ray offers (pretended ones in tests); None counts them.

    Raises:
        UserError: if no cluster can be joined at $RAY_ADDRESS.
        FedrayError: if a local Ray does not start.
    """
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS") or "local"
        options: dict[str, Any] = {"address": address}
        if address == "local":
            options |= {
                "num_cpus": num_cpus or allowed_cpus(),  # Ray does not see an affinity
                "num_gpus": _other_gpus() if num_gpus is None else num_gpus,
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
            }
        elif address != "auto" and not answers(address):
            raise UserError(f"no Ray cluster answers at RAY_ADDRESS={address}; start it there")
        try:
            with signals_deferred():
                ray.init(**options, logging_level=logging.ERROR)
        except Exception as error:  # Ray has no error class for a failed start
            cause = str(error).strip().partition("\n")[0] or type(error).__name__
            if address != "local":
                raise UserError(f"Ray cannot join RAY_ADDRESS={address} ({cause})") from error
            raise FedrayError(
                f"Ray cannot start on this machine ({cause}); try again when it is less busy, or "
                "run a single experiment without Ray: --executor serial"
            ) from error
    return nodes()


def answers(address: str) -> bool:
    """Return True if a process listens at HOST:PORT; Ray itself may wait 14 minutes for one."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS):
            return True
    except (OSError, ValueError, OverflowError):
        return False


def _other_gpus() -> int | None:
    """Return the number of GPUs that Ray does not count, which are not NVIDIA's or AMD's, or None.

    PyTorch counts them; on Linux it is imported only if it is built for them.
    """
    if sys.platform == "linux" and "xpu" not in version("torch"):
        return None
    from fedray.runtime.devices import accelerator, count

    return count() if accelerator() in ("xpu", "mps") else None


def nodes() -> list[dict[str, float]]:
    """Return the CPUs and GPUs of each node that is alive."""
    return [
        {kind: float(node["Resources"].get(kind, 0)) for kind in ("CPU", "GPU")}
        for node in ray.nodes()
        if node["Alive"]
    ]


def driver_placement(bundle: Mapping[str, float]) -> Any:
    """Return the scheduling strategy that places the server on the driver's node.

    If the server's bundle does not fit on that node, for example for lack of a GPU, Ray chooses
    another one.
    """
    if not _fits_driver(bundle):
        return "DEFAULT"
    node_id = ray.get_runtime_context().get_node_id()
    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def _fits_driver(bundle: Mapping[str, float]) -> bool:
    resources = _driver_resources()
    return all(resources.get(kind, 0.0) >= share for kind, share in bundle.items())


def _driver_resources() -> dict[str, float]:
    node_id = ray.get_runtime_context().get_node_id()
    return next(dict(node["Resources"]) for node in ray.nodes() if node["NodeID"] == node_id)


def is_shared() -> bool:
    """Return True if FEDRAY_RESULTS names a folder; all nodes are then assumed to share it."""
    return bool(os.environ.get("FEDRAY_RESULTS"))


def drivers_node() -> str | None:
    """Return the resource that binds a trial to the driver's node, where results are written.

    None if all nodes share the results folder, or if there is only one node.
    """
    if is_shared() or len(nodes()) == 1:
        return None
    names = [name for name in _driver_resources() if name.startswith("node:")]
    return next(name for name in names if name != "node:__internal_head__")


def check_storage(folder: Path, count: int, server: Mapping[str, float] | None = None) -> None:
    """Refuse to write results to the local disk of a node other than the driver's.

    Args:
        folder: the results folder.
        count: the number of nodes.
        server: the bundle of the server that writes the results; None if any node may write them.

    Raises:
        UserError: if the cluster has several nodes, FEDRAY_RESULTS names no shared folder, and the
            server does not fit on the driver's node.
    """
    if count > 1 and not is_shared() and (server is None or not _fits_driver(server)):
        raise UserError(
            f"the cluster has {count} nodes and results would go to {folder}, one node's own disk; "
            "set FEDRAY_RESULTS to a folder that all nodes share, for example /shared/results"
        )
