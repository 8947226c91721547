"""The laws that every method must obey, checked by running it: `fedray check`, and the tests.

A method's steps are pure functions: (client, its state, download) -> (upload, new state), and
(server state, uploads) -> new state. Each law is a function of an experiment, and of an executor
where executors differ. It reruns the experiment under a change that does not affect pure steps, and
raises a `Violation` with the first number that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cached_property, partial, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from ray import cloudpickle
from torch import Tensor
from torch.nn import Module

from fedray import core
from fedray.config import Experiment, Tree, with_plugins
from fedray.config.files import merge
from fedray.core.payload import split_payload
from fedray.core.stacked import refusal
from fedray.errors import Failure, FedrayError, UserError, one_line
from fedray.federation import Federation
from fedray.models import Classifier, saved_buffers
from fedray.runtime.assembly import Assembly
from fedray.runtime.cluster import connect
from fedray.runtime.draws import CHEAP, Scope, draw, required
from fedray.runtime.groups import GroupRunner
from fedray.runtime.isolation import Isolation
from fedray.runtime.pool import WorkerPool
from fedray.runtime.ray_executor import RayExecutor, Worker
from fedray.runtime.relations import check_relation, relations_of
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session
from fedray.runtime.traces import (
    CPU,
    MakeExecutor,
    OneByOne,
    Reversed,
    Trace,
    Violation,
    backwards,
    compare_traces,
    serial,
    trace,
)
from fedray.storage.run import Round
from fedray.storage.run_folder import RunFolder
from fedray.storage.states import StateStore
from fedray.trees import StateTree, leaves, map_tensors

STACKING = 1e-3
"""Tolerance between stacked and unstacked clients, over two rounds.

