"""FedAvg and FedProx against a plain loop that knows nothing of this package but its inputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from reference import ReferenceClient, assert_close, layers, set_parameters, weighted_mean
from torch import nn

WIDE = {"model.group": "cnn2", "model.feature_dim": 128}


def network(weights):
    """The layers of `cnn2` with a head of 10 and the given weights."""
    model = nn.Sequential(layers("cnn2"), nn.Linear(128, 10))
    set_parameters(model.parameters(), weights)
    return model


@pytest.mark.parametrize(("method", "mu"), [("fedavg", 0.0), ("fedprox", 0.1)])
def test_five_rounds_agree_in_every_parameter(run, method, mu):
    changes = {**WIDE, "rounds": 5, "local_epochs": 2, **({"algorithm.mu": mu} if mu else {})}
    done = run(method, changes)
    clients = [ReferenceClient(done.assembly, number) for number in range(4)]
    x = [*done.servers[0]["model"].values()]
    for round_ in range(1, 6):
        models = {}
        for number, client in enumerate(clients):
            model = models[number] = network(x)

            def loss(images, labels, model=model, x=x):
                pairs = zip(model.parameters(), x, strict=True)
                distance = sum(((w - w0) ** 2).sum() for w, w0 in pairs)
                return F.cross_entropy(model(images), labels) + mu / 2 * distance

            client.train(round_, loss, torch.optim.SGD(model.parameters(), 0.05), epochs=2)
        x = weighted_mean(models, {k: len(client.labels) for k, client in enumerate(clients)})
    assert_close(x, done.servers[-1]["model"], 1e-6)


def test_one_full_batch_step_each_is_one_centralised_gradient_step(run):
    done = run("fedavg", {**WIDE, "rounds": 1, "batch_size": 1000})
    clients = [ReferenceClient(done.assembly, number) for number in range(4)]
    model = network(done.servers[0]["model"].values())
    images, labels = (torch.cat([getattr(c, n) for c in clients]) for n in ("images", "labels"))
    F.cross_entropy(model(images), labels).backward()
    expected = [parameter.detach() - 0.05 * parameter.grad for parameter in model.parameters()]
    assert_close(expected, done.servers[1]["model"], 1e-6)
