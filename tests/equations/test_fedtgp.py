"""FedTGP's equations by hand, and the properties that follow from them."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, sqrt

import pytest
import torch
import torch.nn.functional as F
from reference import mean_by_class
from tensors import CPU, gaussian

from fedray.algorithms.prototypes.class_prototypes import PrototypeSharing, local_prototypes
from fedray.algorithms.prototypes.fedtgp import (
    FedTGP,
    adaptive_margin,
    margin_logits,
)
from fedray.base.streams import Streams
from fedray.core import ClientState, Server, Setting, TrainingConfig
from fedray.runtime.groups import GroupRunner, Member

C, D = 4, 6
SETTING = Setting(
    tuple("abcd"), D, rounds=3, clients=2, training=TrainingConfig(), streams=Streams(0)
)
SERVER = Server(1, SETTING, None, CPU, lambda name: {}, ("mlp",) * 2, lambda name: None)


def upload(classes: list[int], seed: int) -> PrototypeSharing.up:
    vectors = 3 * gaussian(len(classes), D, seed=seed)
    return PrototypeSharing.up(torch.tensor(classes), vectors, torch.ones(len(classes)).long())


UPLINKS = {0: upload([0, 1, 2], seed=1), 1: upload([0, 2], seed=2)}


def trained(**hparams):
    method = FedTGP(**hparams).with_setting(SETTING)
    before = method.init_server(SERVER)
    return before, method.server_update(before, UPLINKS, SERVER)


def test_eq10_margin_lengthens_the_own_distance():
    vectors, labels = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 1])
    centres = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    found = margin_logits(vectors, labels, centres, 2.0)
    torch.testing.assert_close(found, torch.tensor([[-7.0, 0.0], [-4.0, -5.0]]), atol=1e-5, rtol=0)
    by_hand = (log(1 + exp(7)) + log(1 + exp(1))) / 2
    assert float(F.cross_entropy(found, labels)) == pytest.approx(by_hand, abs=1e-5)


def test_eq7_has_a_finite_gradient_at_distance_zero():
    centres = gaussian(C, D).requires_grad_()
    logits = margin_logits(centres.detach(), torch.arange(C), centres, 1.0)
    assert logits.diagonal().tolist() == pytest.approx([-1.0] * C, abs=1e-5)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, torch.arange(C)), centres)
    assert bool(torch.isfinite(gradient).all())


def test_eq9_is_the_largest_distance_to_the_nearest_other_mean():
    means = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 3.0]])
    # nearest others: 1, 1 and 3
    assert adaptive_margin(means, 100.0) == pytest.approx(3.0)
    assert adaptive_margin(means * 50, 100.0) == 100.0
    assert adaptive_margin(means[:2] * 2, 100.0) == pytest.approx(2.0)
    assert adaptive_margin(means[:1], 100.0) == 0.0
    assert adaptive_margin(means, 0.0) == 0.0


def test_eq9_averages_the_clients_prototypes_without_weights():
    means, _ = mean_by_class(UPLINKS, C, "uniform")
    both = (UPLINKS[0].vectors[0] + UPLINKS[1].vectors[0]) / 2
    torch.testing.assert_close(means[0], both)


def test_the_server_takes_batches_of_the_clients_size():
    def vectors(batch_size, **hparams):
        setting = replace(SETTING, training=TrainingConfig(batch_size=batch_size))
        method, server = FedTGP(server_epochs=3, **hparams).with_setting(setting), SERVER
        server = replace(server, setting=setting)
        return method.server_update(method.init_server(server), UPLINKS, server)["vectors"]

    batches = {size: vectors(50, server_batch_size=size) for size in (2, 3, 100)}
    assert torch.equal(vectors(2), batches[2])
    assert torch.equal(vectors(3), batches[3])
    assert not torch.equal(batches[2], batches[100])


def test_the_generator_starts_like_the_layers_it_stands_for():
    generator = trained(server_epochs=1)[0]["generator"]
    for name in ("w1", "w2"):
        assert 0.8 / sqrt(D) < float(generator[name].abs().max()) <= 1 / sqrt(D)
    assert float(generator["embedding"].std()) == pytest.approx(1, abs=0.4)


@pytest.mark.parametrize("stale", [False, True])
def test_uploads_are_those_of_the_weights_after_or_before_training(assemble, stale):
    assembly = assemble("fedtgp", {"algorithm.stale": stale})
    runtime = GroupRunner(assembly, CPU)
    method, server = assembly.algorithm, assembly.server(CPU)
    down = method.downlink(method.init_server(server), [2], server)[2]
    architecture = assembly.models.architectures[2]
    before = ClientState(assembly.models.initial(architecture, 2))
    ((reply, after),) = runtime.run_group("client_update", 1, [Member(2, before, down)])
    client = runtime.client(2, 1)
    old = local_prototypes(client, client.load(before.model))["vectors"]
    new = local_prototypes(client, client.load(after.model))["vectors"]
    assert torch.equal(reply.uplink.vectors, old if stale else new)
    assert not torch.equal(old, new)
