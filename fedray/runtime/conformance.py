"""The laws of a method, checked by running it: `fedray check`.

A method's steps are pure functions: (client, its state, download) -> (upload, new state), and
(server state, uploads) -> new state. Every law here runs one small experiment in a way that gives
the same numbers if the steps are pure, and reports the first number that differs.
"""

from __future__ import annotations

from collections import Counter
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
from torch.testing import assert_close

from fedray.checkpoint import CheckpointStore
from fedray.config import Experiment, Tree, with_plugins
from fedray.core import (
    Algorithm,
    Batch,
    Client,
    ClientState,
    Downlinks,
    Payload,
    ServerState,
    Total,
    algorithms,
    total_over,
    training,
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
from fedray.runtime.pretended_device import COUNTS
from fedray.runtime.ray_executor import RayExecutor
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session

CPU = torch.device("cpu")
ROUNDING = 1e-4
"""Tolerance of two rounds on different devices, whose kernels round differently."""
STACKING = 1e-5
"""Tolerance of two rounds with and without stacked clients."""
SEEDS = (1, 2)
"""Seeds of the global random generators, in the first and in the second run."""

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
FEW = 4
"""Batch size where batches are counted: every client has several."""
CHEAP: Mapping[str, int] = {
    "server_epochs": 1,
    "target_steps": 2,
    "inner_steps": 2,
    "length": 2,
    "cluster_rounds": 1,
}
"""Hyper-parameters that only cost time, and their values for methods that have them."""


@dataclass(frozen=True)
class Verdict:
    """The result of checking one law.

    Attributes:
        law: its name.
        way: how the law was checked.
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
    """The numbers and states of one round.

    Attributes:
        round: its number.
        numbers: metrics, accuracies, sizes and events, by name.
        tensors: the server's and all clients' states, by place.
    """

    round: int
    numbers: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, done: Round, snapshot: Snapshot, clients: Mapping[int, ClientState]) -> Trace:
        """Copy a round's numbers and the states after it."""
        numbers: dict[str, Any] = {f"metric {name}": value for name, value in done.metrics.items()}
        numbers |= {f"accuracy of client {c}": value for c, value in done.per_client.items()}
        numbers |= {"uploads": done.up, "downloads": done.down, "events": list(done.events)}
        tree: dict[str, Any] = {"server": snapshot.server}
        for client, state in clients.items():
            tree[f"client {client}"] = {"model": state.model, "memory": state.memory}
        copies = {"/".join(path): tensor.cpu().clone() for path, tensor in leaves(tree)}
        return cls(done.round, numbers, copies)

    def differences(self, other: Trace, tolerance: float) -> Iterator[str]:
        """Describe each value of this round that another run has otherwise.

        With a tolerance, which is relative and absolute, only states are compared: accuracies may
        change by an image.
        """
        for name in sorted({*self.tensors, *other.tensors}):
            if not (name in self.tensors and name in other.tensors):
                yield f"{name} is in one run only"
                continue
            mine, theirs = self.tensors[name], other.tensors[name]
            try:
                assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
            except AssertionError as error:
                yield f"{name}: {one_line(error)}"
        for name in sorted({*self.numbers, *other.numbers}) if tolerance == 0 else ():
            one, two = self.numbers.get(name), other.numbers.get(name)
            if one != two and not (one != one and two != two):
                yield f"{name} is {one}, then {two}"


def compare(one: Sequence[Trace], other: Sequence[Trace], tolerance: float = 0.0) -> None:
    """Compare two runs round by round."""
    for mine, theirs in zip(one, other, strict=True):
        for difference in mine.differences(theirs, tolerance):
            raise Violation(f"round {mine.round}: {difference}")


# --- runs ----------------------------------------------------------------------------------------

MakeExecutor: TypeAlias = Callable[[Assembly], Executor]


def trace(
    assembly: Assembly,
    make_executor: MakeExecutor,
    device: torch.device = CPU,
    make_federation: Callable[..., Federation] = Federation,
) -> list[Trace]:
    """Run an assembled experiment from its beginning to its end, the server on `device`."""
    use(assembly.experiment.plugins)
    executor, server = make_executor(assembly), assembly.server(device)
    a = assembly
    federation = make_federation(a.algorithm, executor, a.gate, a.plan, server, a.streams)
    states = executor.states
    traces = [
        Trace.of(done, federation.snapshot, dict(states.items())) for done in federation.rounds()
    ]
    executor.close()
    return traces


def serial(assembly: Assembly) -> SerialExecutor:
    """Return the executor of one process, on the CPU."""
    return SerialExecutor(assembly, CPU)


class Reversed(SerialExecutor):
    """Runs the clients of each exchange in the reverse order."""

    def step(self, name: str, round_: int, down: Downlinks) -> dict[int, Reply]:
        """Run one client step for every key of `down`, the last one first."""
        return super().step(name, round_, dict(reversed([*down.items()])))

    def total(self, name: str, round_: int, down: Downlinks) -> tuple[dict[int, Reply], Total]:
        """Run one client step for every key of `down`, the last one first, and add up."""
        replies = self.step(name, round_, down)
        summed = {client: self._runtime.summed(reply) for client, reply in replies.items()}
        total = total_over(list(down), lambda client: summed[client][1])
        return {client: reply for client, (reply, _) in summed.items()}, total


class Forgetful(SerialExecutor):
    """Makes method, models and data again for every client's step, as a new process would."""

    def _step(
        self, name: str, round_: int, client: int, down: Payload | None, *, is_summed: bool = False
    ) -> Reply:
        self._runtime = ClientRuntime(Assembly(self._runtime.assembly.experiment), CPU)
        return super()._step(name, round_, client, down, is_summed=is_summed)


def resumed(experiment: Experiment) -> list[Trace]:
    """Run one round at a time, each by a new session that resumes after the last checkpoint."""
    traces = []
    with TemporaryDirectory(prefix="fedray-check-") as folder:
        for _ in range(experiment.rounds + 1):
            session = Session(experiment, Path(folder), partial(Forgetful, device=CPU))
            rounds = session.rounds()
            done = next(rounds)
            rounds.close()
            checkpoint = CheckpointStore(Path(folder), Assembly(experiment).identity).load()
            assert checkpoint is not None
            traces.append(Trace.of(done, checkpoint.snapshot, checkpoint.clients))
    return traces


# --- steps that are watched ----------------------------------------------------------------------


class Watch:
    """The changes that the steps of one run made to what they may only read.

    Attributes:
        changed_self: descriptions of steps that changed the method.
        changed_arguments: descriptions of steps that changed their state or download in place.
    """

    def __init__(self) -> None:
        self.changed_self: list[str] = []
        self.changed_arguments: list[str] = []

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

    def trace(self, assembly: Assembly) -> list[Trace]:
        """Run an experiment as `trace` does, and watch its steps."""
        watch = self

        class Runtime(ClientRuntime):
            def call(self, name: str, client: Client, state: ClientState, down: Any) -> Any:
                given: dict[str, Any] = {"state": {"model": state.model, "memory": state.memory}}
                if down is not None:
                    given["download"] = {place: value for place, _, _, value in down.tensors()}
                where = f"client {client.id}, round {client.round}, step {name}"
                with watch.step(where, assembly.algorithm, given):
                    return super().call(name, client, state, down)

        class WatchedFederation(Federation):
            def _go_on(self, exchange: RoundExchange) -> ServerState:
                where, given = f"server, round {exchange.round}", {"state": self.snapshot.server}
                with watch.step(where, self.algorithm, given):
                    return super()._go_on(exchange)

        def executor(assembly: Assembly) -> SerialExecutor:
            watched = serial(assembly)
            watched._runtime = Runtime(assembly, CPU)
            return watched

        with _global_seed(SEEDS[0]):
            return trace(assembly, executor, make_federation=WatchedFederation)


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
    """Checks methods one after the other; the first starts the Ray workers.

    Create it before this process computes any gradient: autograd does not find devices that are
    registered later.
    """

    def __init__(self) -> None:
        pretended_device.device()
        self._pools: list[WorkerPool] = []

    def check(self, experiment: Experiment) -> Iterator[Verdict]:
        """Yield a verdict for every law; stop after the first if the experiment does not run."""
        first: list[Trace] = []
        for law, way, check in self._laws(experiment, first):
            difference = ""
            try:
                check()
            except FedrayError as error:
                difference = one_line(error)
            yield Verdict(law, way, difference)
            if not first:
                return

    def _laws(
        self, experiment: Experiment, first: list[Trace]
    ) -> Iterator[tuple[str, str, Callable[[], None]]]:
        """Yield each law with its name, how it is checked, and the check."""
        watch = Watch()

        def again(make_executor: MakeExecutor, seed: int = SEEDS[0]) -> None:
            with _global_seed(seed):
                compare(first, trace(Assembly(experiment), make_executor))

        way = f"{experiment.rounds} rounds in one process, payloads as declared"
        yield "runs", way, lambda: first.extend(watch.trace(Assembly(experiment)))
        yield "self", "no step changes the method", lambda: _check_none(watch.changed_self)
        unchanged = partial(_check_none, watch.changed_arguments)
        yield "arguments", "no step changes what it is given", unchanged
        yield "draws", "other seeds of the global generators", lambda: again(serial, SEEDS[1])
        reverse = partial(Reversed, device=CPU)
        yield "order", "clients in the reverse order", lambda: again(reverse)
        way = "resumed after every round, new objects for every step"
        yield "resume", way, lambda: compare(first, resumed(experiment))
        yield "one worker", "one Ray worker", lambda: again(self._on_ray(1))
        yield "two workers", "two Ray workers", lambda: again(self._on_ray(2))
        yield "device", "a pretended accelerator", lambda: check_device(experiment)
        way = "no copy and no synchronisation in the batch loop"
        yield "batches", way, lambda: check_batches(experiment)
        if algorithms.get(experiment.algorithm.name).stacks:
            stacked = Assembly(experiment.model_copy(update={"stacked": 2}))
            way = "two clients trained together, states to 1e-5"
            yield "stacked", way, lambda: compare(first, trace(stacked, serial), STACKING)

    def _on_ray(self, workers: int) -> MakeExecutor:
        """Return a function that makes executors on a number of workers; all are started once.

        Call it before the experiment is assembled: to resolve another one here changes plug-ins.
        """
        if not self._pools:
            connect()
            for count in (1, 2):
                shares = {"workers": count, "cpus": 0.01}
                self._pools.append(WorkerPool(from_tree(SMALL, shares.items())))
        return partial(RayExecutor, pool=self._pools[workers - 1])

    def close(self) -> None:
        """End the Ray workers."""
        for pool in self._pools:
            pool.close()


def _global_seed(seed: int) -> AbstractContextManager[None]:
    return Isolation(CPU).step(seed)


def _check_none(changes: Sequence[str]) -> None:
    if changes:
        raise Violation(changes[0])


def check_device(experiment: Experiment) -> None:
    """Compare runs on the CPU and on a pretended accelerator."""
    with sdpa_kernel(SDPBackend.MATH):  # the one attention that both devices have
        here = trace(Assembly(experiment), serial)
    compare(here, _on_device(experiment), ROUNDING)


@dataclass
class StepCounts:
    """Counts on the pretended device, see `pretended_device.COUNTS`.

    Attributes:
        batches: batches that clients trained on, without the first of each epoch.
        inside: what was counted for them.
        steps: client steps.
        whole: what was counted for the steps, batches included.
    """

    batches: int = 0
    inside: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    whole: Counter[str] = field(default_factory=Counter)


def count_steps(experiment: Experiment) -> StepCounts:
    """Run an experiment in small batches on the pretended device; count what client steps do."""
    experiment = from_tree(experiment.tree(), [("batch_size", FEW)])
    counts, batches = StepCounts(), training._Epochs._batches

    def watched(epochs: Any) -> Iterator[Batch]:
        before: Counter[str] | None = None  # the first batch may prepare something
        for batch in batches(epochs):
            yield batch
            if before is not None:
                counts.batches += 1
                counts.inside.update(COUNTS - before)
            before = Counter(COUNTS)

    @contextmanager
    def step(name: str, clients: int) -> Iterator[None]:
        before = Counter(COUNTS)
        yield
        if name == "client_update":
            counts.steps += clients
            counts.whole.update(COUNTS - before)

    class Counting(SerialExecutor):
        def step(self, name: str, round_: int, down: Downlinks) -> dict[int, Reply]:
            with step(name, len(down)):
                return super().step(name, round_, down)

        def total(self, name: str, round_: int, down: Downlinks) -> tuple[dict[int, Reply], Total]:
            with step(name, len(down)):
                return super().total(name, round_, down)

    training._Epochs._batches = watched  # type: ignore[assignment, method-assign]
    try:
        _on_device(experiment, Counting)
    finally:
        training._Epochs._batches = batches  # type: ignore[method-assign]
    return counts


def check_batches(experiment: Experiment) -> None:
    """Check that no tensor goes to or from the accelerator while batches are trained on."""
    if algorithms.get(experiment.algorithm.name).waits_per_batch:
        return
    inside = count_steps(experiment).inside
    found = [f"{inside[n]} {n}" for n in ("copies", "synchronisations") if inside[n]]
    if found:
        raise Violation(
            f"{' and '.join(found)} in the batches of two rounds; make or move tensors before the "
            "batches, and read none on the CPU"
        )


def _on_device(
    experiment: Experiment, executor: type[SerialExecutor] = SerialExecutor
) -> list[Trace]:
    there = pretended_device.device()
    with sdpa_kernel(SDPBackend.MATH):
        return trace(Assembly(experiment), partial(executor, device=there), there)
