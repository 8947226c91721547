"""What a step does to its process, and to what it is given, reaches nobody else."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.faults import poison
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import Client, ClientState, algorithms
from fedray.runtime import worker
from fedray.runtime.assembly import Assembly
from fedray.runtime.resolve import from_tree

LEAKED: list[Any] = []


def enter(context: Any) -> None:
    """Enter a context and never leave it."""
    context.__enter__()
    LEAKED.append(context)


def edit(tensors: Any) -> None:
    for tensor in tensors.values():
        tensor.mul_(3)


def edit_unseen(tensors: Any) -> None:
    for tensor in tensors.values():
        tensor.data.numpy()[...] = 7


def interrupt() -> None:
    raise KeyboardInterrupt


def freeze(client: Client) -> None:
    for parameter in client.skeleton.model.parameters():
        parameter.requires_grad_(False)


def halve(client: Client) -> None:
    client.skeleton.model.register_forward_hook(
        lambda module, inputs, output: (
            output._replace(logits=output.logits / 2) if hasattr(output, "_replace") else output
        )
    )
    for module in client.skeleton.model.modules():
        module.register_forward_pre_hook(lambda module, inputs: None)


def faster(client: Client) -> None:
    for group in client.skeleton.optimizer(client.setting.training).param_groups:
        group["lr"] = 1.0


def replace_parameters(client: Client) -> None:
    for module in client.skeleton.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.bias = torch.nn.Parameter(torch.full_like(module.bias, 5.0))


SPOILERS: dict[str, Callable[[Client, ClientState, Any], object]] = {
    "default dtype": lambda c, s, d: torch.set_default_dtype(torch.float64),
    "grad mode": lambda c, s, d: torch.set_grad_enabled(False),
    "no_grad left open": lambda c, s, d: enter(torch.no_grad()),
    "inference mode left open": lambda c, s, d: enter(torch.inference_mode()),
    "autocast left open": lambda c, s, d: enter(torch.autocast("cpu", torch.bfloat16)),
    "threads": lambda c, s, d: torch.set_num_threads(3),
    "default device": lambda c, s, d: torch.set_default_device("meta"),
    "deterministic": lambda c, s, d: torch.use_deterministic_algorithms(True),
    "matmul precision": lambda c, s, d: torch.set_float32_matmul_precision("medium"),
    "anomaly": lambda c, s, d: torch.autograd.set_detect_anomaly(True),
    "torch's generator": lambda c, s, d: torch.manual_seed(3),
    "numpy's generator": lambda c, s, d: np.random.seed(3),  # noqa: NPY002
    "python's generator": lambda c, s, d: random.seed(3),
    "environment": lambda c, s, d: os.environ.update(SPOILED="yes", HOME="/nowhere"),
    "a variable less": lambda c, s, d: os.environ.pop("PATH"),
    "working directory": lambda c, s, d: os.chdir("/"),
    "output": lambda c, s, d: setattr(sys, "stdout", None),
    "signals": lambda c, s, d: signal.signal(signal.SIGINT, signal.SIG_IGN),
    "the download": lambda c, s, d: edit(d.weights),
    "the download unseen": lambda c, s, d: edit_unseen(d.weights),
    "the state": lambda c, s, d: edit(s.memory),
    "the state unseen": lambda c, s, d: edit_unseen(s.memory),
    "requires_grad": lambda c, s, d: freeze(c),
    "hooks": lambda c, s, d: halve(c),
    "mode of one module": lambda c, s, d: next(c.skeleton.model.children()).eval(),
    "learning rate": lambda c, s, d: faster(c),
    "parameters": lambda c, s, d: replace_parameters(c),
    "the setting": lambda c, s, d: object.__setattr__(c.setting, "seed", 99),
    "local epochs": lambda c, s, d: object.__setattr__(c.setting.training, "epochs", 3),
    "labels": lambda c, s, d: c.train.all_labels.fill(0),
    "images": lambda c, s, d: c.train.stored.fill(0),
    "indices": lambda c, s, d: c.train.index.fill(0),
    "exits": lambda c, s, d: sys.exit(0),
    "interrupts": lambda c, s, d: interrupt(),
}


class Spoiling(FedAvg):
    """FedAvg with a client that spoils what it can reach and then fails; others are sensitive."""

    name = "spoiling"

    class HParams(FedAvg.HParams):
        spoiler: str = ""

    def init_client(self, client: Client) -> ClientState:
        return ClientState(super().init_client(client).model, {"seen": torch.ones(2)})

    def client_update(self, client: Client, state: ClientState, down: Any) -> Any:
        if self.hp.spoiler and (client.id, client.round) == (poison.VICTIM, poison.ROUND):
            SPOILERS[self.hp.spoiler](client, state, down)
            if self.hp.spoiler == "signals":
                assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            raise ArithmeticError("spoilt")
        up, after = super().client_update(client, state, down)
        drawn = F.dropout(torch.ones(4)).sum() + np.random.rand() + random.random()  # noqa: NPY002
        surroundings = [torch.get_num_threads(), os.getcwd() == "/", "SPOILED" in os.environ]
        seen = torch.cat(
            [state.memory["seen"].double() + 1, drawn.double()[None], torch.tensor(surroundings)]
        )
        return up, ClientState(after.model, {"seen": seen})


class Worker(worker.Worker):
    """A worker that knows this file's method."""

    def __init__(self, *args: Any) -> None:
        algorithms.add(Spoiling)
        super().__init__(*args)


@pytest.fixture(autouse=True)
def knows(monkeypatch):
    algorithms.names()  # all are read: what is read later would be forgotten again
    monkeypatch.setattr(algorithms, "_entries", dict(algorithms._entries))
    algorithms.add(Spoiling)


def outcome(spoiler: str, make: poison.MakeExecutor, *, absent: bool = False) -> poison.Outcome:
    """The result of a run with the spoiler, or of one in which its client is absent."""
    return poison.outcome_of(assembly(spoiler), make, absent=absent)


def assembly(spoiler: str) -> Assembly:
    keys = {
        "algorithm": {"name": "spoiling", "spoiler": spoiler},
        "faults.on_client_error": "drop",
        "model.group": "cnn2",
    }
    return Assembly(from_tree(dict(poison.TREE), keys.items()))


@pytest.fixture(scope="module")
def absent():
    algorithms.add(Spoiling)
    try:
        return outcome("", poison.serial, absent=True)
    finally:
        del algorithms._entries["spoiling"]


@pytest.mark.parametrize("spoiler", SPOILERS)
def test_a_spoiler_reaches_nobody_else(absent, spoiler):
    before = signal.getsignal(signal.SIGINT), dict(os.environ), os.getcwd(), sys.stdout
    found = outcome(spoiler, poison.serial)
    assert [client for client, _ in found.events] == [poison.VICTIM]
    assert found.differs_from(absent) == ""
    assert before == (signal.getsignal(signal.SIGINT), dict(os.environ), os.getcwd(), sys.stdout)


@pytest.mark.ray
@pytest.mark.long
def test_nor_on_workers(absent, monkeypatch):
    monkeypatch.setattr(poison, "Worker", Worker)
    with poison.on_two_workers() as on_ray:
        for spoiler in SPOILERS:
            found = outcome(spoiler, on_ray)
            assert [client for client, _ in found.events] == [poison.VICTIM], spoiler
            assert found.differs_from(absent) == "", spoiler
