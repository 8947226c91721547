"""Compute the resources of one run or trial, and compare them with those of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedray.base.errors import UserError
from fedray.config import Experiment

Bundle = dict[str, float]


def worker_bundles(experiment: Experiment) -> list[Bundle]:
    """Return the bundle of each worker, computed from `workers`, `cpus` and `gpus`."""
    cpus = experiment.cpus if experiment.cpus is not None else float(experiment.workers)
    bundle: Bundle = {"CPU": _floor(cpus / experiment.workers)}
    gpus = (experiment.gpus - experiment.server_gpus) / experiment.workers
    if gpus > 0:
        bundle["GPU"] = _floor(gpus)
    return [dict(bundle) for _ in range(experiment.workers)]


def trial_bundles(experiment: Experiment) -> list[Bundle]:
    """Return all bundles of one run: the server's, which may be empty, then the workers'."""
    server = {"GPU": experiment.server_gpus} if experiment.server_gpus > 0 else {}
    return [server, *worker_bundles(experiment)]


def preflight(experiment: Experiment, nodes: Sequence[Mapping[str, float]]) -> str:
    """Return one line about a run's demand, for which Ray would otherwise wait without a word.

    Raises:
        UserError: if the run does not fit onto the nodes.
    """
    (server, worker, *_), count = trial_bundles(experiment), experiment.workers
    needed = _text(worker["CPU"] * count, worker.get("GPU", 0) * count + server.get("GPU", 0))
    demand = f"{count} workers need {needed}"
    total = _text(*(sum(node[kind] for node in nodes) for kind in ("CPU", "GPU")))
    supply = f"the cluster has {total} on {len(nodes)} node(s)"
    fit = at_a_time(experiment, nodes)
    if not fit:
        each = _text(worker["CPU"], worker.get("GPU", 0))
        raise UserError(f"{demand} ({each} each), but {supply}; lower workers, cpus or gpus")
    return f"{demand}; {supply}; {fit} run(s) at a time"


def at_a_time(experiment: Experiment, nodes: Sequence[Mapping[str, float]]) -> int:
    """Return how many such runs the nodes have room for at a time."""
    (worker, *_), gpus = worker_bundles(experiment), sum(node["GPU"] for node in nodes)
    fit = sum(_room(worker, node) for node in nodes) // experiment.workers
    return min(fit, int(gpus / experiment.gpus + 1e-6)) if experiment.gpus else fit


def _room(bundle: Bundle, node: Mapping[str, float]) -> int:
    """Return how many such workers a node has room for.

    A GPU share below 1 uses one GPU; a larger one uses whole GPUs.
    """
    share = bundle.get("GPU", 0)
    rooms = [node["CPU"] / bundle["CPU"] if bundle["CPU"] else 10_000]
    if 0 < share <= 1:
        rooms.append(node["GPU"] * int(1 / share + 1e-6))
    elif share:
        rooms.append(node["GPU"] // share if share == int(share) else 0)
    return int(min(rooms) + 1e-6)


def _text(cpus: float, gpus: float) -> str:
    return f"{cpus:.4g} CPU, {gpus:.4g} GPU"


def _floor(share: float) -> float:
    """Round down to ten-thousandths, the unit of Ray's resources."""
    return int(share * 10_000 + 1e-6) / 10_000
