"""FedBABU: the head stays, equal everywhere, and does not travel after the first time."""

from __future__ import annotations

import pytest
import torch

HEAD = {"head.weight", "head.bias"}


@pytest.mark.parametrize("group", ["cnn2", "cnn3"])
@pytest.mark.parametrize("init", ["shared", "independent"])
def test_every_client_keeps_the_servers_initial_head(run, group, init):
    changes = {"model.group": group, "model.init": init, "rounds": 2, "optimizer.weight_decay": 0.1}
    changes["participation"] = 0.5  # absent clients have it, too
    done = run("fedbabu", changes)
    initial = done.assembly.models.initial(group)
    assert set(done.memories) == {0, 1, 2, 3}
    for memory in done.memories.values():
        assert set(memory["head"]) == HEAD
        assert all(torch.equal(memory["head"][name], initial[name]) for name in HEAD)
    body = done.servers[0]["model"]
    assert all(torch.equal(tensor, initial[name]) for name, tensor in body.items())
