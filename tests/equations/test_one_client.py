"""With one client, a method is centralised training on its loss, written here as a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from reference import BatchLoss, ReferenceClient, initial_model, supervised
from torch import Tensor, nn

from fedray.algorithms.text_guided.fedglcl import BIAS, WEIGHT
from fedray.models import Pixels

CNN2 = {"model.group": "cnn2"}
PROJECTED = {"model.group": "cnn3", "model.projector": 24}
MOMENTUM = {"optimizer.momentum": 0.9}


class Loop(NamedTuple):
    """The loss of a batch, further parameters that learn, and the part of the model that does."""

    loss: BatchLoss
    extra: Mapping[str, Tensor] = {}
    part: str = ""


def cross_entropy(done: Any, labels: Tensor, model: nn.Module) -> Loop:
    return Loop(supervised(model))


def body_alone(done: Any, labels: Tensor, model: nn.Module) -> Loop:
    return Loop(supervised(model), part="extractor")


def calibrated(done: Any, labels: Tensor, model: nn.Module) -> Loop:
    margins = torch.bincount(labels, minlength=10).float() ** -0.25

    def loss(images: Tensor, y: Tensor) -> Tensor:
        g = model(Pixels(images)).logits - margins
        return (g.exp().sum(1).log() - g.gather(1, y[:, None]).squeeze(1)).mean()

    return Loop(loss)


def of_a_simplex(done: Any, labels: Tensor, model: nn.Module) -> Loop:
    prior = torch.bincount(labels, minlength=10).log()
    scale = torch.tensor(1.0, requires_grad=True)

    def loss(images: Tensor, y: Tensor) -> Tensor:
        unit = F.normalize(model(Pixels(images)).logits, dim=1)
        return F.cross_entropy(scale * unit @ done.memories[0]["simplex"].T + prior, y)

    return Loop(loss, {"scale": scale})


def to_texts(done: Any, labels: Tensor, model: nn.Module) -> Loop:
    text = F.normalize(done.memories[0]["text"], dim=1, eps=1e-8)

    def loss(images: Tensor, y: Tensor) -> Tensor:
        unit = F.normalize(model(Pixels(images)).features, dim=1, eps=1e-8)
        return F.cross_entropy(unit @ text.T / 0.07, y)

    return Loop(loss)


def to_projected_texts(done: Any, labels: Tensor, model: nn.Module) -> Loop:
    weight, bias = torch.eye(16, requires_grad=True), torch.zeros(16, requires_grad=True)

    def loss(images: Tensor, y: Tensor) -> Tensor:
        text = F.normalize(done.memories[0]["text"] @ weight.T + bias, dim=1)
        unit = F.normalize(model(Pixels(images)).features, dim=1)
        return F.cross_entropy(unit @ text.T / 0.07, y)

    return Loop(loss, {WEIGHT: weight, BIAS: bias})


LOOPS: list[tuple[str, dict[str, Any], Callable[..., Loop], bool]] = [
    ("fedavg", {**CNN2, "rounds": 3, "local_epochs": 2}, cross_entropy, True),
    ("fedbabu", {**CNN2, "optimizer.weight_decay": 0.01}, body_alone, True),
    ("fedlc", CNN2, calibrated, False),
    ("fedetf", {**CNN2, **MOMENTUM}, of_a_simplex, False),
    ("fedglcl", PROJECTED, to_texts, True),
    (
        "fedglcl_l",
        {**PROJECTED, **MOMENTUM, "optimizer.weight_decay": 0.01, "algorithm.blocks": 0},
        to_projected_texts,
        False,
    ),
]


@pytest.mark.parametrize(("method", "changes", "loop", "is_exact"), LOOPS, ids=lambda x: str(x)[:9])
def test_one_client_is_centralised_training(run, method, changes, loop, is_exact):
    done = run(method, {"rounds": 2, **changes, "data.clients": 1})
    has_head = method not in ("fedglcl", "fedglcl_l")
    headless = {} if has_head else {"num_classes": 0, "hidden": 24}
    client = ReferenceClient(done.assembly)
    model = initial_model(done.assembly, changes["model.group"], **headless)
    loss, extra, part = loop(done, client.labels, model)
    sgd = torch.optim.SGD(
        [*model.get_submodule(part).parameters(), *extra.values()],
        0.05,
        momentum=changes.get("optimizer.momentum", 0),
        weight_decay=changes.get("optimizer.weight_decay", 0),
    )
    for round_, state in enumerate(done.servers[1:], 1):
        sgd.state.clear()
        client.train(round_, loss, sgd, epochs=changes.get("local_epochs", 1))
        found = {**state["model"], **state.get("extra", {}), **done.memories[0].get("head", {})}
        for name, tensor in {**model.state_dict(), **extra}.items():
            if is_exact:
                assert torch.equal(found[name], tensor), (round_, name)
            else:
                torch.testing.assert_close(found[name], tensor.detach(), rtol=1e-4, atol=1e-5)
    for name, tensor in extra.items():
        assert (done.servers[0]["extra"][name] - tensor).abs().max() > 0.01, name
