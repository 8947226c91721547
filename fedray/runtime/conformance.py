"""The laws of a method, checked by running it: `fedray check`.

A method's steps are pure functions: (client, its state, download) -> (upload, new state), and
(server state, uploads) -> new state. Every law here runs one small experiment in a way that gives
the same numbers if the steps are pure, and reports the first number that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from ray import cloudpickle
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedray.checkpoint import CheckpointStore
from fedray.config import Experiment, Tree
from fedray.config.plugged import with_plugins
from fedray.core import (
    Algorithm,
    Client,
    ClientState,
    Downlinks,
    Payload,
    ServerState,
    algorithms,
)
from fedray.core.state import StateTree, leaves, map_tensors
from fedray.errors import FedrayError, one_line
from fedray.federation import Executor, Federation, Reply, RoundExchange, Snapshot
from fedray.models.clip import small_clip_folder
from fedray.plugins import use
from fedray.records import Round
from fedray.runtime import pretended_device
from fedray.runtime.assembly import Assembly
from fedray.runtime.clients import ClientRuntime
from fedray.runtime.cluster import connect
from fedray.runtime.isolation import Isolation
from fedray.runtime.pool import WorkerPool
from fedray.runtime.ray_executor import RayExecutor
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session

CPU = torch.device("cpu")
ROUNDING = 1e-4
"""Tolerance of two rounds on different devices, whose kernels round differently."""
SEEDS = (1, 2)
"""Of the global random generators, in the first and in the second run."""

SMALL: Tree = {
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 16,
    "lr": 0.05,
    "participation": 0.7,
    "data": {
        "source": "digits",
        "clients": 3,
        "samples": 120,
        "validation_fraction": 0.2,
        "evolution": {"phases": [{"round": 2, "partition": "iid"}]},
    },
    "model": {"group": "cnn3", "feature_dim": 16},
    "report": {"select": "test"},
}
"""Three clients, of which two take part in a round; all get other images before the last round."""
CHEAP: Mapping[str, int] = {
    "server_epochs": 1,
    "target_steps": 2,
    "inner_steps": 2,
    "length": 2,
    "cluster_rounds": 1,
}
"""Hyper-parameters that only cost time, and what they are set to in methods that have them."""


@dataclass(frozen=True)
class Verdict:
    """The result of checking one law.

    Attributes:
        law: its name.
        way: how the experiment was run, or what was looked at.
        difference: the first difference; "" if the law holds.
    """

    law: str
    way: str
    difference: str = ""


class Violation(FedrayError):
    """A law does not hold; the message is the first difference."""


# --- the experiment ------------------------------------------------------------------------------


def small_experiment(
    method: str, sets: Sequence[tuple[str, Any]] = (), plugins: Sequence[str] = ()
) -> Experiment:
    """Return an experiment of a second or less that uses every part of a method.

    Args:
        method: its name in the registry.
        sets: keys and values to set besides.
        plugins: files and modules that have the method or what it needs.

    Raises:
        UserError: when the method or a key is not there.
    """
    tree: dict[str, Any] = with_plugins(SMALL, (), plugins)
    wanted = algorithms.get(method)
    cheap = {key: value for key, value in CHEAP.items() if key in wanted.HParams.model_fields}
    tree = {**tree, "algorithm": {"name": method, **cheap}}
    if wanted.requires.prompts:
        tree["model"] = {"clip": "small"}
        tree["data"] = {**tree["data"], "image_size": 32, "samples": 60}
    if wanted.requires.text:
        encoder = {"name": "openclip", "path": str(small_clip_folder())}
        tree["text"] = {"encoder": encoder, "style": "handcrafted"}
        tree["model"] = {**tree["model"], "feature_dim": 256}
    if wanted.requires.head:
        tree["finetune_epochs"] = 1
    return from_tree(tree, sets)


# --- what a run leaves behind --------------------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """One round: all of its numbers by name.

    Attributes:
        round: its number.
        numbers: metrics, accuracies, sizes, and who took part.
        tensors: the server's and all clients' states, by place.
    """

    round: int
    numbers: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, done: Round, snapshot: Snapshot, clients: Mapping[int, ClientState]) -> Trace:
        """Copy what a round has measured, and what there is after it."""
        numbers: dict[str, Any] = {f"metric {name}": value for name, value in done.metrics.items()}
        numbers |= {f"accuracy of client {c}": value for c, value in done.per_client.items()}
        numbers |= {"uploads": done.up, "downloads": done.down, "events": list(done.events)}
        tree: dict[str, Any] = {"server": snapshot.server}
        for client, state in clients.items():
            tree[f"client {client}"] = {"model": state.model, "memory": state.memory}
        found = {"/".join(path): tensor.cpu().clone() for path, tensor in leaves(tree)}
        return cls(done.round, numbers, found)

    def difference(self, other: Trace, tolerance: float = 0.0) -> str:
        """Name the first number of this round that another run has otherwise; "" if none is.

        With a tolerance, which is relative and absolute, only states are compared: accuracies may
        change by an image.
        """
        where = f"round {self.round}: "
        for name in sorted({*self.tensors, *other.tensors}):
            mine, theirs = self.tensors.get(name), other.tensors.get(name)
            if mine is None or theirs is None:
                return f"{where}{name} is in one run only"
            if not _are_equal(mine, theirs, tolerance):
                return where + _tensor_difference(name, mine, theirs)
        for name in sorted({*self.numbers, *other.numbers}) if tolerance == 0 else ():
            mine, theirs = self.numbers.get(name), other.numbers.get(name)
            if mine != theirs and not (mine != mine and theirs != theirs):
                return f"{where}{name} is {mine}, then {theirs}"
        return ""


def _are_equal(one: Tensor, other: Tensor, tolerance: float) -> bool:
    if tolerance == 0 or one.shape != other.shape or one.dtype != other.dtype:
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance)


def _tensor_difference(name: str, one: Tensor, other: Tensor) -> str:
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{name} is {one.dtype} {list(one.shape)}, then {other.dtype} {list(other.shape)}"
    most = float((one.double() - other.double()).abs().max())
    return f"{name} differs by up to {most:.3g}"


def compare(one: Sequence[Trace], other: Sequence[Trace], tolerance: float = 0.0) -> None:
    """Compare two runs round by round.

    Raises:
        Violation: with the first difference.
    """
    for mine, theirs in zip(one, other, strict=True):
        difference = mine.difference(theirs, tolerance)
        if difference:
            raise Violation(difference)


# --- runs ----------------------------------------------------------------------------------------

MakeExecutor: TypeAlias = Callable[[Assembly], Executor]


def trace(
    assembly: Assembly, make_executor: MakeExecutor, device: torch.device = CPU
) -> list[Trace]:
    """Run an assembled experiment from its beginning to its end, the server on `device`."""
    return _traced(Federation(*_parts(assembly, make_executor(assembly), device)))


def _parts(assembly: Assembly, executor: Executor, device: torch.device) -> tuple[Any, ...]:
    """Return the arguments of `Federation`."""
    use(assembly.experiment.plugins)
    server = assembly.server(device)
    return (assembly.algorithm, executor, assembly.gate, assembly.plan, server, assembly.streams)


def _traced(federation: Federation) -> list[Trace]:
    states = federation.executor.states
    traces = [
        Trace.of(done, federation.snapshot, dict(states.items())) for done in federation.rounds()
    ]
    federation.executor.close()
    return traces


def serial(assembly: Assembly) -> SerialExecutor:
    """Return the executor of one process, on the CPU."""
    return SerialExecutor(assembly, CPU)


class Reversed(SerialExecutor):
    """Runs the clients of each exchange in the reverse order."""

    def step(self, name: str, round_: int, down: Downlinks) -> dict[int, Reply]:
        """Run one client step for every key of `down`, the last one first."""
        return super().step(name, round_, dict(reversed([*down.items()])))


class Forgetful(SerialExecutor):
    """Makes method, models and data anew for every client's step, as a new process would."""

    def step(self, name: str, round_: int, down: Downlinks) -> dict[int, Reply]:
        """Run one client step for every key of `down`, each with new objects."""
        replies: dict[int, Reply] = {}
        for client, payload in down.items():
            self._runtime = ClientRuntime(Assembly(self._runtime.assembly.experiment), CPU)
            replies |= super().step(name, round_, {client: payload})
        return replies


