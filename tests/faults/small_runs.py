"""Small runs with one client that misbehaves, in one process and on Ray with two workers."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedray.federation import Executor, Federation
from fedray.runtime import pool as pools
from fedray.runtime import ray_executor
from fedray.runtime.assembly import Assembly
from fedray.runtime.ray_executor import RayExecutor
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor
from fedray.trees import leaves

VICTIM, ROUND = 1, 2
"""The client that misbehaves, and when."""
TREE: Mapping[str, Any] = {
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 16,
    "eval_every": 2,
    "workers": 2,
    "cpus": 1,
    "data": {"clients": 4, "samples": 240, "partition": {"name": "dirichlet", "alpha": 0.5}},
    "model": {"group": "mlp", "feature_dim": 16},
    "text": {"encoder": {"name": "random"}, "style": "handcrafted"},
}
CPU = torch.device("cpu")
MakeExecutor = Callable[[Assembly], Executor]
Worker = ray_executor.Worker
"""The class of workers on Ray; a test replaces it by one that knows the test's methods."""


@dataclass(frozen=True)
class Outcome:
    """The result of a run: all tensors by place, the metrics, and what happened to clients."""

    tensors: Mapping[str, torch.Tensor]
    numbers: Mapping[str, Any]
    events: tuple[tuple[int, str], ...]

    def differs_from(self, other: Outcome) -> str:
        """Say what differs; "" for nothing."""
        if self.numbers != other.numbers:
            return "other numbers"
        if self.tensors.keys() != other.tensors.keys():
            return f"other tensors: {sorted(self.tensors.keys() ^ other.tensors.keys())[:3]}"
        pairs = ((name, tensor, other.tensors[name]) for name, tensor in self.tensors.items())
        return next((f"{name} differs" for name, a, b in pairs if not torch.equal(a, b)), "")


def outcome_of(assembly: Assembly, make: MakeExecutor, *, absent: bool = False) -> Outcome:
    """Run; with `absent` the victim does not take part in `ROUND`."""
    executor = make(assembly)
    federation = Federation(
        assembly.algorithm,
        executor,
        assembly.gate,
        assembly.plan,
        assembly.server(CPU),
        assembly.streams,
    )
    everyone = range(assembly.plan.clients)
    if absent:
        others = [client for client in everyone if client != VICTIM]
        federation._cohort = lambda number: others if number == ROUND else everyone  # type: ignore[method-assign]
    *_, last = federation.rounds()
    tree = {
        "server": federation.snapshot.server,
        **{str(c): {"model": s.model, "memory": s.memory} for c, s in executor.states.items()},
    }
    events = tuple((event.client, event.what) for event in last.events)
    executor.close()
    tensors = {"/".join(path): tensor for path, tensor in leaves(tree)}
    return Outcome(tensors, {**last.metrics, "per_client": last.per_client}, events)


def serial(assembly: Assembly) -> Executor:
    """Run clients in this process."""
    return SerialExecutor(assembly, CPU)


@contextmanager
def on_two_workers() -> Iterator[MakeExecutor]:
    """Run clients on two workers, of the Ray of this process or of a new one."""
    import ray

    from fedray.runtime.cluster import connect

    is_new, before = not ray.is_initialized(), os.environ.get("PYTHONPATH")
    # The workers import the class of workers, this file and the package.
    homes = [Path(inspect.getfile(Worker)).parent, Path(__file__).parent, Path(__file__).parents[2]]
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, homes), *filter(None, [before])])
    if is_new:
        connect(num_cpus=2)
    original, pools.Worker = pools.Worker, Worker  # type: ignore[misc]
    pool = pools.WorkerPool(from_tree(dict(TREE), ()))
    try:
        yield lambda assembly: RayExecutor(assembly, pool)
    finally:
        pool.close()
        pools.Worker = original  # type: ignore[misc]
        os.environ.pop("PYTHONPATH")
        os.environ |= {} if before is None else {"PYTHONPATH": before}
        if is_new:
            ray.shutdown()
