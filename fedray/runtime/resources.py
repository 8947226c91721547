"""Compute the resources of one run or trial, and check that the cluster has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from fedray.config import Experiment
from fedray.errors import UserError

Bundle = dict[str, float]
NODE_SHARE = 0.001
"""Share of a node's unique resource that binds a bundle to the node; a node has room for 1000."""


def worker_bundles(experiment: Experiment) -> list[Bundle]:
    """Return the bundle of each worker, computed from `workers`, `cpus` and `gpus`."""
    cpus = experiment.cpus if experiment.cpus is not None else float(experiment.workers)
    bundle: Bundle = {"CPU": _floor(cpus / experiment.workers)}
    gpus = (experiment.gpus - experiment.server_gpus) / experiment.workers
    if gpus > 0:
        bundle["GPU"] = _floor(gpus)
    return [dict(bundle) for _ in range(experiment.workers)]


def server_bundle(experiment: Experiment) -> Bundle:
    """Return the server's bundle; it is empty if nothing is reserved for the server."""
    return {"GPU": experiment.server_gpus} if experiment.server_gpus > 0 else {}


def trial_bundles(experiment: Experiment, node: str | None = None) -> list[Bundle]:
    """Return all bundles of one run: the server's, even if empty, then the workers'.

    Args:
        experiment: the run.
        node: the resource of the node that must host the server, such as "node:10.0.0.1".
    """
    placement = {} if node is None else {node: NODE_SHARE}
    return [{**server_bundle(experiment), **placement}, *worker_bundles(experiment)]


def preflight(experiment: Experiment, nodes: Sequence[Mapping[str, float]]) -> str:
    """Check that one run fits the cluster; return one line about its demand.

    Raises:
        UserError: if the run can never be scheduled; names the numbers and the key to change.
    """
    bundles = [bundle for bundle in trial_bundles(experiment) if bundle]
    available = {kind: sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU")}
    needed = {kind: sum(bundle.get(kind, 0) for bundle in bundles) for kind in ("CPU", "GPU")}
    demand = f"{experiment.workers} workers need {needed['CPU']:.4g} CPU, {needed['GPU']:.4g} GPU"
    total = f"{available['CPU']:.4g} CPU, {available['GPU']:.4g} GPU"
    supply = f"the cluster has {total} on {len(nodes)} node(s)"
    if needed["GPU"] > available["GPU"] + 1e-6:
        fix = "set gpus=0" if available["GPU"] == 0 else f"set gpus={available['GPU']:g} or less"
        raise UserError(f"{demand}, but {supply}; {fix}")
    if needed["CPU"] > available["CPU"] + 1e-6:
        cpus = available["CPU"]
        fix = f"set cpus={cpus:g} to let the workers share them"
        if experiment.cpus is None and cpus >= 1:
            fix += f", or workers={int(cpus)}"
        raise UserError(f"{demand}, but {supply}; {fix}")
    fit = at_a_time(experiment, nodes)
    if fit == 0:
        largest = max(bundles, key=lambda bundle: (bundle.get("GPU", 0), bundle.get("CPU", 0)))
        raise UserError(
            f"{demand} in bundles of {_describe(largest)}, which do not fit onto the nodes "
            f"({'; '.join(_describe(node) for node in nodes)}); set workers to a multiple of gpus, "
            "or change gpus or server_gpus"
        )
    return f"{demand}; {supply}; {fit} run(s) at a time"


def at_a_time(experiment: Experiment, nodes: Sequence[Mapping[str, float]]) -> int:
    """Return how many such runs fit onto the nodes at a time (first fit, largest bundle first).

    A GPU share below 1 uses one GPU; a larger share uses whole GPUs of one node.
    """
    free = [[node.get("CPU", 0.0), *[1.0] * int(node.get("GPU", 0))] for node in nodes]
    ordered = sorted(
        (bundle for bundle in trial_bundles(experiment) if bundle),
        key=lambda bundle: (bundle.get("GPU", 0), bundle.get("CPU", 0)),
        reverse=True,
    )
    count = 0
    while count < 10_000 and all(_place(bundle, free) for bundle in ordered):
        count += 1
    return count


def _place(bundle: Bundle, free: list[list[float]]) -> bool:
    """Reserve a bundle on the first node with room; `free` lists a node's CPUs, then its GPUs."""
    cpus, gpus = bundle.get("CPU", 0.0), bundle.get("GPU", 0.0)
    share, number = min(gpus, 1.0), ceil(gpus)
    if gpus > 1 and gpus != number:
        return False
    for node in free:
        fitting = [i for i, free_share in enumerate(node) if i > 0 and free_share + 1e-6 >= share][
            :number
        ]
        if node[0] + 1e-6 >= cpus and len(fitting) == number:
            node[0] -= cpus
            for i in fitting:
                node[i] -= share
            return True
    return False


def _describe(resources: Mapping[str, float]) -> str:
    parts = [f"{resources[k]:.4g} {k}" for k in ("CPU", "GPU") if resources.get(k)]
    return ", ".join(parts) or "nothing"


def _floor(share: float) -> float:
    """Round down to ten-thousandths, the unit of Ray's resources."""
    return int(share * 10_000 + 1e-6) / 10_000
