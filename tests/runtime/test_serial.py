"""Execution in one process."""

from __future__ import annotations

import pytest
import torch
from tensors import same

from fedray.config import EXECUTION_KEYS
from fedray.core import ClientState
from fedray.errors import ClientError
from fedray.runtime.serial import CLUSTER_KEYS, SerialExecutor, unused_keys

CPU = torch.device("cpu")


def test_a_failed_step_leaves_the_state_as_it_was(assemble, monkeypatch):
    assembly = assemble("fedavg", {"model.group": "cnn2"})
    executor = SerialExecutor(assembly, CPU)
    before = ClientState(assembly.models.initial("cnn2"), {"kept": torch.ones(2)})
    executor.states.put({0: before})

    def step(client, state, down):
        return "no payload", ClientState({}, {})

    monkeypatch.setattr(assembly.algorithm, "client_update", step)
    with pytest.raises(ClientError):
        executor.run("step", "client_update", 1, {0: None, 1: None})
    ((client, after),) = executor.states.items()
    assert client == 0
    assert same(after.model, before.model)
    assert after.memory["kept"].tolist() == [1, 1]


HONOURED = {
    "threads": "the constructor sets them",
    "gpus": "the device; the command refuses it where there is none",
    "server_gpus": "the server's device",
    "checkpoint_every": "the session writes them",
    "keep.models": "the session keeps them",
    "data.root": "read by the assembly",
    "data.download": "read by the assembly",
}


def test_every_key_of_execution_is_honoured_or_refused_or_said_to_be_without_effect():
    assert {*HONOURED, *CLUSTER_KEYS} == {*EXECUTION_KEYS, "threads"}


def test_keys_for_a_cluster_are_said_to_be_without_effect(assemble):
    assert unused_keys(assemble("local").experiment) == ""
    keys = {"workers": 3, "cpus": 1.5, "faults.max_failures": 0}
    assert unused_keys(assemble("local", keys).experiment) == (
        "without effect in one process: workers=3, cpus=1.5, faults.max_failures=0"
    )


def test_threads_are_honoured(assemble):
    before = torch.get_num_threads()
    try:
        SerialExecutor(assemble("local", {"threads": 2}), CPU)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