A ReLU or a batch norm enlarges what rounding changes: to 1.1e-4 on processors with AVX-512.
"""
SEEDS = (1, 2)
"""Seeds of the global random generators in the first and second run of a comparison."""

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
"""Three clients, two per round; all of them get new images before the last round."""
DRAWN = (1, 2, 3)
"""Seeds of the drawn experiments whose relations are checked."""


# --- the experiment ------------------------------------------------------------------------------


def small_experiment(
    method: str, sets: Sequence[tuple[str, Any]] = (), plugins: Sequence[str] = ()
) -> Experiment:
    """Return an experiment that runs in about a second and uses every part of a method.

    Args:
        method: its name in the registry.
        sets: further keys and values to set.
        plugins: files and modules that define the method or its components.
    """
    tree: dict[str, Any] = with_plugins(SMALL, (), plugins)
    algorithm = core.algorithms.get(method)
    cheap = {k: few[0] for k, few in CHEAP.items() if k in algorithm.HParams.model_fields}
    tree = merge({**tree, "algorithm": {"name": method, **cheap}}, required(algorithm))
    if algorithm.requires.prompts:
        tree["model"] = {"clip": "small"}
    if algorithm.requires.head:
        tree["finetune_epochs"] = 1
    return from_tree(tree, sets)


# --- runs ----------------------------------------------------------------------------------------


class Forgetful(SerialExecutor):
    """A serial executor that rebuilds method, models and data for each step, like a new process."""

    @property
    def _runtime(self) -> GroupRunner:
        return GroupRunner(Assembly(self._assembly.experiment), CPU)

    @_runtime.setter
    def _runtime(self, first: GroupRunner) -> None:
        """Forget the runtime that the serial executor makes."""


def resumed(experiment: Experiment) -> list[Trace]:
    """Run each round in a new session that resumes from the last checkpoint."""
    traces = []
    with TemporaryDirectory(prefix="fedray-check-") as folder:
        for _ in range(experiment.rounds + 1):
            session = Session(experiment, Path(folder), partial(Forgetful, device=CPU))
            rounds = session.rounds()
            done = next(rounds)
            rounds.close()
            checkpoint = StateStore(RunFolder(Path(folder)).states).load()
            assert checkpoint is not None
            traces.append(Trace.of(done, checkpoint.snapshot, checkpoint.clients))
    return traces


# --- forbidden changes ---------------------------------------------------------------------------


class Watch:
    """A record of the changes that a run's steps made to objects that they must not change.

    Attributes:
        on_method: descriptions of steps that changed the method.
        on_arguments: descriptions of steps that changed their state or download in place, or
            replaced tensors of their model.
        built: the tensors of each model when it was built.
    """

    def __init__(self) -> None:
        self.on_method: list[str] = []
        self.on_arguments: list[str] = []
        self.built: dict[core.Skeleton, dict[str, tuple[int, bool]]] = {}

    @contextmanager
    def step(self, where: str, algorithm: core.Algorithm, arguments: StateTree) -> Iterator[None]:
        """Compare the method and the step's argument tensors before and after the step."""
        tensors_before, attributes_before = (
            map_tensors(Tensor.clone, arguments),
            attributes(algorithm),
        )
        yield
        tensors_after, attributes_after = dict(leaves(arguments)), attributes(algorithm)
        self.on_method += [
            f"{where} changed {type(algorithm).__name__}.{name}"
            for name in sorted({*attributes_before, *attributes_after})
            if attributes_before.get(name) != attributes_after.get(name)
        ]
        self.on_arguments += [
            f"{where} changed its {path[0]} in place: {'.'.join(path[1:])}"
            for path, tensor in leaves(tensors_before)
            if path not in tensors_after or not torch.equal(tensors_after[path], tensor)
        ]

    def compare(self, where: str, skeleton: core.Skeleton) -> None:
        """Compare the tensors of a step's model with those that its constructor made."""
        before, after = self.built[skeleton], tensors_of(skeleton.model)
        self.on_arguments += [
            f"{where} added, removed or replaced its model's tensor '{name}', or changed its "
            "requires_grad; copy values into a tensor: tensor.data.copy_(values)"
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ]

    def trace(self, assembly: Assembly) -> list[Trace]:
        """Run an experiment like `trace`, and record what its steps change."""
        watch = self

        class Runtime(GroupRunner):
            def method_step(self, name: str) -> Callable[..., Any]:
                step = super().method_step(name)

                @wraps(step)  # with what it declares
                def watched(client: core.Client, state: core.ClientState, down: Any) -> Any:
                    arguments = {"state": {"model": state.model, "memory": state.memory}}
                    if down is not None:
                        arguments["download"] = split_payload(down)[1]
                    where = f"client {client.id}, round {client.round}, step {name}"
                    with watch.step(where, assembly.algorithm, arguments):
                        done = step(client, state, down)
                    watch.compare(where, client.skeleton)
                    return done

                return watched

            def _skeleton(self, architecture: str) -> core.Skeleton:
                skeleton = super()._skeleton(architecture)
                watch.built.setdefault(skeleton, tensors_of(skeleton.model))
                return skeleton

        class WatchedFederation(Federation):
            def _round(self, number: int, *arguments: Any) -> Round:
                server = {"state": self.snapshot.server}
                with watch.step(f"server, round {number}", self.algorithm, server):
                    return super()._round(number, *arguments)

        def executor(assembly: Assembly) -> SerialExecutor:
            serial_executor = serial(assembly)
            serial_executor._runtime = Runtime(assembly, CPU)
            return serial_executor

        with _global_seed(SEEDS[0]):
            return trace(assembly, executor, make_federation=WatchedFederation)


def tensors_of(model: Classifier) -> dict[str, tuple[int, bool]]:
    """Return address and trainable flag of each parameter and saved buffer."""
    tensors = (*model.named_parameters(), *saved_buffers(model).items())
    return {name: (tensor.data_ptr(), tensor.requires_grad) for name, tensor in tensors}


def attributes(algorithm: core.Algorithm) -> dict[str, bytes]:
    """Pickle each attribute of a method, except cached properties, also those of its setting."""
    kind = type(algorithm)
    return {
        name: cloudpickle.dumps(replace(value) if isinstance(value, core.Setting) else value)
        for name, value in vars(algorithm).items()
        if not isinstance(getattr(kind, name, None), cached_property)
    }


# --- the laws ------------------------------------------------------------------------------------


