"""Joins the Ray cluster that is there, or starts a local one."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import ray

from fedray.command import sigterm_kept
from fedray.errors import FedrayError, UserError

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}


def connect(num_cpus: int | None = None, num_gpus: int | None = None) -> list[dict[str, float]]:
    """Connect to Ray: $RAY_ADDRESS or the job's cluster when there is one, else a local Ray.

    Args:
        num_cpus: CPUs that a local Ray offers; None counts them.
        num_gpus: GPUs that a local Ray offers (pretended ones in tests); None counts them.

    Returns:
        Each alive node's resources.

    Raises:
        UserError: when $RAY_ADDRESS is set and no cluster answers there.
        FedrayError: when a local Ray does not start.
    """
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    if not ray.is_initialized():
        joins = bool(os.environ.get("RAY_ADDRESS"))
        local = {} if joins else {"num_cpus": num_cpus, "num_gpus": num_gpus}
        try:
            with sigterm_kept():
                ray.init(
                    log_to_driver=False,
                    include_dashboard=False if not joins else None,
                    logging_level=logging.ERROR,
                    configure_logging=False,
                    **local,
                )
        except ConnectionError as error:
            address = os.environ.get("RAY_ADDRESS")
            raise UserError(
                f"no Ray cluster answers at RAY_ADDRESS={address} ({error}); start one, "
                "or unset RAY_ADDRESS to use this machine"
            ) from None
        except Exception as error:  # Ray has no class of its own for a start that fails
            if joins:
                raise
            cause = str(error).strip().partition("\n")[0] or type(error).__name__
            raise FedrayError(
                f"Ray cannot start on this machine ({cause}); try again when it is less busy, or "
                "run with --executor serial"
            ) from error
    return nodes()


def nodes() -> list[dict[str, float]]:
    """Each alive node's CPU and GPU."""
    return [
        {kind: float(node["Resources"].get(kind, 0)) for kind in ("CPU", "GPU")}
        for node in ray.nodes()
        if node["Alive"]
    ]


def check_storage(folder: Path, count: int) -> None:
    """Refuse results on one node's own disk when there are several nodes.

    Raises:
        UserError: when FEDRAY_RESULTS is unset on a cluster of several nodes.
    """
    if count > 1 and not os.environ.get("FEDRAY_RESULTS"):
        raise UserError(
            f"the cluster has {count} nodes and results would go to {folder}, one node's own disk; "
            "set FEDRAY_RESULTS to a folder that all nodes share, for example /shared/results"
        )
