"""MOON's contrast by hand, and what clients remember."""

from __future__ import annotations

import math

import pytest
import torch
from tensors import same

from fedray.algorithms.averaging.moon import frozen_features, model_contrast
from fedray.models import Pixels, build

ONE_KIND = {"model.group": "cnn3"}


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