class Subject:
    """An experiment under check, with the trace of its first run.

    Args:
        experiment: a small one.

    Attributes:
        watch: what the steps of the first run changed.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.watch = Watch()

    @cached_property
    def first(self) -> list[Trace]:
        """Run the experiment in this process; return the trace of each round."""
        return self.watch.trace(Assembly(self.experiment))

    @property
    def method(self) -> type[core.Algorithm]:
        """Return the class of the experiment's method."""
        return core.algorithms.get(self.experiment.algorithm.name)


def check_equal(
    subject: Subject,
    make_executor: MakeExecutor,
    *,
    seed: int = SEEDS[0],
    device: torch.device = CPU,
    tolerance: float = 0.0,
) -> None:
    """Compare with a run on another executor, from another global seed or on another device."""
    expected = subject.first
    with _global_seed(seed):
        found = trace(Assembly(subject.experiment), make_executor, device)
    compare_traces(expected, found, tolerance)


def check_untouched(subject: Subject, changes: Sequence[str]) -> None:
    """Raise a `Violation` if the first run made one of these forbidden changes."""
    _ = subject.first
    if changes:
        raise Violation(changes[0])


def check_resume(subject: Subject) -> None:
    """Compare with a run that is resumed after every round, with new objects for every step."""
    compare_traces(subject.first, resumed(subject.experiment))


def check_stacked(subject: Subject, clients: int = 2, tolerance: float = STACKING) -> None:
    """Compare with a run that trains so many clients together."""
    stacked = subject.experiment.model_copy(update={"stacked": clients})
    compare_traces(subject.first, trace(Assembly(stacked), serial), tolerance)


def check_dropout(subject: Subject) -> None:
    """Compare runs of networks with dropout, which draws from the global generators.

    Few test images hide what was drawn, so the sums of all features after dropout are compared.
    """

    def run(seed: int, executor: type[SerialExecutor]) -> tuple[list[Trace], list[float]]:
        assembly, sums = Assembly(subject.experiment), list[float]()
        empty = assembly.models.empty

        def drop(layer: Module, inputs: object, features: Tensor) -> Tensor:
            dropped = F.dropout(features, 0.5, layer.training)
            sums.extend([float(dropped.detach().sum())] if layer.training else [])
            return dropped

        def with_dropout(architecture: str, device: torch.device = CPU) -> Classifier:
            model = empty(architecture, device)
            model.get_submodule("extractor").register_forward_hook(drop)
            return model

        assembly.models.empty = with_dropout  # type: ignore[method-assign]
        with _global_seed(seed):
            return trace(assembly, partial(executor, device=CPU)), sorted(sums)

    (first, sums), (second, other_sums) = run(SEEDS[0], SerialExecutor), run(SEEDS[1], Reversed)
    compare_traces(first, second)
    if sums != other_sums:
        raise Violation("dropout in a step or test depends on the global generators' state")


ENTRY = "entry_of_a_subclass"


def check_state_entries(subject: Subject) -> None:
    """Compare with a subclass that adds an entry to the server's state.

    Its server step returns only the entries that it changes, so that the others must stay.
    """
    expected, assembly = subject.first, Assembly(subject.experiment)
    kind: Any = type(assembly.algorithm)
    takes_sums = kind.server_update is core.Algorithm.server_update
    step = "server_step" if takes_sums else "server_update"

    def init_server(self: core.Algorithm, server: core.Server) -> core.ServerState:
        return {**kind.init_server(self, server), ENTRY: torch.ones(1)}

    def changes(self: core.Algorithm, state: core.ServerState, *arguments: Any) -> core.ServerState:
        after = getattr(kind, step)(self, state, *arguments)
        return {name: value for name, value in after.items() if value is not state.get(name)}

    subclass: Any = type("Subclass", (kind,), {"init_server": init_server, step: changes})
    assembly.algorithm.__class__ = subclass
    with _global_seed(SEEDS[0]):
        traces = trace(assembly, serial)
    for done in traces:
        if done.tensors.pop(f"server/{ENTRY}", None) is None:
            raise Violation(f"round {done.round}: the server's state has lost the entry {ENTRY!r}")
    compare_traces(expected, traces)


