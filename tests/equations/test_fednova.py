"""FedNova's normalised average by hand, and where it is FedAvg."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedray.algorithms.averaging.fednova import (
    FedNova,
    effective_steps,
    normalised_average,
)


def test_unequal_steps_do_not_pull_by_hand():
    uplinks = {
        0: FedNova.up({"w": torch.tensor([-1.0])}, 1, 1.0),
        1: FedNova.up({"w": torch.tensor([3.0])}, 1, 3.0),
    }
    method = FedNova()
    server = SimpleNamespace(model=torch.nn.Module())
    found = method.server_update({"model": {"w": torch.zeros(1)}}, uplinks, server)["model"]
    assert found["w"].item() == pytest.approx(0.0, abs=1e-6)  # FedAvg: +1


def test_the_normalised_average_by_hand():
    x, trained = {"w": torch.tensor([2.0])}, {"w": torch.tensor([0.5]).double()}
    found = normalised_average(x, 3.0, 0.75, trained)
    assert found["w"].item() == 2 - 3 * (2 * 0.75 - 0.5)


def test_running_statistics_are_averaged_as_in_fedavg(run):
    changes = {"model.group": "cnn3", "rounds": 1, "data.partition.alpha": 0.2}
    nova, plain = run("fednova", changes), run("fedavg", changes)
    for name, tensor in plain.servers[1]["model"].items():
        if "running" in name or "num_batches" in name:
            assert torch.equal(nova.servers[1]["model"][name], tensor)


def test_effective_steps_are_torchs_own_sums():
    """K steps on the loss w move w by lr times a_i."""
    for momentum, nesterov in ((0.0, False), (0.6, False), (0.6, True)):
        w = torch.zeros(1, requires_grad=True)
        sgd = torch.optim.SGD([w], 1.0, momentum=momentum, nesterov=nesterov)
        for steps in range(1, 6):
            sgd.zero_grad()
            w.sum().backward()
            sgd.step()
            expected = effective_steps(steps, momentum, nesterov=nesterov)
            assert -w.item() == pytest.approx(expected, rel=1e-6)
