"""FedBABU: the head stays, equal everywhere, and does not travel after the first time."""

from __future__ import annotations

import pytest
import torch

HEAD = {"head.weight", "head.bias"}


@pytest.mark.parametrize("group", ["cnn2", "cnn3"])
@pytest.mark.parametrize("init", ["shared", "independent"])
def test_every_client_keeps_the_servers_initial_head(run, group, init):
    changes = {"model.group": group, "model.init": init, "rounds": 3, "optimizer.weight_decay": 0.1}
    done = run("fedbabu", changes)
    initial = done.assembly.models.initial(group)
    assert set(done.memories) == {0, 1, 2, 3}
    for memory in done.memories.values():
        assert set(memory["head"]) == HEAD
        assert all(torch.equal(memory["head"][name], initial[name]) for name in HEAD)
    body = done.servers[0]["model"]
    assert all(torch.equal(tensor, initial[name]) for name, tensor in body.items())


def test_clients_own_initial_heads_would_differ(assemble):
    assembly = assemble("fedbabu", {"model.group": "cnn2", "model.init": "independent"})
    one, other = assembly.models.initial("cnn2", 0), assembly.models.initial("cnn2", 1)
    assert not torch.equal(one["head.weight"], other["head.weight"])


def test_absent_clients_have_the_head_too(run):
    changes = {"model.group": "cnn2", "model.init": "independent", "participation": 0.5}
    done = run("fedbabu", {**changes, "rounds": 1})
    assert len(done.results[1].participants) == 2
    heads = [done.memories[client]["head"]["head.weight"] for client in range(4)]
    assert all(torch.equal(heads[0], head) for head in heads[1:])


def test_the_body_learns_running_statistics_included(run):
    done = run("fedbabu", {"model.group": "cnn3", "rounds": 1})
    before, after = (state["model"] for state in done.servers)
    assert not [name for name, tensor in after.items() if torch.equal(tensor, before[name])]
