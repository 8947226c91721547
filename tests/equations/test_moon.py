"""MOON's contrast by hand, and what clients remember."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from straight_loop import body
from tensors import same
from torch import nn

from fedray.algorithms.averaging.moon import frozen_features, model_contrast
from fedray.models import Pixels, build

ONE_KIND = {"model.group": "cnn3"}
SOME = {
    "model.group": "mlp",
    "data.clients": 4,
    "participation": 0.5,
    "rounds": 4,
    "local_epochs": 2,
}


def test_eq3_by_hand():
    z = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    near = torch.tensor([[2.0, 0.0], [3.0, 0.0]])  # cosines 1, 0
    far = torch.tensor([[0.0, 1.0], [0.0, 1.0]])  # cosines 0, 1
    expected = [math.log(1 + math.exp((b - a) / 0.5)) for a, b in [(1, 0), (0, 1)]]
    assert model_contrast(z, near, far, 0.5).item() == pytest.approx(sum(expected) / 2)


def test_eq3_equal_models_give_ln_2():
    z = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    assert model_contrast(z, z, z, 0.5).item() == pytest.approx(math.log(2))


def test_frozen_features_leave_the_model_alone():
    shape = {"channels": 1, "image_size": 8, "num_classes": 10, "feature_dim": 16}

    def model(seed):
        return build("cnn3", **shape, generator=torch.Generator().manual_seed(seed))

    one, other = model(0), model(1)
    before = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    x = Pixels(torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(2)))
    one.train()
    found = frozen_features(one, other.state_dict(), x)
    assert torch.equal(found, other.eval()(x).features)
    assert not found.requires_grad
    assert all(module.training for module in one.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in one.state_dict().items())


def test_mu_0_is_fedavg_bit_for_bit_and_mu_1_differs_from_the_second_round_on(run):
    changes = {**ONE_KIND, "rounds": 2}
    plain = run("fedavg", changes)
    free = run("moon", {**changes, "algorithm.mu": 0})
    held = run("moon", changes)
    for round_, state in enumerate(plain.servers):
        assert same(free.servers[round_]["model"], state["model"])
    ours, fedavgs = ([s["model"]["head.weight"] for s in done.servers] for done in (held, plain))
    assert torch.equal(ours[1], fedavgs[1])
    assert not torch.equal(ours[2], fedavgs[2])


def test_clients_remember_their_last_model_and_nothing_of_it_travels(run):
    changes = {**ONE_KIND, "rounds": 2, "participation": 0.5}
    held, plain = run("moon", changes), run("fedavg", changes)
    called = {client for result in held.results for client in result.participants}
    assert set(held.memories) == called
    for memory in held.memories.values():
        assert set(memory) == {"previous"}
        assert set(memory["previous"]) == set(held.servers[0]["model"])
    assert held.results[-1].up == plain.results[-1].up
    assert held.results[-1].down == plain.results[-1].down


@pytest.mark.parametrize("first", ["none", "initial"])
def test_rounds_of_some_clients_agree_with_a_straight_loop(run, first):
    """`first` decides what a client is contrasted with whose first round is a later one."""
    done = run("moon", {**SOME, "algorithm.first": first, "algorithm.mu": 2})
    data, models = done.assembly.data, done.assembly.models
    images = torch.tensor(data.images.images).float() / 127.5 - 1
    labels = torch.tensor(data.images.labels)
    start = [network(models.initial(models.architectures[k], k).values()) for k in range(4)]
    everyone, previous, late = start[0], {}, []
    for round_, result in enumerate(done.results[1:], start=1):
        trained = {}
        for number in result.participants:
            far = previous.get(number)
            if far is None and round_ > 1:
                late.append(number)
                far = start[number] if first == "initial" else None
            now, own = copy.deepcopy(everyone), torch.tensor(data.train[number])
            sgd = torch.optim.SGD(now.parameters(), 0.05)
            order = done.assembly.streams.torch("batches", round_=round_, client=number)
            for _ in range(2):
                chunks = list(torch.randperm(len(own), generator=order).split(16))
                if len(chunks) > 1 and len(chunks[-1]) == 1:
                    chunks[-2:] = [torch.cat(chunks[-2:])]
                for chunk in chunks:
                    sgd.zero_grad()
                    moon_loss(now, everyone, far, images[own[chunk]], labels[own[chunk]]).backward()
                    sgd.step()
            trained[number] = now
        everyone = mean(trained, {k: len(data.train[k]) for k in trained})
        previous.update(trained)
        weights = done.servers[round_]["model"].values()
        for mine, value in zip(everyone.parameters(), weights, strict=True):
            torch.testing.assert_close(mine.detach(), value, atol=1e-5, rtol=0)
    assert late


def network(weights) -> nn.Sequential:
    """The small experiment's `mlp` with the given weights; features are the first part's."""
    layers = nn.Sequential(body(0), nn.Linear(16, 10))
    with torch.no_grad():
        for mine, value in zip(layers.parameters(), weights, strict=True):
            mine.copy_(value)
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


def mean(trained, sizes) -> nn.Sequential:
    """The mean of the clients' networks by samples."""
    total = sum(sizes.values())
    return network(
        sum(sizes[k] / total * value for k, value in zip(trained, each, strict=True))
        for each in zip(*(model.parameters() for model in trained.values()), strict=True)
    )
