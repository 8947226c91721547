"""Tests are isolated and seeded as steps are: scores depend on neither order nor grouping."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from answers import run_tests
from torch import nn

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import algorithms, is_tested_together
from fedray.runtime.groups import GroupRunner

CPU = torch.device("cpu")


def prepared(assemble, method: str, changes: dict[str, Any], kind=GroupRunner):
    """Return a fresh runtime with the download of all clients."""
    assembly = assemble(method, changes)
    server = assembly.server(CPU)
    state = assembly.algorithm.init_server(server)
    return kind(assembly, CPU), assembly.algorithm.downlink(state, range(4), server)


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

    def counts(*groups: list[int], r: int = 1) -> list[Any]:
        return run_tests(runtime, *groups, down=down[0], r=r).tolist()

    alone = [counts([client])[0] for client in range(4)]
    assert counts([0, 1, 2, 3]) == counts([0, 1], [2, 3]) == alone
    again = [counts([client], r=2)[0] for client in range(4)]
    assert again == alone, "a test that still holds is that of a later round, too"
    assert len({repr(one) for one in alone}) > 1


def test_a_test_changes_no_flag_and_no_generator(assemble, monkeypatch):
    runtime, down = prepared(assemble, "fedavg", {"model.group": "mlp", "rounds": 1})
    monkeypatch.setattr(torch.nn.Module, "eval", spoil)
    before = torch.get_rng_state(), random.getstate()
    run_tests(runtime, [0], down=down[0])
    assert torch.get_default_dtype() == torch.float32
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def spoil(self: nn.Module) -> nn.Module:
    torch.set_default_dtype(torch.float64)
    torch.rand(1), random.random()
    return self.train(False)
