"""Poisoned replies: one client's reply is wrong, in one process and on Ray with two workers.

With `faults.on_client_error=stop` the run must end in one sentence with client, round and step;
with `drop`, everything else must be as in a run in which this client was absent.
"""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import torch

from benchmarks.faults.poisons import HARMLESS, POISONS, Poison
from benchmarks.faults.tally import Tally
from fedray.core import LocalTraining, algorithms
from fedray.core.state import leaves
from fedray.errors import ClientError
from fedray.federation import Executor, Federation
from fedray.runtime import pool as pools
from fedray.runtime import worker
from fedray.runtime.assembly import Assembly
from fedray.runtime.ray_executor import RayExecutor
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor

VICTIM, ROUND = 1, 2
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
KEYS: Mapping[str, Mapping[str, Any]] = {
    "fedtsp": {"algorithm.prompt_length": 0, "model.feature_dim": 384}
}
"""What a method needs besides."""
CPU = torch.device("cpu")


def register() -> None:
    """Make this process know the poisoned methods; their `poison` says what is wrong."""
    for name, poisons in POISONS.items():
        if f"poisoned_{name}" not in algorithms.names():
            algorithms.add(_poisoned(algorithms.get(name), {**poisons, **HARMLESS}))


def _poisoned(base: type[Any], poisons: Mapping[str, Poison]) -> type[Any]:
    class Poisoned(base):  # type: ignore[misc]
        """A method with one client whose reply is wrong."""

        name = f"poisoned_{base.name}"

        class HParams(base.HParams):  # type: ignore[misc]
            """With the name of what is wrong; "" for nothing."""

            poison: str = ""

        def finish(self, local: Any, trained: Any) -> Any:
            """The honest reply, or another."""
            up, after = super().finish(local, trained)
            client = local.client
            if not self.hp.poison or (client.id, client.round) != (VICTIM, ROUND):
                return up, after
            return poisons[self.hp.poison](client, up, after)

    assert issubclass(base, LocalTraining)
    Poisoned.finish.__annotations__["return"] = get_type_hints(base.finish)["return"]
    return Poisoned


class Worker(worker.Worker):
    """A worker whose process knows the poisoned methods."""

    def __init__(self, *args: Any) -> None:
        register()
        super().__init__(*args)


@dataclass(frozen=True)
class Outcome:
    """What a run gave: every tensor by place, the numbers, and what happened."""

    tensors: Mapping[str, torch.Tensor]
    numbers: Mapping[str, Any]
    events: tuple[tuple[int, str], ...]

    def differs_from(self, other: Outcome) -> str:
        """Where; "" for nowhere."""
        if self.numbers != other.numbers:
            return "other numbers"
        if self.tensors.keys() != other.tensors.keys():
            return f"other tensors: {sorted(self.tensors.keys() ^ other.tensors.keys())[:3]}"
        pairs = ((name, tensor, other.tensors[name]) for name, tensor in self.tensors.items())
        return next((f"{name} differs" for name, a, b in pairs if not torch.equal(a, b)), "")


MakeExecutor = Callable[[Assembly], Executor]


def outcome(
    method: str, poison: str, policy: str, make: MakeExecutor, *, absent: bool = False
) -> Outcome:
    """Run a poisoned method; see `outcome_of`."""
    return outcome_of(_assembly(method, poison, policy), make, absent=absent)


def outcome_of(assembly: Assembly, make: MakeExecutor, *, absent: bool = False) -> Outcome:
    """Run; with `absent` the victim takes no part in the round of its poison."""
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
        **{str(c): {"model": s.model, "memory": s.memory} for c, s in executor.export(everyone)},
    }
    events = tuple((event.client, event.what) for event in last.events)
    executor.close()
    tensors = {"/".join(path): tensor for path, tensor in leaves(tree)}
    return Outcome(tensors, {**last.metrics, "per_client": last.per_client}, events)


def _assembly(method: str, poison: str, policy: str) -> Assembly:
    keys = {
        "algorithm": {"name": f"poisoned_{method}", "poison": poison},
        "faults.on_client_error": policy,
        **KEYS.get(method, {}),
    }
    return Assembly(from_tree(dict(TREE), keys.items()), _data())


@cache
def _data() -> Any:
    return Assembly(from_tree(dict(TREE), {"algorithm": "local"}.items())).data


def serial(assembly: Assembly) -> Executor:
    """Clients in this process."""
    return SerialExecutor(assembly, CPU)


@contextmanager
def on_two_workers() -> Iterator[MakeExecutor]:
    """Clients on two workers of a Ray of its own, or of the one that is there."""
    import ray

    from fedray.runtime.cluster import connect

    started, before = not ray.is_initialized(), os.environ.get("PYTHONPATH")
    # What the workers' class is imported from, and this package.
    homes = [Path(inspect.getfile(Worker)).parent, Path(__file__).parents[2]]
    os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, homes), *filter(None, [before])])
    if started:
        connect(num_cpus=2)
    honest, pools.Worker = pools.Worker, Worker  # type: ignore[misc]
    pool = pools.WorkerPool(from_tree(dict(TREE), ()))
    try:
        yield lambda assembly: RayExecutor(assembly, pool)
    finally:
        pool.close()
        pools.Worker = honest  # type: ignore[misc]
        os.environ.pop("PYTHONPATH")
        os.environ |= {} if before is None else {"PYTHONPATH": before}
        if started:
            ray.shutdown()


@cache
def reference(method: str, *, absent: bool) -> Outcome:
    """The run without the victim in that round, or with its honest reply; serial."""
    return outcome(method, "", "stop", serial, absent=absent)


def judge(method: str, poison: str, policy: str, make: MakeExecutor) -> str:
    """Run with a poison; say what is wrong with what comes of it, "" for nothing."""
    harmless = poison in HARMLESS
    try:
        found = outcome(method, poison, policy, make)
    except ClientError as error:
        text = str(error)
        if harmless or policy == "drop":
            return f"refused: {text}"
        right = text.startswith(f"client {VICTIM}, round {ROUND}, step client_update: ")
        return "" if right and "\n" not in text else f"another message: {text}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    if harmless:
        return found.differs_from(reference(method, absent=False))
    if policy == "stop":
        return "the run went on"
    if [client for client, what in found.events if what.startswith("failed: ")] != [VICTIM]:
        return f"other events: {found.events}"
    return found.differs_from(reference(method, absent=True))


def cases() -> list[tuple[str, str, str]]:
    """Every method, poison and policy."""
    found = [(method, poison) for method, poisons in POISONS.items() for poison in poisons]
    found += [("fedavg", poison) for poison in HARMLESS]
    return [(*case, policy) for case in found for policy in ("stop", "drop")]


def run(count: int, seed: int, folder: Path) -> Tally:
    """Poison `count` replies, or all kinds there are, half in this process and half on Ray."""
    register()
    tally = Tally()
    chosen = random.Random(seed).sample(cases(), min(len(cases()), -(-count // 2)))
    with on_two_workers() as on_ray:
        for name, make in (("serial", serial), ("ray", on_ray)):
            for method, poison, policy in chosen:
                wrong = judge(method, poison, policy, make)
                if wrong:
                    tally.add_wrong(f"{method}, {poison}", f"{policy}, {name}: {wrong}")
                else:
                    tally.add(f"{method}, {poison.split(':')[0]}", f"{policy}, {name}: as it must")
    return tally
