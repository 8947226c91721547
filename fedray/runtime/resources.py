"""What one run or trial asks of the cluster, and whether the cluster has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedray.config import Experiment
from fedray.errors import UserError

Bundle = dict[str, float]
A_TRACE = 0.001
"""So much of a node's own resource: a thousand find room, and none elsewhere."""


def worker_bundles(experiment: Experiment) -> list[Bundle]:
    """One bundle per worker; the shares follow from `workers`, `cpus` and `gpus`."""
    cpus = experiment.cpus if experiment.cpus is not None else float(experiment.workers)
    bundle: Bundle = {"CPU": _floor(cpus / experiment.workers)}
    gpus = (experiment.gpus - experiment.server_gpus) / experiment.workers
    if gpus > 0:
        bundle["GPU"] = _floor(gpus)
    return [dict(bundle) for _ in range(experiment.workers)]


def server_bundle(experiment: Experiment) -> Bundle:
    """The server's own bundle; empty when nothing is reserved for it."""
    bundle: Bundle = {}
    if experiment.server_cpus > 0:
        bundle["CPU"] = experiment.server_cpus
    if experiment.server_gpus > 0:
        bundle["GPU"] = experiment.server_gpus
    return bundle


def trial_bundles(experiment: Experiment, node: str | None = None) -> list[Bundle]:
    """All bundles of one run: the server's first, even if empty, then the workers'.

    Args:
        experiment: the run.
        node: the resource of the node where the server must be, as "node:10.0.0.1".
    """
    place = {} if node is None else {node: A_TRACE}
    return [{**server_bundle(experiment), **place}, *worker_bundles(experiment)]


def first_worker_bundle(experiment: Experiment, bundles: int) -> int:
    """The index of the first worker's bundle; Ray Tune leaves an empty first bundle out.

    Args:
        experiment: the run.
        bundles: how many the placement group has.
    """
    return bundles - experiment.workers


def preflight(experiment: Experiment, nodes: Sequence[Mapping[str, float]]) -> str:
    """Check that one run fits the cluster, and say in one line what it asks for.

    Args:
        experiment: the run.
        nodes: for each node, its resources, {"CPU": 2, "GPU": 1}.

    Returns:
        "asks for ...; the cluster has ...; N at a time".

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
    fit = _how_many_fit(bundles, nodes)
    if fit == 0:
        largest = max(bundles, key=lambda bundle: (bundle.get("GPU", 0), bundle.get("CPU", 0)))
        raise UserError(
            f"{asked} in shares of {_words(largest)}, which do not pack onto the nodes "
            f"({'; '.join(_words(node) for node in nodes)}); set workers to a multiple of gpus, "
            "or change gpus or server_gpus"
        )
    return f"{asked}; {there}; {fit} run(s) at a time"


def at_a_time(experiment: Experiment, nodes: Sequence[Mapping[str, float]]) -> int:
    """How many such runs the nodes hold side by side."""
    return _how_many_fit([bundle for bundle in trial_bundles(experiment) if bundle], nodes)


def _how_many_fit(bundles: Sequence[Bundle], nodes: Sequence[Mapping[str, float]]) -> int:
    """How many copies of all bundles pack, each GPU share within one GPU; first fit, largest first.

    A share below 1 stays on one GPU; a larger one takes whole GPUs.
    """
    free = [
        {"CPU": node.get("CPU", 0.0), "GPUs": [1.0] * int(node.get("GPU", 0))} for node in nodes
    ]
    ordered = sorted(bundles, key=lambda b: (b.get("GPU", 0), b.get("CPU", 0)), reverse=True)
    count = 0
    while count < 10_000 and all(_place(bundle, free) for bundle in ordered):
        count += 1
    return count


def _place(bundle: Bundle, free: list[dict[str, object]]) -> bool:
    for node in free:
        cpu = node["CPU"]
        gpus = node["GPUs"]
        assert isinstance(cpu, float | int)
        assert isinstance(gpus, list)
        if cpu + 1e-6 < bundle.get("CPU", 0):
            continue
        share = bundle.get("GPU", 0.0)
        if 0 < share < 1:
            fitting = [i for i, left in enumerate(gpus) if left + 1e-6 >= share]
            if not fitting:
                continue
            gpus[fitting[0]] -= share
        elif share >= 1:
            whole = [i for i, left in enumerate(gpus) if left >= 1 - 1e-6]
            if share != int(share) or len(whole) < share:
                continue
            for i in whole[: int(share)]:
                gpus[i] = 0.0
        node["CPU"] = cpu - bundle.get("CPU", 0)
        return True
    return False


def _words(resources: Mapping[str, float]) -> str:
    parts = [f"{resources[k]:.4g} {k}" for k in ("CPU", "GPU") if resources.get(k)]
    return ", ".join(parts) or "nothing"


def _floor(share: float) -> float:
    """Ray counts in ten-thousandths; rounding up would not fit."""
    return int(share * 10_000 + 1e-6) / 10_000
