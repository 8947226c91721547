"""MOON as a straight loop, and what clients remember."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from reference import ReferenceClient, assert_close, body, set_parameters, weighted_mean
from torch import nn

from fedray.algorithms.averaging.moon import features_under
from fedray.models import Pixels, build

SOME = {
    "model.group": "mlp",
    "data.clients": 4,
    "participation": 0.5,
    "rounds": 4,
    "local_epochs": 2,
}


def test_frozen_features_leave_the_model_alone():
    shape = {"channels": 1, "image_size": 8, "num_classes": 10, "feature_dim": 16}

    def model(seed):
        return build("cnn3", **shape, generator=torch.Generator().manual_seed(seed))

    one, other = model(0), model(1)
    before = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    x = Pixels(torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(2)))
    one.train()
    found = features_under(one, other.state_dict(), x)
    assert torch.equal(found, other.eval()(x).features)
    assert not found.requires_grad
    assert all(module.training for module in one.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in one.state_dict().items())


@pytest.mark.parametrize("first", ["none", "initial"])
def test_eq3_rounds_of_some_clients_agree_with_a_straight_loop(run, first):
    """`first` decides what a client is contrasted with whose first round is a later one."""
    done = run("moon", {**SOME, "algorithm.first": first, "algorithm.mu": 2})
    models = done.assembly.models
    clients = [ReferenceClient(done.assembly, number) for number in range(4)]
    sizes = {number: len(client.labels) for number, client in enumerate(clients)}
    start = [network(models.initial(models.architectures[k], k).values()) for k in range(4)]
    everyone, previous, late = start[0], {}, []
    for round_, result in enumerate(done.results[1:], start=1):
        trained = {}
        for number in result.participants:
            far = previous.get(number)
            if far is None and round_ > 1:
                late.append(number)
                far = start[number] if first == "initial" else None
            now = copy.deepcopy(everyone)
            sgd = torch.optim.SGD(now.parameters(), 0.05)
            loss = partial(moon_loss, now, everyone, far)
            clients[number].train(round_, loss, sgd, epochs=2)
            trained[number] = now
        everyone = network(weighted_mean(trained, sizes))
        previous.update(trained)
        assert_close(everyone.parameters(), done.servers[round_]["model"], 1e-5)
    assert late


def network(weights) -> nn.Sequential:
    """The small experiment's `mlp` with the given weights; features are the first part's."""
    layers = nn.Sequential(body("mlp"), nn.Linear(16, 10))
    set_parameters(layers.parameters(), weights)
    return layers


def moon_loss(now, everyone, far, x, y):
    """Cross-entropy + 2 * Eq. (3) with tau = 0.5; without `far` the cross-entropy alone."""
    z = now[0](x)
    loss = F.cross_entropy(now[1](z), y)
    if far is None:
        return loss
    with torch.no_grad():
        z_glob, z_prev = everyone[0](x), far[0](x)
    to_glob = (F.cosine_similarity(z, z_glob) / 0.5).exp()
    to_prev = (F.cosine_similarity(z, z_prev) / 0.5).exp()
    return loss - 2 * (to_glob / (to_glob + to_prev)).log().mean()
