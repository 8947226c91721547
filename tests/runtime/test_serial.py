"""Execution in one process."""

from __future__ import annotations

import pytest
import torch
from tensors import same

from fedray.core import ClientState
from fedray.errors import UserError
from fedray.runtime.serial import SerialExecutor

CPU = torch.device("cpu")


def test_a_timeout_is_refused(assemble):
    assembly = assemble("local", {"faults.reply_timeout_s": 5})
    with pytest.raises(UserError, match=r"faults\.reply_timeout_s=5 .* --executor ray"):
        SerialExecutor(assembly, CPU)


def test_a_failed_step_leaves_the_state_as_it_was(assemble, monkeypatch):
    assembly = assemble("fedavg", {"model.group": "cnn2"})
    executor = SerialExecutor(assembly, CPU)
    before = ClientState(assembly.models.initial("cnn2"), {"kept": torch.ones(2)})
    executor.restore({0: before})

    def step(client, state, down):
        return "no payload", ClientState({}, {})

    monkeypatch.setattr(assembly.algorithm, "client_update", step)
    replies = executor.step("client_update", 1, {0: None, 1: None})
    assert all(reply.failure is not None for reply in replies.values())
    ((client, after),) = executor.export([0, 1])
    assert client == 0
    assert same(after.model, before.model)
    assert after.memory["kept"].tolist() == [1, 1]
