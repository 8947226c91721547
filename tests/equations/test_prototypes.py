"""Methods that exchange prototypes: equations by hand, and what a run does."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, log, sqrt

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reference import mean_by_class
from tensors import CPU, gaussian

from fedray.algorithms.prototypes.class_prototypes import PrototypeSharing, local_prototypes
from fedray.algorithms.prototypes.fedpcl import prototype_contrast
from fedray.algorithms.prototypes.fedproto import FedProto, prototype_loss
from fedray.algorithms.prototypes.fedproto_global import FedProtoGlobal
from fedray.algorithms.prototypes.fedtgp import FedTGP, adaptive_margin, margin_logits
from fedray.base.streams import Streams
from fedray.core import Batch, ClientState, LocalContext, Server, Setting, TrainingConfig
from fedray.models import ClassifierOutput, Pixels
from fedray.runtime.groups import GroupRunner, Member

# --- FedProto's equations by hand, and the properties that follow from them ----------------------

FEATURES = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
LABELS = torch.tensor([0, 1])
OUTPUT = ClassifierOutput(FEATURES, torch.zeros(2, 2))
"""Two classes, undecided: the cross-entropy is ln 2."""


def prototypes(*present: bool) -> FedProto.down:
    return FedProto.down(torch.tensor([[0.0, 0.0], [3.0, 2.0]]), torch.tensor(present))


def test_fedproto_eq6_weighs_by_samples_of_the_class():
    uplinks = {
        0: PrototypeSharing.up(
            torch.tensor([0, 1]), torch.tensor([[1.0, 0], [4, 4]]), torch.tensor([3, 5])
        ),
        1: PrototypeSharing.up(torch.tensor([0]), torch.tensor([[0.0, 8]]), torch.tensor([1])),
    }
    found, present = mean_by_class(uplinks, 3, "weighted")
    assert found.tolist() == [[0.75, 2.0], [4.0, 4.0], [0.0, 0.0]]
    assert present.tolist() == [True, True, False]
    assert mean_by_class(uplinks, 3, "uniform")[0][0].tolist() == [0.5, 4.0]


def test_fedproto_eq7_by_hand():
    # squared distances: 1 + 4 and 0 + 4, over B*d = 4 entries
    found = prototype_loss(OUTPUT, LABELS, prototypes(True, True), 2.0)
    assert float(found) == pytest.approx(log(2) + 2 * 9 / 4)


def test_fedproto_a_missing_class_is_no_penalty_rather_than_a_pull_to_zero():
    output = ClassifierOutput(FEATURES.clone().requires_grad_(), OUTPUT.logits)
    loss = prototype_loss(output, LABELS, prototypes(False, True), 1.0)
    assert loss.item() == pytest.approx(log(2) + 4 / 4)
    (gradient,) = torch.autograd.grad(loss, output.features)
    assert gradient.tolist() == [[0.0, 0.0], [0.0, 2 * 2 / 4]]
    without = prototype_loss(OUTPUT, LABELS, prototypes(False, False), 2.0)
    assert float(without) == pytest.approx(log(2))


def test_fedproto_a_class_that_nobody_uploads_keeps_its_prototype(assemble):
    assembly = assemble("fedproto")
    method, server = assembly.algorithm, assembly.server(CPU)
    first = PrototypeSharing.up(torch.tensor([1, 2]), torch.ones(2, 16), torch.tensor([3, 3]))
    second = PrototypeSharing.up(torch.tensor([2]), torch.zeros(1, 16), torch.tensor([3]))
    state = method.server_update(method.init_server(server), {0: first}, server)
    state = method.server_update(state, {1: second}, server)
    assert np.flatnonzero(state["present"]).tolist() == [1, 2]
    assert state["vectors"][1].tolist() == [1.0] * 16
    assert state["vectors"][2].tolist() == [0.0] * 16


# --- Global FedProto's equations by hand, and FedAvg where its term is absent --------------------

ONE_KIND = {"model.group": "cnn2"}


def update(weight, samples, classes, vectors, counts) -> FedProtoGlobal.up:
    return FedProtoGlobal.up(
        model={"w": torch.tensor([weight])},
        samples=samples,
        classes=torch.tensor(classes),
        vectors=torch.tensor(vectors),
        counts=torch.tensor(counts),
    )


def state() -> dict[str, dict[str, torch.Tensor]]:
    present = torch.zeros(10, dtype=torch.bool)
    present[7] = True
    vectors = torch.full((10, 2), 9.0)
    return {"model": {"w": torch.zeros(1)}, "vectors": vectors, "present": present}


@pytest.mark.parametrize(("how", "expected"), [("weighted", [0.75, 2.0]), ("uniform", [0.5, 4.0])])
def test_fedproto_global_eq6_classes_weigh_by_their_samples_and_models_by_all(
    assemble, how, expected
):
    assembly = assemble("fedproto_global", {"algorithm.proto_agg": how})
    uplinks = {
        0: update(1.0, 30, [0, 1], [[1.0, 0.0], [4.0, 4.0]], [3, 27]),
        2: update(5.0, 10, [0], [[0.0, 8.0]], [1]),
    }
    found = assembly.algorithm.server_update(state(), uplinks, assembly.server(CPU))
    assert found["model"]["w"].tolist() == [2.0]
    vectors, present = found["vectors"], found["present"]
    assert vectors[0].tolist() == expected
    assert vectors[1].tolist() == [4.0, 4.0]
    assert vectors[7].tolist() == [9.0, 9.0]  # nobody uploaded it: it stays
    assert present.nonzero().flatten().tolist() == [0, 1, 7]


def test_fedproto_global_eq7_by_hand(assemble):
    features, labels = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 1])

    def loss(*present: bool) -> float:
        down = FedProtoGlobal.down(
            model={},
            vectors=torch.tensor([[0.0, 0.0], [3.0, 2.0]]),
            present=torch.tensor(present),
        )
        method = assemble("fedproto_global", {"algorithm.mu": 2}).algorithm
        output = ClassifierOutput(features, torch.zeros(2, 2))
        local = LocalContext(None, None, ClientState({}), down)
        return method.loss(output, Batch(Pixels(features), labels), local).item()

    # squared distances: 1 + 4 and 0 + 4, over B*d = 4 entries
    assert loss(True, True) == pytest.approx(log(2) + 2 * 9 / 4)
    assert loss(False, True) == pytest.approx(log(2) + 2 * 4 / 4)
    assert loss(False, False) == pytest.approx(log(2))


def test_fedproto_global_a_single_clients_prototypes_are_the_global_models(run):
    done = run("fedproto_global", {**ONE_KIND, "data.clients": 1})
    client = GroupRunner(done.assembly, CPU).client(0, 2)
    prototypes = done.servers[-1]
    expected = local_prototypes(client, client.load(done.servers[-1]["model"]))
    assert prototypes["present"].nonzero().flatten().tolist() == expected["classes"].tolist()
    torch.testing.assert_close(prototypes["vectors"][expected["classes"]], expected["vectors"])


# --- FedPCL where classes have no prototype, and its predictions ---------------------------------


def test_fedpcl_a_class_without_prototype_is_in_no_sum_and_its_images_count_as_zero():
    z = torch.tensor([[1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    sets, present = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]]), [True, True, False]
    loss = prototype_contrast(z, torch.tensor([0, 2]), sets, torch.tensor(present), 1.0)
    assert loss.item() == pytest.approx(log(1 + exp(-1)) / 2)
    (gradient,) = torch.autograd.grad(loss, z)
    assert gradient[1].tolist() == [0.0, 0.0]
    assert gradient[0].abs().min() > 0
    none = prototype_contrast(z, torch.tensor([0, 2]), sets, torch.zeros(3, dtype=torch.bool), 1.0)
    assert none.item() == 0


def test_fedpcl_predictions_are_the_nearest_own_prototype(assemble):
    method = assemble("fedpcl").algorithm
    features = torch.tensor([[3.0, 4.0], [-2.0, 0.0]])
    output = ClassifierOutput(features, features)
    memory = {
        "vectors": torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.5]]),
        "present": torch.tensor([True, False, True]),
    }
    found = method.predict(output, LocalContext(None, None, ClientState({}, memory), None))
    torch.testing.assert_close(found, torch.tensor([[0.6, -inf, 0.4], [-1.0, -inf, 0.0]]))
    newcomer = LocalContext(None, None, ClientState({}), None)
    assert method.predict(output, newcomer).tolist() == [[0.0] * 10] * 2


# --- FedTGP's equations by hand, and the properties that follow from them ------------------------

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


def test_fedtgp_eq10_margin_lengthens_the_own_distance():
    vectors, labels = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 1])
    centres = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    found = margin_logits(vectors, labels, centres, 2.0)
    torch.testing.assert_close(found, torch.tensor([[-7.0, 0.0], [-4.0, -5.0]]), atol=1e-5, rtol=0)
    by_hand = (log(1 + exp(7)) + log(1 + exp(1))) / 2
    assert float(F.cross_entropy(found, labels)) == pytest.approx(by_hand, abs=1e-5)


def test_fedtgp_eq7_has_a_finite_gradient_at_distance_zero():
    centres = gaussian(C, D).requires_grad_()
    logits = margin_logits(centres.detach(), torch.arange(C), centres, 1.0)
    assert logits.diagonal().tolist() == pytest.approx([-1.0] * C, abs=1e-5)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, torch.arange(C)), centres)
    assert bool(torch.isfinite(gradient).all())


def test_fedtgp_eq9_is_the_largest_distance_to_the_nearest_other_mean():
    means = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 3.0]])
    # nearest others: 1, 1 and 3
    assert adaptive_margin(means, 100.0) == pytest.approx(3.0)
    assert adaptive_margin(means * 50, 100.0) == 100.0
    assert adaptive_margin(means[:2] * 2, 100.0) == pytest.approx(2.0)
    assert adaptive_margin(means[:1], 100.0) == 0.0
    assert adaptive_margin(means, 0.0) == 0.0


def test_fedtgp_eq9_averages_the_clients_prototypes_without_weights():
    means, _ = mean_by_class(UPLINKS, C, "uniform")
    both = (UPLINKS[0].vectors[0] + UPLINKS[1].vectors[0]) / 2
    torch.testing.assert_close(means[0], both)


def test_fedtgp_the_server_takes_batches_of_the_clients_size():
    def vectors(batch_size, **hparams):
        setting = replace(SETTING, training=TrainingConfig(batch_size=batch_size))
        method, server = FedTGP(server_epochs=3, **hparams).with_setting(setting), SERVER
        server = replace(server, setting=setting)
        return method.server_update(method.init_server(server), UPLINKS, server)["vectors"]

    batches = {size: vectors(50, server_batch_size=size) for size in (2, 3, 100)}
    assert torch.equal(vectors(2), batches[2])
    assert torch.equal(vectors(3), batches[3])
    assert not torch.equal(batches[2], batches[100])


def test_fedtgp_the_generator_starts_like_the_layers_it_stands_for():
    generator = trained(server_epochs=1)[0]["generator"]
    for name in ("w1", "w2"):
        assert 0.8 / sqrt(D) < float(generator[name].abs().max()) <= 1 / sqrt(D)
    assert float(generator["embedding"].std()) == pytest.approx(1, abs=0.4)


@pytest.mark.parametrize("stale", [False, True])
def test_fedtgp_uploads_are_those_of_the_weights_after_or_before_training(assemble, stale):
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
