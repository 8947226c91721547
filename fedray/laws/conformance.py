"""The laws that every method must obey, checked by running it: `fedray check`, and the tests.

A method's steps are pure functions: (client, its state, download) -> (upload, new state), and
(server state, uploads) -> new state. Each law is a function of an experiment, and of an executor
where executors differ. It reruns the experiment under a change that does not affect pure steps, and
raises a `Violation` with the first number that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from ray import cloudpickle

from fedray import core
from fedray.base.errors import Failure, FedrayError, UserError, one_line
from fedray.config import Experiment, Tree, with_plugins
from fedray.config.files import merge
from fedray.core.client import named_tensors
from fedray.core.stacked import refusal
from fedray.laws.draws import CHEAP, Scope, check_relation, draw, relations_of, required
from fedray.laws.traces import (
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
from fedray.runtime.assembly import Assembly
from fedray.runtime.cluster import connect
from fedray.runtime.groups import GroupRunner
from fedray.runtime.isolation import Isolation
from fedray.runtime.pool import WorkerPool
from fedray.runtime.ray_executor import RayExecutor, Worker
from fedray.runtime.resolve import from_tree
from fedray.runtime.session import Session
from fedray.storage.run_folder import RunFolder
from fedray.storage.states import StateStore

STACKING = 1e-3
"""Tolerance between stacked and unstacked clients, over two rounds.

A ReLU or a batch norm enlarges what rounding changes: to 1.1e-4 on processors with AVX-512.
"""
SEEDS = (1, 2)
"""Seeds of the global random generators in the first and second run of a comparison."""
DRAWN = (1, 2, 3)
"""Seeds of the drawn experiments whose relations are checked."""
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
    cheap = {k: few[0] for k, few in CHEAP.items() if k in algorithm.model_fields}
    tree = merge({**tree, "algorithm": {"name": method, **cheap}}, required(algorithm))
    if algorithm.requires.prompts:
        tree["model"] = {"clip": "small"}
    if algorithm.requires.head:
        tree["finetune_epochs"] = 1
    return from_tree(tree, sets)


# --- the laws ------------------------------------------------------------------------------------


class Subject:
    """An experiment under check.

    Attributes:
        experiment: a small one.
        assembly: the parts of its first run.
        executor: that of its first run, in this process.
        method: the class of its method.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment
        self.assembly = Assembly(experiment)
        self.executor = serial(self.assembly)
        self.method = core.algorithms.get(experiment.algorithm.name)

    @cached_property
    def first(self) -> list[Trace]:
        """Run the experiment in this process; return the trace of each round."""
        with Isolation(CPU).group(SEEDS[0]):
            return trace(self.assembly, lambda _: self.executor)


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
    with Isolation(CPU).group(seed):
        found = trace(Assembly(subject.experiment), make_executor, device)
    compare_traces(expected, found, tolerance)


def check_attributes(subject: Subject) -> None:
    """Compare the method's attributes after the first run with those of a new object."""
    _ = subject.first
    new, used = (_attributes(a) for a in (Assembly(subject.experiment), subject.assembly))
    for name, _ in sorted(new.items() ^ used.items()):
        raise Violation(f"a step changed {subject.method.__name__}.{name}")


def _attributes(assembly: Assembly) -> dict[str, bytes]:
    """Pickle each attribute of a method, except cached properties, also those of its setting."""
    method = assembly.algorithm
    return {
        name: cloudpickle.dumps(replace(value) if isinstance(value, core.Setting) else value)
        for name, value in {**vars(method), **(method.__pydantic_private__ or {})}.items()
        if not isinstance(getattr(type(method), name, None), cached_property)
    }


def check_models(subject: Subject) -> None:
    """Check that the models of the first run still have the tensors that clients load."""
    _ = subject.first
    for skeleton in subject.executor._runtime._skeletons.values():
        found, loaded = (
            {name: tensor.data_ptr() for name, tensor in tensors.items()}
            for tensors in (named_tensors(skeleton.model), skeleton.tensors)
        )
        for name, _ in sorted(found.items() ^ loaded.items()):
            raise Violation(
                f"a step added, removed or replaced its model's tensor '{name}'; copy values into "
                "it: tensor.data.copy_(values)"
            )


