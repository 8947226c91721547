"""What methods know of a client's images follows `data.evolution`.

That every method runs when the data changes, and resumes there, is in on_pretended_device.py.
"""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

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
    module = importlib.import_module(f"fedray.algorithms.averaging.{method}")
    name, place = ("calibrate", 1) if method == "fedlc" else ("balanced_loss", 2)
    function, used = getattr(module, name), set()

    def watch(*arguments):
        used.add(tuple(arguments[place].tolist()))
        return function(*arguments)

    monkeypatch.setattr(module, name, watch)
    data = run(method, EVOLVING).assembly.data
    expected = [class_counts(data.at(r), client) for r in (1, LAST) for client in range(4)]
    assert used == {*map(tuple, expected)}


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


def test_validation_images_are_exchanged_anew(run):
    keys = {key: value for key, value in EVOLVING.items() if key != "model.group"}
    small = {"data.samples": 120, "data.clients": 3, "data.validation_fraction": 0.2}
    done = run("dp2fl", {**keys, **small, "algorithm.length": 2})
    data = done.assembly.data
    for round_ in (LAST - 1, LAST):
        now = data.at(round_)
        for owner, labels in done.servers[round_]["validation"]["labels"].items():
            expected = data.images.labels[now.validation[int(owner)]]
            assert torch.equal(labels, torch.from_numpy(expected))
    for memory in done.memories.values():
        for owner, labels in memory["validation"]["labels"].items():
            assert torch.equal(labels, done.servers[LAST]["validation"]["labels"][owner])


def test_validation_images_that_their_owners_no_longer_have_are_not_measured(run):
    """Not even by clients that were sent them before the change and take part after it."""
    keys = {key: value for key, value in EVOLVING.items() if key != "model.group"}
    small = {"data.samples": 160, "data.clients": 4, "data.validation_fraction": 0.2}
    done = run(
        "dp2fl", {**keys, **small, "algorithm.length": 2, "participation": 0.5, "rounds": LAST + 1}
    )
    state = done.servers[-1]
    assert done.assembly.algorithm._measured(state).all()
    for memory in done.memories.values():
        for owner, labels in memory["validation"]["labels"].items():
            assert torch.equal(labels, state["validation"]["labels"][owner])


@pytest.mark.slow
def test_workers_are_given_clients_by_the_images_that_these_have_now(assemble):
    assembly = assemble("fedavg", EVOLVING)
    executor = RayExecutor(assembly, pool=None)
    for round_ in (0, LAST - 1, LAST):
        images = [len(part) for part in assembly.data.at(round_).train]
        rate, *_ = executor._rate.values()
        seconds = executor._seconds(round_, range(len(images)))
        assert list(seconds.values()) == [count * rate for count in images]
