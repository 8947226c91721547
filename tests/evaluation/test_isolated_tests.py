"""Tests are isolated and seeded as steps are: scores depend on neither order nor grouping."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import algorithms, is_tested_together
from fedray.models.architectures import architectures
from fedray.plugin import architecture
from fedray.runtime.clients import ClientRuntime
from fedray.runtime.stacked import StackedRuntime

CPU = torch.device("cpu")
SETS = {"model.group": "dropping", "rounds": 1, "finetune_epochs": 4, "lr": 2.0}


@pytest.fixture
def dropping(monkeypatch):
    """Register a network with dropout for one test."""
    architectures.names()  # loads the shipped ones, which must stay
    monkeypatch.setattr(architectures, "_entries", dict(architectures._entries))

    @architecture("dropping")
    def build(channels: int, image_size: int) -> nn.Module:
        """Build a hidden layer with dropout."""
        inputs = channels * image_size**2
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Dropout(0.5))


def prepared(assemble, method: str, changes: dict[str, Any], kind=ClientRuntime):
    """Return a fresh runtime with the download of all clients."""
    assembly = assemble(method, changes)
    server = assembly.server(CPU)
    state = assembly.algorithm.init_server(server)
    return kind(assembly, CPU), assembly.algorithm.downlink(state, range(4), server)


def scores_in_order(assemble, name: str, order: list[int], kind=ClientRuntime, **changes: Any):
    """Return each client's scores in a test, with the clients in an order."""
    runtime, down = prepared(assemble, "fedavg", {**SETS, **changes}, kind)
    replies = {client: runtime.test(name, 1, (client,), None, down[client])[0] for client in order}
    assert all(reply.failure is None for reply in replies.values())
    return {client: replies[client].scores for client in sorted(replies)}


def test_fine_tuning_with_dropout_depends_on_no_other_client(dropping, assemble):
    in_order = scores_in_order(assemble, "finetune", [0, 1, 2, 3])
    assert scores_in_order(assemble, "finetune", [3, 1, 0, 2]) == in_order
    torch.manual_seed(5)
    assert scores_in_order(assemble, "finetune", [2]) == {2: in_order[2]}
    assert scores_in_order(assemble, "finetune", [0, 1, 2, 3], seed=1) != in_order


def test_stacked_runs_test_like_others(dropping, assemble):
    alone = scores_in_order(assemble, "finetune", [0, 1, 2, 3])
    stacked = scores_in_order(assemble, "finetune", [2, 1, 3, 0], StackedRuntime, stacked=2)
    assert stacked == alone


def torch_noise(shape: torch.Size) -> torch.Tensor:
    return torch.rand(shape)


def numpy_noise(shape: torch.Size) -> torch.Tensor:
    return torch.from_numpy(np.random.rand(*shape))  # noqa: NPY002


def python_noise(shape: torch.Size) -> torch.Tensor:
    return torch.tensor([random.random() for _ in range(shape.numel())]).view(shape)


@pytest.mark.parametrize("noise", [torch_noise, numpy_noise, python_noise])
def test_a_group_gets_the_scores_that_each_gets_alone(assemble, monkeypatch, noise):
    """Predictions that draw random numbers, as with dropout that stays on (Monte Carlo)."""
    algorithms.names()  # loads the shipped ones, which must stay
    monkeypatch.setattr(algorithms, "_entries", dict(algorithms._entries))

    @algorithms.add
    class Drawing(FedAvg):
        name = "drawing"
        one_model = True
        draws: Callable[[torch.Size], torch.Tensor] = staticmethod(noise)

        def predict(self, output, local):
            return output.logits + 10 * self.draws(output.logits.shape)

    runtime, down = prepared(assemble, "drawing", {"model.group": "mlp", "rounds": 1})
    assert is_tested_together(runtime.assembly.algorithm)

    def scores(*groups: list[int]):
        tested = [
            reply
            for group in groups
            for reply in runtime.test("evaluate", 1, group, None, down[group[0]])
        ]
        return [reply.scores for reply in tested]

    alone = scores([0], [1], [2], [3])
    assert scores([0, 1, 2, 3]) == alone
    assert scores([0, 1], [2, 3]) == alone
    again = [runtime.test("evaluate", 2, (c,), None, down[c])[0].scores for c in range(4)]
    assert again == alone, "a score that is still valid is that of a later round, too"
    assert len({repr(scored) for scored in alone}) > 1


def test_a_test_changes_no_flag_and_no_generator(assemble, monkeypatch):
    runtime, down = prepared(assemble, "fedavg", {"model.group": "mlp", "rounds": 1})
    monkeypatch.setattr(torch.nn.Module, "eval", spoil)
    before = torch.get_rng_state(), random.getstate()
    runtime.test("evaluate", 1, (0,), None, down[0])
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def spoil(self: nn.Module) -> nn.Module:
    torch.set_default_dtype(torch.float64)
    torch.rand(1), random.random()
    return self.train(False)
