"""Compute the resources of one run or trial, and check that the cluster has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from fedray.config import Experiment
from fedray.errors import UserError

Bundle = dict[str, float]
A_TRACE = 0.001
"""The share of a node's own resource that binds a bundle to the node; a thousand fit."""


def worker_bundles(experiment: Experiment) -> list[Bundle]:
    """Return a bundle per worker; the shares follow from `workers`, `cpus` and `gpus`."""
    cpus = experiment.cpus if experiment.cpus is not None else float(experiment.workers)
    bundle: Bundle = {"CPU": _floor(cpus / experiment.workers)}
    gpus = (experiment.gpus - experiment.server_gpus) / experiment.workers
    if gpus > 0:
        bundle["GPU"] = _floor(gpus)
    return [dict(bundle) for _ in range(experiment.workers)]


def server_bundle(experiment: Experiment) -> Bundle:
    """Return the server's bundle; empty when nothing is reserved for it."""
    shares = {"CPU": experiment.server_cpus, "GPU": experiment.server_gpus}
    return {kind: share for kind, share in shares.items() if share > 0}


def trial_bundles(experiment: Experiment, node: str | None = None) -> list[Bundle]:
    """Return all bundles of one run: the server's, even if empty, then the workers'.

    Args:
        experiment: the run.
        node: the resource of the node where the server must be, as "node:10.0.0.1".
    """
    place = {} if node is None else {node: A_TRACE}
    return [{**server_bundle(experiment), **place}, *worker_bundles(experiment)]


def preflight(experiment: Experiment, nodes: Sequence[Mapping[str, float]]) -> str:
    """Check that one run fits the cluster; return one line about what it asks for.

    Raises:
        UserError: when it can never be scheduled, with the numbers and the key to change.
    """
    bundles = [bundle for bundle in trial_bundles(experiment) if bundle]
    has = {kind: sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU")}
    asks = {kind: sum(bundle.get(kind, 0) for bundle in bundles) for kind in ("CPU", "GPU")}
    asked = f"{experiment.workers} workers ask for {asks['CPU']:.4g} CPU, {asks['GPU']:.4g} GPU"
    there = f"the cluster has {has['CPU']:.4g} CPU, {has['GPU']:.4g} GPU on {len(nodes)} node(s)"
    if asks["GPU"] > has["GPU"] + 1e-6:
        fix = "set gpus=0" if has["GPU"] == 0 else f"set gpus={has['GPU']:g} or less"
        raise UserError(f"{asked}, but {there}; {fix}")
    if asks["CPU"] > has["CPU"] + 1e-6:
        left = has["CPU"] - experiment.server_cpus
        fix = f"set cpus={left:g} to let the workers share them"
        if experiment.cpus is None and left >= 1:
            fix += f", or workers={int(left)}"
        raise UserError(f"{asked}, but {there}; {fix if left > 0 else 'lower server_cpus'}")
    fit = at_a_time(experiment, nodes)
    if fit == 0:
        largest = max(bundles, key=lambda bundle: (bundle.get("GPU", 0), bundle.get("CPU", 0)))
        raise UserError(
            f"{asked} in shares of {_words(largest)}, which do not pack onto the nodes "
            f"({'; '.join(_words(node) for node in nodes)}); set workers to a multiple of gpus, "
            "or change gpus or server_gpus"
        )
    return f"{asked}; {there}; {fit} run(s) at a time"


def at_a_time(experiment: Experiment, nodes: Sequence[Mapping[str, float]]) -> int:
    """Return how many such runs fit the nodes at a time: first fit, the largest bundle first.

    A GPU share below 1 stays on one GPU; a larger one takes whole GPUs of one node.
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
    """Take a bundle from the first node that has it: CPUs first, then what is left of each GPU."""
    cpus, gpus = bundle.get("CPU", 0.0), bundle.get("GPU", 0.0)
    share, number = min(gpus, 1.0), ceil(gpus)
    if gpus > 1 and gpus != number:
        return False
    for node in free:
        fitting = [i for i, left in enumerate(node) if i > 0 and left + 1e-6 >= share][:number]
        if node[0] + 1e-6 >= cpus and len(fitting) == number:
            node[0] -= cpus
            for i in fitting:
                node[i] -= share
            return True
    return False


def _words(resources: Mapping[str, float]) -> str:
    parts = [f"{resources[k]:.4g} {k}" for k in ("CPU", "GPU") if resources.get(k)]
    return ", ".join(parts) or "nothing"


def _floor(share: float) -> float:
    """Round down to ten-thousandths, in which Ray counts."""
    return int(share * 10_000 + 1e-6) / 10_000
