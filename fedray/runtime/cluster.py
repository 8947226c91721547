"""Connect to a Ray cluster or start a local Ray, and decide where the server runs."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedray.command import signals_deferred
from fedray.errors import FedrayError, UserError
from fedray.processors import allowed_cpus
from fedray.runtime.address import check_address
from fedray.runtime.local_ray import (
    OPEN,
    few_processes,
    guard_token,
    is_loopback,
    keep_loopback,
    other_cluster,
    private_folder,
    quiet_about_tokens,
    shorten_notices,
)

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # keep relative paths valid in trials
    "RAY_enable_metrics_collection": "0",  # it opens a port that needs no token
}

IN_A_TRIAL = ("fedray.studies.tune", "fedray.runtime.server")
"""Modules that idle processes of a local Ray import early; a single run needs the last alone."""
FEW_CPUS = 8
"""With at most this many CPUs, Ray's idle processes (one per CPU) import what steps need."""


def connect(
    num_cpus: int | None = None, num_gpus: int | None = None, *, trials: bool = False
) -> list[dict[str, float]]:
    """Connect to the cluster at $RAY_ADDRESS, or start a local Ray; return each node's resources.

    A running cluster that RAY_ADDRESS does not name is reported but never joined. A local Ray
    listens on the loopback address only and requires a token, unless RAY_AUTH_MODE disables it.

    Args:
        num_cpus: CPUs that a local Ray offers; None counts them.
        num_gpus: GPUs that a local Ray offers (pretended ones in tests); None counts them.
        trials: whether a study's runs follow, most of which need one process each; idle processes
            of a local Ray then import Ray Tune, too.

    Raises:
        UserError: if $RAY_ADDRESS is set and no cluster can be joined there, or if the token or
            folder of a local Ray cannot be protected from other users.
        FedrayError: if a local Ray does not start.
    """
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    shorten_notices()
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS", "")
        if not address and (cluster := other_cluster()) is not None:
            print(f"a Ray cluster runs at {cluster}; set RAY_ADDRESS=auto to use it")
        if address in ("", "local"):
            _start(num_cpus, num_gpus, trials=trials)
        else:
            _join(address)
    return nodes()


def _start(num_cpus: int | None, num_gpus: int | None, *, trials: bool) -> None:
    """Start a local Ray for this process; see `connect`."""
    num_gpus = _other_gpus() if num_gpus is None else num_gpus
    guard_token()
    folder = private_folder()
    num_cpus = allowed_cpus() if num_cpus is None else num_cpus  # Ray does not see an affinity
    idle = num_cpus
    if allowed_cpus() <= FEW_CPUS:
        os.environ["FEDRAY_PRELOAD"] = ",".join(IN_A_TRIAL if trials else IN_A_TRIAL[-1:])
        os.environ.setdefault("RAY_preload_python_modules", "fedray.runtime.preload")
        idle += 0 if trials else 1  # a run's server
        os.environ.setdefault("RAY_num_workers_soft_limit", str(idle))  # else Ray ends one again
    atexit.register(ray.shutdown)  # before Ray's own handler, which sleeps first
    try:
        with signals_deferred(), keep_loopback(), few_processes(idle), quiet_about_tokens():
            start = partial(
                ray.init,
                address="local",  # otherwise Ray joins the last one started here, alive or not
                num_cpus=num_cpus,
                num_gpus=num_gpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                _temp_dir=str(folder / "r"),
            )
            _call_in_lasting_thread(start)
    except Exception as error:  # Ray has no error class for a failed start
        cause = str(error).strip().partition("\n")[0] or type(error).__name__
        raise FedrayError(
            f"Ray cannot start on this machine ({cause}); try again when it is less busy, or run a "
            "single experiment without Ray: --executor serial"
        ) from error
    if not (is_loopback(ray.util.get_node_ip_address()) or os.environ.get(OPEN)):
        print("warning: this Ray can be reached from the network", file=sys.stderr)


def _other_gpus() -> int | None:
    """Return the number of GPUs that Ray does not count, which are not NVIDIA's or AMD's, or None.

    PyTorch counts them; on Linux it is imported only if it is built for them.
    """
    if sys.platform == "linux" and "xpu" not in version("torch"):
        return None
    from fedray.runtime.devices import accelerator, count

    return count() if accelerator() in ("xpu", "mps") else None


def _call_in_lasting_thread(function: Callable[[], object]) -> None:
    """Call a function in a thread that lasts as long as the process.

    The kernel ends the processes of a local Ray with the thread that started them, such as a thread
    of a pool in which a study runs.
    """
    if threading.current_thread() is threading.main_thread():
        function()
        return
    called: Future[object] = Future()

    def call() -> None:
        try:
            called.set_result(function())
        except BaseException as error:
            called.set_exception(error)
        threading.Event().wait()

    threading.Thread(target=call, name="local Ray", daemon=True).start()
    called.result()


def _join(address: str) -> None:
    """Join the cluster at $RAY_ADDRESS; see `connect`."""
    at = check_address(address)
    try:
        loopback = keep_loopback() if is_loopback(at) else nullcontext()
        with signals_deferred(), loopback, quiet_about_tokens():
            ray.init(log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        cause = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(
            f"Ray cannot join the cluster at RAY_ADDRESS={address} ({cause}); see ray status on "
            "its machine, or unset RAY_ADDRESS to use this one"
        ) from None


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
