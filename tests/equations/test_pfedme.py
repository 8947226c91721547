"""pFedMe: the personal model of a quadratic, the outer step, the server's step."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tensors import CPU, same
from torch import nn

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.personalised.pfedme import PFedMe
from fedray.base.streams import Streams
from fedray.core import Client, ClientState, Samples, Setting, Skeleton, TrainingConfig
from fedray.models import Classifier, ClassifierOutput
from fedray.runtime.groups import GroupRunner

H = torch.tensor([[3.0, 1.0], [1.0, 2.0]])
B = torch.tensor([1.0, -2.0])
W = torch.tensor([4.0, -1.0])


class Point(Classifier):
    """Two parameters."""

    head = nn.Identity()

    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return ClassifierOutput(self.p, self.p)


class Quadratic(PFedMe):
    """f(p) = p^T H p / 2 - b^T p on every batch."""

    def loss(self, output, batch, local):
        return output.logits @ H @ output.logits / 2 - B @ output.logits


def step(images: int = 1, lr: float = 0.02, **hparams):
    """A client's step from W: what it sends of w, and its theta."""
    training = TrainingConfig(epochs=1, batch_size=2, lr=lr)
    setting = Setting(("a",), 2, 1, 1, training, Streams(0))
    data = Samples(np.zeros((images, 2), np.float32), np.zeros(images, np.int64), np.arange(images))
    client = Client(0, 1, setting, data, "point", Skeleton(Point()), dict, torch.device("cpu"))
    method = Quadratic(**hparams).with_setting(setting)
    sent, state = method.client_update(client, ClientState({}), FedAvg.down({"p": W.clone()}))
    assert sent["samples"] == images
    return sent["model"]["p"], state.model["p"]


def test_inner_steps_end_at_the_proximal_point_and_the_outer_step_goes_towards_it():
    lambda_, eta = 15.0, 0.005
    sent, theta = step(inner_steps=400, lambda_=lambda_, eta=eta)
    fixed_point = torch.linalg.solve(H + lambda_ * torch.eye(2), B + lambda_ * W)
    torch.testing.assert_close(theta, fixed_point, rtol=1e-5, atol=0)
    torch.testing.assert_close(sent, W - eta * lambda_ * (W - fixed_point), rtol=1e-5, atol=0)


def test_one_inner_step_is_one_gradient_step():
    sent, theta = step(inner_steps=1, eta=1 / 15)
    torch.testing.assert_close(theta, W - 0.02 * (H @ W - B))  # theta = w, so nothing holds it
    torch.testing.assert_close(sent, theta)  # eta lambda = 1


@pytest.mark.parametrize(("beta", "expected"), [(1.0, 6.0), (0.5, 4.0), (2.0, 10.0)])
def test_the_server_goes_beta_of_the_way_to_the_plain_mean(beta, expected):
    method = PFedMe(beta=beta)
    uplinks = {
        0: FedAvg.up({"p": torch.tensor(4.0), "v": torch.tensor(1.0)}, 30),
        1: FedAvg.up({"p": torch.tensor(8.0), "v": torch.tensor(3.0)}, 10),
    }
    state = {"model": {"p": torch.tensor(2.0), "v": torch.tensor(9.0)}}
    model = torch.nn.Module()
    model.register_buffer("v", torch.tensor(0.0))
    server = SimpleNamespace(model=model)
    after = method.server_update(state, uplinks, server)
    assert after["model"]["p"].item() == pytest.approx(expected)
    assert after["model"]["v"].item() == pytest.approx(2.0)  # a running variance stays positive


def test_personal_models_are_tested_and_only_the_global_one_travels(run):
    hparams = {"algorithm.lambda": 1, "algorithm.eta": 0.5}
    changes = {"model.group": "cnn2", "participation": 0.5, "lr": 0.3, "rounds": 4}
    runs = [
        run("pfedme", {**changes, **hparams, "algorithm.test": t}) for t in ("personal", "global")
    ]
    personal, common = (done.servers[-1]["model"] for done in runs)
    assert same(personal, common)
    client = runs[0].results[1].participants[0]
    theta = runs[0].models[client]
    assert not torch.equal(theta["head.weight"], common["head.weight"])
    for done, tested in zip(runs, (theta, common), strict=True):
        method, runtime = done.assembly.algorithm, GroupRunner(done.assembly, CPU)
        down = method.downlink(done.servers[-1], [client], done.assembly.server(CPU))[client]
        state = ClientState(done.models.get(client, {}))
        loaded = method.begin(runtime.client(client, 4), state, down).model.state_dict()
        assert torch.equal(loaded["head.weight"], tested["head.weight"])
