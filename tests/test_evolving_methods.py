"""What methods know of a client's images follows `data.evolution`.

That every method runs when the data changes, and resumes there, is in on_pretended_device.py.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedray.algorithms.averaging.class_counts import CountsClasses
from fedray.runtime.ray_executor import RayExecutor

LAST = 3
EVOLVING = {
    "rounds": LAST,
    "data.evolution.phases": [{"round": LAST, "partition": {"name": "iid"}}],
    "data.partition": {"name": "dirichlet", "alpha": 0.2},
    "model.group": "cnn2",
}


def class_counts(data, client):
    """Of the client's training images, by class [10]."""
    return np.bincount(data.images.labels[data.train[client]], minlength=10).tolist()


@pytest.mark.parametrize("method", ["fedlc", "fedetf"])
def test_classes_are_counted_anew(run, monkeypatch, method):
    counted, begin = {}, CountsClasses.begin

    def watch(self, client, state, down):
        local = begin(self, client, state, down)
        counted[client.round, client.id] = local.state.memory["counts"].tolist()
        return local

    monkeypatch.setattr(CountsClasses, "begin", watch)
    done = run(method, EVOLVING)
    data = done.assembly.data
    last = {client: counts for (round_, client), counts in counted.items() if round_ == LAST}
    assert last
    for client, counts in last.items():
        assert counts == class_counts(data.at(LAST), client) != class_counts(data, client)


def test_the_server_asks_for_counts_anew(run):
    few = {"server_epochs": 1, "hidden_dim": 8, "noise_dim": 4}
    done = run("fedgen", {**EVOLVING, **{f"algorithm.{key}": n for key, n in few.items()}})
    data = done.assembly.data
    for round_ in (LAST - 1, LAST):
        counts = done.servers[round_]["counts"]
        held = {client: class_counts(data.at(round_), int(client)) for client in counts}
        assert {client: found.tolist() for client, found in counts.items()} == held
    asked = [done.results[r].up.params.get("statistics") for r in (0, 1, 2, LAST)]
    assert asked == [40, 4, 4, 40 + 4]


def test_features_are_made_anew(run):
    done = run("fedconcat", {**EVOLVING, "algorithm.clusters": 2, "algorithm.cluster_rounds": 1})
    data = done.assembly.data.at(LAST)
    for client, memory in done.memories.items():
        assert len(memory["features"]) == len(data.train[client])
    first, again = (done.results[round_].down.params for round_ in (LAST - 1, LAST))
    assert again == first  # the encoders and the classifier


def test_validation_images_are_exchanged_anew(run):
    keys = {key: value for key, value in EVOLVING.items() if key != "model.group"}
    small = {"data.samples": 120, "data.clients": 3, "data.validation_fraction": 0.2}
    done = run("dp2fl", {**keys, **small, "algorithm.length": 2})
    data = done.assembly.data
    for round_ in (LAST - 1, LAST):
        now = data.at(round_)
        for owner, kept in done.servers[round_]["validation"].items():
            expected = data.images.labels[now.validation[int(owner)]]
            assert torch.equal(kept["labels"], torch.from_numpy(expected))
    for memory in done.memories.values():
        for owner, kept in memory["validation"].items():
            assert torch.equal(kept["labels"], done.servers[LAST]["validation"][owner]["labels"])


def test_validation_images_that_their_owners_no_longer_have_are_not_measured(run):
    """Not even by clients that were sent them before the change and take part after it."""
    keys = {key: value for key, value in EVOLVING.items() if key != "model.group"}
    small = {"data.samples": 160, "data.clients": 4, "data.validation_fraction": 0.2}
    done = run(
        "dp2fl", {**keys, **small, "algorithm.length": 2, "participation": 0.5, "rounds": LAST + 1}
    )
    for round_ in (LAST, LAST + 1):
        have_asked = {c for result in done.results[LAST : round_ + 1] for c in result.participants}
        asked = {int(owner) for owner in done.servers[round_]["validation"]}
        assert asked == have_asked
        if round_ == LAST:
            assert len(asked) == 2
        holds = done.assembly.algorithm._holds(done.servers[round_])
        for client in done.results[round_].participants:
            measured = {owner for owner in range(4) if holds[client, owner]}
            assert measured == asked, "a client measures on what its owners have now"
    now = done.servers[-1]["validation"]
    for client in done.results[-1].participants:
        for owner, kept in done.memories[client]["validation"].items():
            assert torch.equal(kept["labels"], now[owner]["labels"])


@pytest.mark.slow
def test_workers_are_given_clients_by_the_images_that_these_have_now(assemble):
    assembly = assemble("fedavg", EVOLVING)
    executor = RayExecutor(assembly, pool=None)
    for round_ in (0, LAST - 1, LAST):
        assert executor._images(round_) == [len(part) for part in assembly.data.at(round_).train]
