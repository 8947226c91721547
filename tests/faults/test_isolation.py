"""A failed step changes nothing for the steps after it: torch's flags, generators, models, data."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tensors import CPU, same

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.base.errors import ClientError
from fedray.core import Client, ClientState, algorithms
from fedray.runtime import devices
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import pick_device
from fedray.runtime.isolation import FLAGS, Isolation
from fedray.runtime.serial import SerialExecutor

VICTIM, ROUND = 1, 2
CHANGES = {"model.group": "cnn2"}


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


SPOILERS: dict[str, Callable[[Client], object]] = {
    "default dtype": lambda c: torch.set_default_dtype(torch.float64),
    "grad mode": lambda c: torch.set_grad_enabled(False),
    "threads": lambda c: torch.set_num_threads(3),
    "deterministic": lambda c: torch.use_deterministic_algorithms(True),
    "matmul precision": lambda c: torch.set_float32_matmul_precision("medium"),
    "torch's generator": lambda c: torch.manual_seed(3),
    "numpy's generator": lambda c: np.random.seed(3),  # noqa: NPY002
    "python's generator": lambda c: random.seed(3),
    "requires_grad": lambda c: freeze(c),
    "hooks": lambda c: halve(c),
    "mode of one module": lambda c: next(c.skeleton.model.children()).eval(),
    "learning rate": lambda c: faster(c),
    "parameters": lambda c: replace_parameters(c),
    "labels": lambda c: c.train._all_labels.fill(0),
    "images": lambda c: c.train._stored.fill(0),
    "indices": lambda c: c.train.index.fill(0),
    "exits": lambda c: sys.exit(0),
}


class Spoiling(FedAvg):
    """FedAvg with a client that spoils what it can reach and then fails; others are sensitive."""

    name = "spoiling"

    spoiler: str = ""

    def init_client(self, client: Client) -> ClientState:
        return ClientState(super().init_client(client).model, {"seen": torch.ones(2)})

    def client_update(self, client: Client, state: ClientState, down: Any) -> Any:
        if (client.id, client.round) == (VICTIM, ROUND):
            if self.spoiler:
                SPOILERS[self.spoiler](client)
            raise ArithmeticError("spoilt")
        up, after = super().client_update(client, state, down)
        drawn = F.dropout(torch.ones(4)).sum() + np.random.rand() + random.random()  # noqa: NPY002
        seen = [state.memory["seen"].double() + 1, drawn.double()[None]]
        threads = torch.tensor([torch.get_num_threads()])
        return up, ClientState(after.model, {"seen": torch.cat([*seen, threads])})


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    algorithms.names()  # all are read: what is read later would be forgotten again
    monkeypatch.setattr(algorithms, "_entries", dict(algorithms._entries))
    algorithms.add(Spoiling)


def stepped(assembly: Assembly) -> tuple[list[Any], SerialExecutor]:
    """Step all clients in three rounds; return the last uploads, and the executor."""
    server, executor = assembly.server(CPU), SerialExecutor(assembly, CPU)
    clients, method = range(assembly.plan.clients), assembly.algorithm
    down = method.downlink(method.init_server(server), clients, server)
    for round_ in (ROUND - 1, ROUND, ROUND + 1):
        called = dict(down)
        if round_ == ROUND:
            with pytest.raises(ClientError, match=f"^client {VICTIM}, round {ROUND}, "):
                executor.run("step", "client_update", round_, {VICTIM: called.pop(VICTIM)})
        replies, _ = executor.run("step", "client_update", round_, called)
    return [replies[client].uplink for client in clients], executor


@pytest.fixture(scope="module")
def kept() -> list[Any]:
    """The uploads and states after a step that fails and spoils nothing."""
    return []


@pytest.mark.parametrize("spoiler", SPOILERS)
def test_a_failed_step_changes_nothing_for_later_ones(assemble, kept, spoiler):
    """A worker of a pool also runs the steps after a resume, and those of other runs."""
    kept[:] = kept or stepped(assemble("spoiling", CHANGES))
    uploads, executor = stepped(assemble("spoiling", {**CHANGES, "algorithm.spoiler": spoiler}))
    for client, (one, other) in enumerate(zip(kept[0], uploads, strict=True)):
        assert same(one.model, other.model)
        seen = (each.states.get(client).memory["seen"] for each in (kept[1], executor))
        assert torch.equal(*seen)


def draw() -> list[float]:
    return [np.random.rand(), random.random(), torch.rand(()).item()]  # noqa: NPY002


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_step_inside_a_step_leaves_its_draws_alone(depth):
    isolation = Isolation(torch.device("cpu"))

    def nested(left: int) -> None:
        if left:
            with isolation.group(left):
                draw()
                nested(left - 1)
                draw()

    with isolation.group(7):
        expected = [draw(), draw()]
    with isolation.group(7):
        first = draw()
        nested(depth)
        assert [first, draw()] == expected


def test_float32_on_a_gpu_is_float32_in_every_step(monkeypatch):
    flags = [read() for read, _ in FLAGS]
    environment, kept = dict(os.environ), torch.backends.cuda.matmul.allow_tf32
    monkeypatch.setattr(devices, "accelerator", lambda: "cuda")
    try:
        assert pick_device(1) == torch.device("cuda")
        assert not torch.backends.cudnn.allow_tf32
        assert not torch.backends.cuda.matmul.allow_tf32
        with Isolation(torch.device("cpu")).group(0):
            torch.backends.cudnn.allow_tf32 = True
        assert not torch.backends.cudnn.allow_tf32
    finally:
        os.environ.clear()
        os.environ.update(environment)
        torch.backends.cuda.matmul.allow_tf32 = kept
        for (_, restore), value in zip(FLAGS, flags, strict=True):
            restore(value)