class Forgetful(Reversed):
    """An executor that rebuilds method, models and data for each step, like a new process."""

    @property
    def _runtime(self) -> GroupRunner:
        return GroupRunner(Assembly(self._assembly.experiment), CPU)

    @_runtime.setter
    def _runtime(self, first: GroupRunner) -> None:
        """Forget the runtime that the serial executor makes."""


def check_resume(subject: Subject) -> None:
    """Compare with a run that is resumed after every round, with new objects for every step."""
    experiment, traces = subject.experiment, []
    with TemporaryDirectory(prefix="fedray-check-") as folder:
        for _ in range(experiment.rounds + 1):
            rounds = Session(experiment, Path(folder), partial(Forgetful, device=CPU)).rounds()
            done = next(rounds)
            rounds.close()
            checkpoint = StateStore(RunFolder(Path(folder)).states).load()
            assert checkpoint is not None
            traces.append(Trace.of(done, checkpoint.snapshot, checkpoint.clients))
    compare_traces(subject.first, traces)


def check_stacked(subject: Subject) -> None:
    """Compare with a run that trains two clients together."""
    stacked = subject.experiment.model_copy(update={"stacked": 2})
    compare_traces(subject.first, trace(Assembly(stacked), serial), STACKING)


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


class Workers:
    """Two Ray workers, which the first use starts."""

    _pool: WorkerPool | None = None

    def __call__(self) -> MakeExecutor:
        """Return a function that makes executors on the workers.

        Call it before the experiment is assembled, because resolving an experiment here changes the
        active plug-ins.
        """
        if self._pool is None:
            connect()
            self._pool = WorkerPool(Worker, from_tree(SMALL, {"workers": 2, "cpus": 0.02}.items()))
        return partial(RayExecutor, pool=self._pool)

    def close(self) -> None:
        """End the Ray workers."""
        if self._pool is not None:
            self._pool.close()


class Law(NamedTuple):
    """A law: its name, how it is checked, and a function that raises a `FedrayError`."""

    name: str
    description: str
    check: Callable[[Subject, Workers], object]


LAWS = (
    Law("runs", "rounds in one process, payloads as declared", lambda s, _: s.first),
    Law("self", "no step changes the method", lambda s, _: check_attributes(s)),
    Law("models", "no step replaces its model's tensors", lambda s, _: check_models(s)),
    Law("draws", "other global seeds", lambda s, _: check_equal(s, serial, seed=SEEDS[1])),
    Law("order", "clients in reverse order", lambda s, _: check_equal(s, backwards)),
    Law(
        "resume",
        "resumed after every round, new objects for each step",
        lambda s, _: check_resume(s),
    ),
    Law("workers", "two Ray workers", lambda s, workers: check_equal(s, workers())),
    Law(
        "one model",
        "clients tested one by one, where `one_model` claims that they have one model",
        lambda s, _: check_equal(s, partial(OneByOne, device=CPU)),
    ),
    Law(
        "relations", "drawn experiments, with keys that change nothing", lambda s, _: check_drawn(s)
    ),
    Law("stacked", "two clients trained together, to 1e-3", lambda s, _: check_stacked(s)),
)


def verdicts(experiment: Experiment, workers: Workers) -> Iterator[tuple[Law, str]]:
    """Yield each law with the first difference, "" if it holds; end if the first run fails."""
    subject = Subject(experiment)
    exempt = {"one model": not subject.method.one_model, "stacked": bool(refusal(subject.method))}
    for law in LAWS:
        if exempt.get(law.name):
            continue
        difference = ""
        try:
            law.check(subject, workers)
        except FedrayError as error:
            difference = one_line(error)
        yield law, difference
        if law is LAWS[0] and difference:
            return