def resumed(experiment: Experiment) -> list[Trace]:
    """Run one round at a time, each by a new session that goes on after the last checkpoint."""
    traces = []
    with TemporaryDirectory(prefix="fedray-check-") as folder:
        for _ in range(experiment.rounds + 1):
            session = Session(experiment, Path(folder), partial(Forgetful, device=CPU))
            rounds = session.rounds()
            done = next(rounds)
            rounds.close()
            found = CheckpointStore(Path(folder), Assembly(experiment).identity).load()
            assert found is not None
            traces.append(Trace.of(done, found.snapshot, found.clients))
    return traces


# --- steps that are watched ----------------------------------------------------------------------


@dataclass
class Watch:
    """The changes that the steps of one run made to what they may only read.

    Attributes:
        changed_self: where steps changed the method, in their order.
        changed_arguments: where steps changed the state or the download that they were given.
    """

    changed_self: list[str] = field(default_factory=list)
    changed_arguments: list[str] = field(default_factory=list)

    @contextmanager
    def step(self, where: str, algorithm: Algorithm, given: StateTree) -> Iterator[None]:
        """Compare the method, and the tensors that a step is given, before and after the step."""
        tensors, before = map_tensors(Tensor.clone, given), attributes(algorithm)
        yield
        now, after = dict(leaves(given)), attributes(algorithm)
        self.changed_self += [
            f"{where} changed {type(algorithm).__name__}.{name}"
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ]
        self.changed_arguments += [
            f"{where} changed its {path[0]} in place: {'.'.join(path[1:])}"
            for path, tensor in leaves(tensors)
            if path not in now or not torch.equal(now[path], tensor)
        ]


