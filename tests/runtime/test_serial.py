"""Execution in one process."""

from __future__ import annotations

import pytest
import torch
from tensors import same

from fedray.base.errors import ClientError
from fedray.core import ClientState
from fedray.runtime.serial import SerialExecutor

CPU = torch.device("cpu")


def test_a_failed_step_leaves_the_state_as_it_was(assemble, monkeypatch):
    assembly = assemble("fedavg", {"model.group": "cnn2"})
    executor = SerialExecutor(assembly, CPU)
    before = ClientState(assembly.models.initial("cnn2"), {"kept": torch.ones(2)})
    executor.states.put({0: before})

    def step(client, state, down):
        return "no payload", ClientState({}, {})

    monkeypatch.setitem(vars(assembly.algorithm), "client_update", step)
    with pytest.raises(ClientError):
        executor.run("step", "client_update", 1, {0: None, 1: None})
    ((client, after),) = executor.states.items()
    assert client == 0
    assert same(after.model, before.model)
    assert after.memory["kept"].tolist() == [1, 1]


def test_threads_are_honoured(assemble):
    before = torch.get_num_threads()
    try:
        SerialExecutor(assemble("local", {"threads": 2}), CPU)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
