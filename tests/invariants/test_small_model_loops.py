"""FML, FedKD and FedMRL against plain loops that take nothing of this package but its inputs."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reference import ReferenceClient, assert_close, layers, set_parameters
from torch import nn

CHANGES = {
    "data.clients": 3,
    "data.samples": 150,
    "data.partition.alpha": 2.0,
    "model.group": "digits",
    "model.feature_dim": 128,
    "local_epochs": 2,
    "rounds": 2,
}
SMALL = 32
"""Width of FedMRL's small model: a quarter."""


class Pair:
    """A client's model, the small one and what is between them, as three modules."""

    def __init__(self, method, kind):
        width = SMALL if method == "fedmrl" else 128
        self.f, self.h = layers(kind), nn.Linear(128, 10)
        self.g = nn.Sequential(layers("mlp"), nn.AdaptiveAvgPool1d(width))
        self.hg = nn.Linear(width, 10)
        joints = {"fedmrl": nn.Linear(SMALL + 128, 128), "fedkd": nn.Linear(128, 128, bias=False)}
        self.w = joints.get(method, nn.Identity())

    def own(self):
        return [*self.f.parameters(), *self.h.parameters()]

    def small(self):
        return [*self.g.parameters(), *self.hg.parameters()]

    def joint(self):
        return list(self.w.parameters())

    def everything(self):
        return self.own() + self.small() + self.joint()


def kl(teacher, logits):
    p, q = teacher.softmax(1), logits.softmax(1)
    return (p * (p.log() - q.log())).sum() / len(p)


def fml(pair, x, y):
    z, zg = pair.h(pair.f(x)), pair.hg(pair.g(x))
    mine = 0.7 * F.cross_entropy(z, y) + 0.3 * kl(zg.detach(), z)
    small = 0.4 * F.cross_entropy(zg, y) + 0.6 * kl(z.detach(), zg)
    return mine + small


def fedkd(pair, x, y):
    r, rg = pair.f(x), pair.g(x)
    z, zg = pair.h(r), pair.hg(rg)
    ce, ceg = F.cross_entropy(z, y), F.cross_entropy(zg, y)
    mine = kl(zg.detach(), z) + ((r - pair.w(rg.detach())) ** 2).mean()
    small = kl(z.detach(), zg) + ((r.detach() - pair.w(rg)) ** 2).mean()
    return ce + mine / (ce + ceg.detach()) + ceg + small / (ce.detach() + ceg)


def fedmrl(pair, x, y):
    r = pair.w(torch.cat([pair.g(x), pair.f(x)], 1))
    return F.cross_entropy(pair.h(r), y) + F.cross_entropy(pair.hg(r[:, :SMALL]), y)


def compressed(update, share):
    """A matrix of the smallest rank that holds more than this share of its energy."""
    if update.dim() < 2:
        return update
    u, s, v = np.linalg.svd(update.double().numpy(), full_matrices=False)
    held = np.cumsum(s**2) / np.sum(s**2)
    rank = int(np.argmax(held > share)) + 1
    if rank * (sum(update.shape) + 1) >= update.numel():
        return update
    return torch.from_numpy((u[:, :rank] * s[:rank]) @ v[:rank]).float()


def loop(method, losses, assembly, share=None):
    """Two rounds; the small model's parameters, and every client's."""
    pairs = [Pair(method, kind) for kind in assembly.models.architectures]
    for client, (kind, pair) in enumerate(zip(assembly.models.architectures, pairs, strict=True)):
        set_parameters(pair.everything(), assembly.models.initial(kind, client).values())
    shared = [p.detach().clone() for p in pairs[0].small()]
    for round_ in (1, 2):
        moved = [torch.zeros_like(p) for p in shared]
        for client, pair in enumerate(pairs):
            set_parameters(pair.small(), shared)
            loss = partial(losses, pair)
            sgd = torch.optim.SGD(pair.everything(), 0.05)
            ReferenceClient(assembly, client).train(round_, loss, sgd, epochs=2)
            for total, after, before in zip(moved, pair.small(), shared, strict=True):
                update = after.detach() - before
                total += (update if share is None else compressed(update, share)) / len(pairs)
        shared = [p + update for p, update in zip(shared, moved, strict=True)]
    return shared, pairs


@pytest.mark.parametrize(
    ("method", "losses", "share", "keys"),
    [
        ("fml", fml, None, {"alpha": 0.7, "beta": 0.4}),
        ("fedmrl", fedmrl, None, {}),
        ("fedkd", fedkd, None, {"compress": False}),
        ("fedkd", fedkd, 0.7, {"energy_start": 0.7, "energy_end": 0.7}),
    ],
    ids=["fml", "fedmrl", "fedkd", "fedkd in factors"],
)
def test_two_rounds_agree_in_every_parameter(run, method, losses, share, keys):
    given = {f"algorithm.{key}": value for key, value in keys.items()}
    done = run(method, {**CHANGES, **given})
    assert set(done.assembly.models.architectures) == {"mlp", "cnn2"}
    shared, pairs = loop(method, losses, done.assembly, share)
    assert_close(shared, done.servers[-1]["model"], 1e-5)
    for client, pair in enumerate(pairs):
        assert_close(pair.own() + pair.joint(), done.models[client], 1e-5)