@dataclass(frozen=True)
class WatchedAssembly(Assembly):
    """An experiment whose steps are watched."""

    watch: Watch = field(default_factory=Watch)


class _WatchedRuntime(ClientRuntime):
    def call(self, name: str, client: Client, state: ClientState, down: Payload | None) -> Any:
        assembly = self.assembly
        assert isinstance(assembly, WatchedAssembly)
        given: dict[str, Any] = {"state": {"model": state.model, "memory": state.memory}}
        if down is not None:
            given["download"] = {place: value for place, _, _, value in down.tensors()}
        where = f"client {client.id}, round {client.round}, step {name}"
        with assembly.watch.step(where, assembly.algorithm, given):
            return super().call(name, client, state, down)


class Watched(SerialExecutor):
    """Watches every client's step."""

    def __init__(self, assembly: WatchedAssembly, device: torch.device) -> None:
        super().__init__(assembly, device)
        self._runtime = _WatchedRuntime(assembly, device)


class WatchedFederation(Federation):
    """Watches the server's part of every round."""

    watch: Watch

    def _go_on(self, exchange: RoundExchange) -> ServerState:
        where, given = f"server, round {exchange.round}", {"state": self.snapshot.server}
        with self.watch.step(where, self.algorithm, given):
            return super()._go_on(exchange)


def watched_trace(assembly: WatchedAssembly) -> list[Trace]:
    """Run an experiment as `trace` does, and watch its steps."""
    with _global_seed(SEEDS[0]):
        federation = WatchedFederation(*_parts(assembly, Watched(assembly, CPU), CPU))
        federation.watch = assembly.watch
        return _traced(federation)