def _global_seed(seed: int) -> AbstractContextManager[None]:
    return Isolation(CPU).step(seed)


class Workers:
    """Pools of one and two Ray workers, which the first use starts."""

    def __init__(self) -> None:
        self._pools: list[WorkerPool] = []

    def __call__(self, count: int) -> MakeExecutor:
        """Return a function that makes executors on so many workers.

        Call it before the experiment is assembled, because resolving an experiment here changes the
        active plug-ins.
        """
        if not self._pools:
            connect()
            for workers in (1, 2):
                shares = {"workers": workers, "cpus": 0.01}
                self._pools.append(WorkerPool(Worker, from_tree(SMALL, shares.items())))
        return partial(RayExecutor, pool=self._pools[count - 1])

    def close(self) -> None:
        """End the Ray workers."""
        for pool in self._pools:
            pool.close()


def check_drawn(subject: Subject) -> None:
    """Check the relations of a few drawn experiments with the method."""
    scope = Scope((subject.method.name,), plugins=subject.experiment.plugins)
    for seed in DRAWN:
        drawn = draw(seed, scope)
        try:
            first = trace(Assembly(drawn.experiment), serial)
        except FedrayError as error:
            if isinstance(error, UserError) or Failure.of(error).diverged:
                continue  # refused by a step, or trained too fast: nothing to compare
            raise
        for relation, other in relations_of(drawn, scope, seed, count=2):
            try:
                check_relation(first, relation, other)
            except Violation as error:
                raise Violation(f"seed {seed}, {relation.name}: {error}") from None


class Law(NamedTuple):
    """A law: its name, how it is checked, and a function that raises a `FedrayError`."""

    name: str
    description: str
    check: Callable[[Subject, Workers], None]


LAWS = (
    Law("runs", "rounds in one process, payloads as declared", lambda s, _: check_untouched(s, ())),
    Law("self", "no step changes the method", lambda s, _: check_untouched(s, s.watch.on_method)),
    Law(
        "arguments",
        "no step changes its arguments or replaces its model's tensors",
        lambda s, _: check_untouched(s, s.watch.on_arguments),
    ),
    Law("draws", "other global seeds", lambda s, _: check_equal(s, serial, seed=SEEDS[1])),
    Law("order", "clients in reverse order", lambda s, _: check_equal(s, backwards)),
    Law(
        "resume",
        "resumed after every round, new objects for each step",
        lambda s, _: check_resume(s),
    ),
    Law("one worker", "one Ray worker", lambda s, workers: check_equal(s, workers(1))),
    Law("two workers", "two Ray workers", lambda s, workers: check_equal(s, workers(2))),
    Law("dropout", "networks with dropout, other seeds and order", lambda s, _: check_dropout(s)),
    Law(
        "one model",
        "clients tested one by one, where `one_model` claims that they have one model",
        lambda s, _: check_equal(s, partial(OneByOne, device=CPU)),
    ),
    Law("entries", "a subclass with another server entry", lambda s, _: check_state_entries(s)),
    Law(
        "relations",
        "drawn experiments, with keys that change nothing",
        lambda s, _: check_drawn(s),
    ),
    Law("stacked", "two clients trained together, to 1e-3", lambda s, _: check_stacked(s)),
)


def laws_of(method: type[core.Algorithm]) -> list[Law]:
    """Return the laws that a method must obey, in the order of `fedray check`."""
    exempt = {
        "dropout": method.requires.prompts,
        "one model": not method.one_model,
        "stacked": bool(refusal(method)),
    }
    return [law for law in LAWS if not exempt.get(law.name)]


def verdicts(experiment: Experiment, workers: Workers) -> Iterator[tuple[Law, str]]:
    """Yield each law with the first difference, "" if it holds; end if the first run fails."""
    subject = Subject(experiment)
    for law in laws_of(subject.method):
        difference = ""
        try:
            law.check(subject, workers)
        except FedrayError as error:
            difference = one_line(error)
        yield law, difference
        if law is LAWS[0] and difference:
            return
