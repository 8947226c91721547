"""What steps do is counted where it happens, whatever a method says of itself."""

from __future__ import annotations

import pytest
import torch

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.base.counts import Tallied, counted
from fedray.core.training import batch_sizes
from fedray.storage.run import Work

EPOCHS = 2


def counts(run, name, **changes):
    """Return a first round, images and batches of all clients, and the models' mean size."""
    done = run(name, {"local_epochs": EPOCHS, "rounds": 1, "model.group": "cnn2", **changes})
    sizes = [len(indices) for indices in done.assembly.data.train]
    batches = sum(len(batch_sizes(n, done.assembly.setting.training)) for n in sizes)
    models = [
        sum(
            p.numel()
            for p in done.assembly.models.empty(architecture, torch.device("cpu")).parameters()
        )
        for architecture in done.assembly.models.architectures
    ]
    return done.results[1], sum(sizes), batches, sum(models) / len(models)


def test_an_epoch_of_averaging_is_a_step_a_batch_and_a_pass_of_every_image(run):
    done, images, batches, size = counts(run, "fedavg")
    assert done.client_work == Work(EPOCHS * batches, EPOCHS * images, size)
    assert done.server_work == Work()


@pytest.mark.parametrize(
    ("name", "changes", "steps"),
    [
        ("pfedme", {"algorithm.inner_steps": 3}, 3 * EPOCHS),
        ("fedpac", {"algorithm.head_epochs": 3}, 3 + EPOCHS),
        ("fedfa_anchors", {}, 2 * EPOCHS),
    ],
)
def test_further_steps_on_a_batch_are_counted(run, name, changes, steps):
    done, _, batches, _ = counts(run, name, **changes)
    assert done.client_work.steps == steps * batches


def test_a_method_that_trains_nothing_has_no_steps(run):
    done = run("zero_shot", {"rounds": 1}).results[1]
    assert done.client_work == done.server_work == Work()


def test_the_servers_steps_are_its_own(run):
    done, _, batches, _ = counts(run, "fedgen", **{"algorithm.server_epochs": 7})
    assert done.server_work.steps == 7
    assert done.client_work.steps == EPOCHS * batches


def five_times(self, local):
    """Train five times, and say nothing."""
    for _ in range(4):
        TRAIN(self, local)
    return TRAIN(self, local)


def by_hand(self, local):
    """Train, then descend once more along each batch without an optimiser."""
    done = TRAIN(self, local)
    for batch in local.client.batches(local.client.train, batch_size=16):
        with torch.enable_grad():
            self.loss(local.model(batch.inputs), batch, local).backward()
        for weight in local.model.parameters():
            weight.data.sub_(weight.grad, alpha=0.01)
            weight.grad = None
    return done


TRAIN = FedAvg.train


def test_a_plug_in_that_takes_five_times_the_steps_shows(run, monkeypatch):
    monkeypatch.setattr(FedAvg, "train", five_times)
    done, images, batches, size = counts(run, "fedavg")
    assert done.client_work == Work(5 * EPOCHS * batches, 5 * EPOCHS * images, size)


def test_a_loop_without_an_optimiser_shows_in_the_images(run, monkeypatch):
    monkeypatch.setattr(FedAvg, "train", by_hand)
    done, images, batches, size = counts(run, "fedavg")
    assert done.client_work == Work(EPOCHS * batches, (EPOCHS + 1) * images, size)


def test_a_clients_steps_are_not_the_servers():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight, torch.nn.Parameter(torch.ones(5))], 0.1)
    weight.grad = torch.ones(3)
    with counted() as server:
        optimizer.step()
        with counted() as client:
            optimizer.step()
            optimizer.step()
        optimizer.step()
    optimizer.step()
    assert (server.steps, client.steps) == (2, 2)
    assert client.parameters == 3  # the other has no gradient


def test_the_work_of_clients_and_rounds():
    first, second = Work(2, 20, 10), Work(3, 30, 4)
    assert Tallied(2, 20, 10).then(Tallied(3, 30, 4)) == Tallied(5, 50, 10)
    assert Work.total([first, second, Work(0, 7, 0)]) == Work(5, 57, 7)
    assert Work.total([]) == Work()