def attributes(algorithm: Algorithm) -> dict[str, bytes]:
    """Pickle each attribute of a method; cached properties are left out."""
    kind = type(algorithm)
    return {
        name: cloudpickle.dumps(value)
        for name, value in vars(algorithm).items()
        if not isinstance(getattr(kind, name, None), cached_property)
    }


# --- the laws ------------------------------------------------------------------------------------


class Conformance:
    """Checks methods one after the other; the Ray workers are started once, by the first.

    To be made before this process computes any gradient: autograd would not know the pretended
    device.
    """

    def __init__(self) -> None:
        pretended_device.device()
        self._pools: dict[int, WorkerPool] = {}

    def check(self, experiment: Experiment) -> Iterator[Verdict]:
        """Yield a verdict for every law; stop after the first if the experiment does not run."""
        assembly, first = WatchedAssembly(experiment), list[Trace]()
        way = f"{experiment.rounds} rounds in one process, payloads as declared"
        ran = _verdict("runs", way, lambda: first.extend(watched_trace(assembly)))
        yield ran
        if not ran.difference:
            for law, way, check in self._laws(assembly, first):
                yield _verdict(law, way, check)

    def _laws(
        self, assembly: WatchedAssembly, first: Sequence[Trace]
    ) -> Iterator[tuple[str, str, Callable[[], None]]]:
        """Yield each law with its name, how it is checked, and the check.

        Args:
            assembly: the experiment, after its steps were watched.
            first: what they gave.
        """
        experiment, watch = assembly.experiment, assembly.watch

        def again(make_executor: MakeExecutor, seed: int = SEEDS[0]) -> None:
            with _global_seed(seed):
                compare(first, trace(Assembly(experiment), make_executor))

        def on_ray(workers: int) -> None:
            again(partial(RayExecutor, pool=self._pool(workers)))

        yield "self", "no step changes the method", lambda: _check_none(watch.changed_self)
        unchanged = partial(_check_none, watch.changed_arguments)
        yield "arguments", "no step changes what it is given", unchanged
        yield "draws", "other seeds of the global generators", lambda: again(serial, SEEDS[1])
        reverse = partial(Reversed, device=CPU)
        yield "order", "clients in the reverse order", lambda: again(reverse)
        way = "resumed after every round, new objects for every step"
        yield "resume", way, lambda: compare(first, resumed(experiment))
        yield "one worker", "one Ray worker", lambda: on_ray(1)
        yield "two workers", "two Ray workers", lambda: on_ray(2)
        yield "device", "a pretended accelerator", lambda: check_device(experiment)

    def _pool(self, workers: int) -> WorkerPool:
        """Return a pool of so many workers; all pools are started at once."""
        if not self._pools:
            connect()
            shares = {count: {"workers": count, "cpus": 0.01} for count in (1, 2)}
            for count, share in shares.items():
                self._pools[count] = WorkerPool(from_tree(SMALL, share.items()))
        return self._pools[workers]

    def close(self) -> None:
        """End the Ray workers."""
        for pool in self._pools.values():
            pool.close()


def _global_seed(seed: int) -> AbstractContextManager[None]:
    """Seed the global random generators; put them back afterwards."""
    return Isolation(CPU).step(seed)


def _verdict(law: str, way: str, check: Callable[[], None]) -> Verdict:
    try:
        check()
    except FedrayError as error:
        return Verdict(law, way, one_line(error))
    return Verdict(law, way)


def _check_none(changes: Sequence[str]) -> None:
    if changes:
        raise Violation(changes[0])


def check_device(experiment: Experiment) -> None:
    """Compare runs on the CPU and on a pretended accelerator.

    Raises:
        Violation: with the first difference.
        FedrayError: when a step mixes tensors of both devices.
    """
    there = pretended_device.device()
    with sdpa_kernel(SDPBackend.MATH):  # the one attention that both devices have
        here = trace(Assembly(experiment), serial)
        on_device = trace(Assembly(experiment), partial(SerialExecutor, device=there), there)
    compare(here, on_device, ROUNDING)
