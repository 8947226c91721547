"""A small FedTSP on digits: undisturbed, on any executor, and what must come out every time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from rounds import result_in

from fedray.base.trees import leaves
from fedray.config import EXECUTION_KEYS, Experiment
from fedray.core import algorithms
from fedray.runtime.assembly import Assembly
from fedray.runtime.pool import WorkerPool
from fedray.runtime.ray_executor import RayExecutor
from fedray.runtime.resolve import resolve
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.server import run_on_ray
from fedray.runtime.session import Session
from fedray.storage.run import MEASURED_SECONDS, Round
from fedray.storage.states import StateStore, latest_round

MEASURED = ("costs", "environment", "started")


class Small:
    """FedTSP with a tiny BERT: six clients of two architectures, prompts that learn.

    Args:
        encoder: a folder with a BERT.
        home: where the undisturbed runs are kept.
    """

    def __init__(self, encoder: Path, home: Path) -> None:
        self._home = home
        self._encoder = encoder

    def arguments(self, *assignments: str) -> list[str]:
        """The experiment as words of the command line, with assignments laid on it.

        It sets no key that the method does not read, which would be refused.
        """
        text = [f"text.encoder.path={self._encoder}", "text.encoder=bert", "model.feature_dim=16"]
        if any(key.startswith("text.encoder") for key in assignments):
            text = []
        text.append("text.style=handcrafted")
        methods = [key.partition("=")[2] for key in assignments if key.startswith("algorithm=")]
        requires = algorithms.get(methods[-1] if methods else "fedtsp").requires
        if not requires.text:
            text = [] if requires.prompts else ["model.feature_dim=16"]
        return [
            "fedtsp_digits",
            "rounds=3",
            "local_epochs=1",
            "data.clients=6",
            "data.samples=400",
            "data.partition.min_samples=10",
            "cpus=1",
            *text,
            *assignments,
        ]

    def experiment(self, *assignments: str) -> Experiment:
        """The experiment, with assignments laid on it."""
        name, *rest = self.arguments(*assignments)
        return resolve(name, rest)

    @staticmethod
    def serial(assembly: Assembly) -> SerialExecutor:
        """Makes the executor that runs in this process."""
        return SerialExecutor(assembly, torch.device("cpu"))

    def undisturbed(self, *assignments: str) -> Path:
        """The folder of a serial run to the end; run once, then kept."""
        experiment = self.experiment(*assignments)
        out = self._home / experiment.identity()
        if not out.exists():
            serially(experiment, out)
        return out


def serially(experiment: Experiment, out: Path) -> list[Round]:
    """Run, or go on, in this process; the rounds."""
    return list(Session(experiment, out, Small.serial).rounds())


class Few:
    """The first `count` workers of a pool.

    Args:
        pool: the pool.
        count: how many.
    """

    def __init__(self, pool: WorkerPool, count: int) -> None:
        self._pool = pool
        self._count = count
        self.answer = pool.answer

    def ready(self) -> list[Any]:
        """Return the first workers."""
        return self._pool.ready()[: self._count]


def on_workers(experiment: Experiment, out: Path, pool: WorkerPool, count: int) -> list[Round]:
    """Run, or go on, with the first `count` workers of a pool; the server is this process."""
    few = Few(pool, count)
    return list(Session(experiment, out, lambda a: RayExecutor(a, few)).rounds())


def with_server_actor(experiment: Experiment, out: Path) -> list[Round]:
    """Run, or go on, as `python -m fedray.run` does on Ray; the rounds as they came."""
    return list(run_on_ray(experiment, out, time.time()))


def assert_same(one: Path, other: Path) -> None:
    """Assert that both runs' numbers, except for times and memory, and final tensors are equal."""
    assert numbers(one) == numbers(other)
    mine, theirs = tensors(one), tensors(other)
    assert mine.keys() == theirs.keys()
    different = [name for name in mine if not torch.equal(mine[name], theirs[name])]
    assert not different


def numbers(out: Path) -> dict[str, Any]:
    """Return run.json and its rounds without where and how fast they were made."""
    result = result_in(out)
    for key in MEASURED:
        del result[key]
    for key in EXECUTION_KEYS:
        section, _, last = key.rpartition(".")
        del (result["config"][section] if section else result["config"])[last]
    for record in result["rounds"]:
        for key in MEASURED_SECONDS:
            record.pop(key, None)
    return result


def tensors(out: Path) -> dict[str, torch.Tensor]:
    """All tensors of the last checkpoint: the server's and the clients'."""
    found = StateStore(out / "states").load()
    assert found is not None
    tree: dict[str, Any] = {"server": found.snapshot.server}
    for client, state in found.clients.items():
        tree[str(client)] = {"model": state.model, "memory": state.memory}
    return {"/".join(path): tensor for path, tensor in leaves(tree)}


def last_round(out: Path) -> int:
    """The round of the last whole checkpoint, -1 before the first."""
    found = latest_round(out / "states")
    return -1 if found is None else found


def stop_after(rounds: Iterator[Round], round_: int) -> None:
    """Take rounds up to `round_` and never ask again, as a process that died there."""
    for record in rounds:
        if record.round == round_:
            return


def wait_for(what: Callable[[], Any], seconds: float = 200.0) -> Any:
    """The first true answer of `what`, asked again and again."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError(f"nothing within {seconds:g} s")


def actors(title: str) -> list[psutil.Process]:
    """The processes of this process's Ray that are called so, for example ray::Worker.run."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline()[:1] == [title]:
                found.append(process)
        except psutil.Error:
            continue
    return found


class Killer(threading.Thread):
    """Kills, with SIGKILL, one process of an actor that runs a certain call.

    Args:
        title: the process's title, for example ray::Worker.run.
        when: waits until this is true.
    """

    def __init__(self, title: str, when: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self.title = title
        self.when = when
        self.killed: list[int] = []
        self.start()

    def run(self) -> None:
        """Wait, kill, note the process id."""
        wait_for(self.when)
        victim = wait_for(lambda: actors(self.title))[0]
        victim.kill()
        self.killed.append(victim.pid)
