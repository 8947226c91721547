"""FedAvg and FedProx against a plain loop that knows nothing of this package but its inputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

MU = 0.1


def inputs(assembly):
    """Images in [-1, 1], labels, and each client's own."""
    images = torch.tensor(assembly.data.images.images).float() / 127.5 - 1
    return images, torch.tensor(assembly.data.images.labels), assembly.data.train


def network():
    """The layers of `cnn2` with a head of 10, written down again."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


@pytest.mark.parametrize(("method", "mu"), [("fedavg", 0.0), ("fedprox", MU)])
def test_five_rounds_agree_in_every_parameter(run, method, mu):
    changes = {"model.group": "cnn2", "model.feature_dim": 128, "rounds": 5, "local_epochs": 2}
    if mu:
        changes["algorithm.mu"] = mu
    done = run(method, changes)
    images, labels, owned = inputs(done.assembly)
    model = network()
    x = [tensor.clone() for tensor in done.servers[0]["model"].values()]
    total = sum(len(indices) for indices in owned)
    for round_ in range(1, 6):
        mean = [torch.zeros_like(tensor) for tensor in x]
        for client, indices in enumerate(owned):
            with torch.no_grad():
                for parameter, start in zip(model.parameters(), x, strict=True):
                    parameter.copy_(start)
            sgd = torch.optim.SGD(model.parameters(), 0.05)
            batches = done.assembly.streams.torch("batches", round_=round_, client=client)
            for _ in range(2):
                order = torch.randperm(len(indices), generator=batches)
                chunks = list(order.split(16))
                if len(chunks) > 1 and len(chunks[-1]) == 1:
                    chunks[-2:] = [torch.cat(chunks[-2:])]
                for chunk in chunks:
                    index = torch.tensor(indices)[chunk]
                    sgd.zero_grad()
                    loss = F.cross_entropy(model(images[index]), labels[index])
                    pairs = zip(model.parameters(), x, strict=True)
                    loss = loss + mu / 2 * sum(((w - w0) ** 2).sum() for w, w0 in pairs)
                    loss.backward()
                    sgd.step()
            for part, parameter in zip(mean, model.parameters(), strict=True):
                part += parameter.detach() * (len(indices) / total)
        x = mean
    for expected, (name, found) in zip(x, done.servers[-1]["model"].items(), strict=True):
        assert float((expected - found).abs().max()) < 1e-6, name


def test_one_full_batch_step_each_is_one_centralised_gradient_step(run):
    changes = {"model.group": "cnn2", "model.feature_dim": 128, "rounds": 1, "batch_size": 1000}
    done = run("fedavg", changes)
    images, labels, owned = inputs(done.assembly)
    model = network()
    with torch.no_grad():
        for parameter, start in zip(
            model.parameters(), done.servers[0]["model"].values(), strict=True
        ):
            parameter.copy_(start)
    everyone = torch.cat([torch.tensor(indices) for indices in owned])
    F.cross_entropy(model(images[everyone]), labels[everyone]).backward()
    for parameter, found in zip(model.parameters(), done.servers[1]["model"].values(), strict=True):
        expected = parameter.detach() - 0.05 * parameter.grad
        assert float((expected - found).abs().max()) < 1e-6
