"""Tests are isolated as steps are."""

from __future__ import annotations

import random
from typing import Any

import torch
from answers import run_tests
from torch import nn

from fedray.runtime.groups import GroupRunner

CPU = torch.device("cpu")


def prepared(assemble, method: str, changes: dict[str, Any], kind=GroupRunner):
    """Return a fresh runtime with the download of all clients."""
    assembly = assemble(method, changes)
    server = assembly.server(CPU)
    state = assembly.algorithm.init_server(server)
    return kind(assembly, CPU), assembly.algorithm.downlink(state, range(4), server)


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
