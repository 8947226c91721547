"""Joins the Ray cluster that is there, or starts a local one."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedray.command import sigterm_kept
from fedray.errors import FedrayError, UserError
from fedray.files import results_uri
from fedray.runtime.devices import accelerator, count
from fedray.runtime.local_ray import (
    OPEN,
    few_processes,
    guard_token,
    is_loopback,
    loopback_kept,
    other_cluster,
    private_folder,
)

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_enable_metrics_collection": "0",  # a port that answers without the token
}

FEW_CPUS = 8
"""Ray starts as many processes as there are CPUs, before anybody asks for one."""


def connect(num_cpus: int | None = None, num_gpus: int | None = None) -> list[dict[str, float]]:
    """Connect to Ray: $RAY_ADDRESS or the job's cluster when there is one, else a local Ray.

    A cluster that RAY_ADDRESS does not name is mentioned, never joined. A local Ray listens on the
    loopback address alone and, unless RAY_AUTH_MODE says otherwise, answers only who has the token.

    Args:
        num_cpus: CPUs that a local Ray offers; None counts them.
        num_gpus: GPUs that a local Ray offers (pretended ones in tests); None counts them, those
            too that torch knows and Ray does not look for.

    Returns:
        Each alive node's resources.

    Raises:
        UserError: when $RAY_ADDRESS is set and no cluster answers there, or when the token or the
            folder of a local Ray cannot be kept from others.
        FedrayError: when a local Ray does not start.
    """
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS", "")
        if not address and (found := other_cluster()) is not None:
            print(f"a Ray cluster answers at {found}: set RAY_ADDRESS=auto to use it")
        if address in ("", "local"):
            _start(num_cpus, _apple_or_intel() if num_gpus is None else num_gpus)
        else:
            _join(address)
    return nodes()


def _preload() -> None:
    """Have the processes that a local Ray starts anyway import what steps need, while they wait.

    Only where there are few: each takes some hundred megabytes.
    """
    if (os.cpu_count() or 1) <= FEW_CPUS:
        os.environ.setdefault("RAY_preload_python_modules", "fedray.runtime.server")


def _apple_or_intel() -> int | None:
    """How many devices to tell Ray of; None lets it count NVIDIA's and AMD's itself."""
    return count() if accelerator() in ("xpu", "mps") else None


def _start(num_cpus: int | None, num_gpus: int | None) -> None:
    """A Ray of our own, for this process."""
    guard_token()
    folder = private_folder()
    _preload()
    try:
        with sigterm_kept(), loopback_kept(), few_processes():
            ray.init(
                address="local",  # else Ray joins whatever was last started here, alive or not
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                _temp_dir=str(folder / "r"),
            )
    except Exception as error:  # Ray has no class of its own for a start that fails
        cause = str(error).strip().partition("\n")[0] or type(error).__name__
        raise FedrayError(
            f"Ray cannot start on this machine ({cause}); try again when it is less busy; a "
            "single run goes without Ray, too: --executor serial"
        ) from error
    if not (is_loopback(ray.util.get_node_ip_address()) or os.environ.get(OPEN)):
        print("warning: this Ray can be reached from the network", file=sys.stderr)


def _join(address: str) -> None:
    """The cluster at an address; 127.0.0.1 is this machine's loopback address there, too."""
    try:
        with sigterm_kept(), loopback_kept() if is_loopback(address) else nullcontext():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except ConnectionError as error:
        raise UserError(
            f"no Ray cluster answers at RAY_ADDRESS={address} ({error}); start one, "
            "or unset RAY_ADDRESS to use this machine"
        ) from None


def nodes() -> list[dict[str, float]]:
    """Each alive node's CPU and GPU."""
    return [
        {kind: float(node["Resources"].get(kind, 0)) for kind in ("CPU", "GPU")}
        for node in ray.nodes()
        if node["Alive"]
    ]


def with_driver(bundle: Mapping[str, float]) -> Any:
    """Where to place the server: on the driver's node, so that results are where the user is.

    Elsewhere only where that node never has what the server asks for, as a head without GPUs.

    Args:
        bundle: what it asks for.

    Returns:
        A scheduling strategy of Ray's.
    """
    if not _fits_here(bundle):
        return "DEFAULT"
    here = ray.get_runtime_context().get_node_id()
    return NodeAffinitySchedulingStrategy(here, soft=False)


def _fits_here(bundle: Mapping[str, float]) -> bool:
    has = _here()
    return all(has.get(kind, 0.0) >= share for kind, share in bundle.items())


def _here() -> dict[str, float]:
    """The resources of this node."""
    here = ray.get_runtime_context().get_node_id()
    return next(dict(node["Resources"]) for node in ray.nodes() if node["NodeID"] == here)


def is_shared() -> bool:
    """Whether FEDRAY_RESULTS names a folder, which all nodes then share."""
    return bool(os.environ.get("FEDRAY_RESULTS")) and results_uri() is None


def drivers_node() -> str | None:
    """The resource that only the driver's node has, where results must be written there.

    None where all nodes share the folder of results, or there is one node alone.
    """
    if is_shared() or len(nodes()) == 1:
        return None
    names = [name for name in _here() if name.startswith("node:")]
    return next(name for name in names if name != "node:__internal_head__")


def check_storage(folder: Path, count: int, server: Mapping[str, float] | None = None) -> None:
    """Refuse results on a node's own disk that is not the driver's.

    Args:
        folder: where results go.
        count: how many nodes there are.
        server: what a server that writes them asks for; None where any node may write them.

    Raises:
        UserError: when FEDRAY_RESULTS names no shared folder on a cluster of several nodes, and
            the server does not fit on the driver's.
    """
    if count > 1 and not is_shared() and (server is None or not _fits_here(server)):
        raise UserError(
            f"the cluster has {count} nodes and results would go to {folder}, one node's own disk; "
            "set FEDRAY_RESULTS to a folder that all nodes share, for example /shared/results"
        )
