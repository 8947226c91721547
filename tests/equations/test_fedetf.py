"""FedETF's simplex and loss by hand, its scale, and what travels when."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from reference import ReferenceClient
from tensors import CPU, same

from fedray.algorithms.averaging.extra_parameters import ExtendedModel
from fedray.algorithms.averaging.fedetf import Simplex, balanced_loss, corner_products, simplex_etf
from fedray.core import Batch, ClientState, HeldOut, LocalContext, fit, with_extra
from fedray.evaluation.testing import fine_tuned
from fedray.models import ClassifierOutput, Pixels
from fedray.runtime.clients import ClientRuntime
from fedray.trees import map_tensors

ONE_KIND = {"model.group": "cnn2"}


def sent_as(state):
    """The fields of what clients of a model without buffers are sent."""
    return {"weights": state["model"], "buffers": {}, "extra": state["extra"]}


def rotation(classes):
    draw = torch.randn(
        classes, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return torch.linalg.qr(draw).Q


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("turned", [False, True])
def test_the_simplexs_cosines(classes, turned):
    basis = rotation(classes) if turned else torch.eye(classes, dtype=torch.float64)
    m = simplex_etf(basis).T
    eye, ones = torch.eye(classes).double(), torch.ones(classes, classes).double()
    expected = classes / (classes - 1) * eye - ones / (classes - 1)
    torch.testing.assert_close(m.T @ m, expected)
    torch.testing.assert_close(m.sum(dim=1), torch.zeros(classes).double(), atol=1e-12, rtol=0)


def test_the_simplex_by_hand():
    m = simplex_etf(torch.eye(10, dtype=torch.float64))
    assert (m[0] @ m[1]).item() == pytest.approx(-0.111111, abs=1e-6)
    assert m[0, 0].item() == pytest.approx(math.sqrt(0.9))
    two = simplex_etf(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    torch.testing.assert_close(two, math.sqrt(0.5) * torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))


def test_the_balanced_loss_by_hand():
    logits, y = torch.tensor([[1.0, 0.5, 0.0]]), torch.tensor([1])
    found = balanced_loss(logits, y, torch.tensor([6, 3, 0]))
    scores = [6 * math.e, 3 * math.exp(0.5), 1.0]  # no image counts as one
    assert found.item() == pytest.approx(-math.log(scores[1] / sum(scores)))


def test_equal_counts_give_the_plain_cross_entropy():
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 2, 1, 1])
    found = balanced_loss(logits, y, torch.tensor([7, 7, 7]))
    torch.testing.assert_close(found, F.cross_entropy(logits, y))
    other = balanced_loss(logits, y, torch.tensor([70, 7, 7]))
    assert abs(float(other - found)) > 0.1


def test_an_extra_parameter_takes_the_steps_of_sgd(assemble):
    changes = {**ONE_KIND, "lr": 0.1, "optimizer.momentum": 0.9, "optimizer.weight_decay": 0.01}
    client = ClientRuntime(assemble("fedetf", changes), CPU).client(0, 1)
    sent, theirs = torch.tensor(2.0), torch.tensor(2.0, requires_grad=True)
    state = ClientState(client.initial())
    local = LocalContext(client, client.load(state.model), state, None)
    local = with_extra(local, {"scale": sent})
    sgd = torch.optim.SGD([theirs], 0.1, momentum=0.9, weight_decay=0.01)

    def loss(batch):
        assert torch.equal(local.extra["scale"], theirs)
        x = batch.inputs.values.mean()
        sgd.zero_grad()
        (theirs * x).square().backward()
        sgd.step()
        return (local.extra["scale"] * x).square()

    trained = fit(replace(local, trainable=()), loss)
    assert trained.steps > 2
    assert torch.equal(trained.tensors["scale"], theirs)
    assert not trained.tensors["scale"].requires_grad
    assert theirs.item() != 2.0
    assert sent.item() == 2.0
    assert all(torch.equal(trained.tensors[name], w) for name, w in state.model.items())


def test_the_scale_is_averaged_like_a_weight(run):
    scales = [state["extra"]["scale"].item() for state in run("fedetf", ONE_KIND).servers]
    assert scales[0] == 1
    assert scales[2] != scales[1] != 1


def test_a_download_stays_as_it_is_for_the_other_clients(assemble):
    assembly = assemble("fedetf", ONE_KIND)
    runtime, algorithm = ClientRuntime(assembly, CPU), assembly.algorithm
    simplex = Simplex(simplex_etf(torch.eye(10)))
    state = algorithm.init_server(assembly.server(CPU))
    down = ExtendedModel(**map_tensors(torch.clone, sent_as(state)))
    _, kept = runtime.step("keep", 0, 0, None, simplex)
    reply, _ = runtime.step("client_update", 1, 0, kept, down)
    assert reply.uplink.extra["scale"].item() != 1
    assert same(down.weights, state["model"])
    assert same(down.extra, state["extra"])


def test_the_simplex_is_that_of_everybody_and_of_the_seed(run):
    done, other = (run("fedetf", {**ONE_KIND, "rounds": 1, "seed": seed}) for seed in (0, 1))
    simplexes = [memory["simplex"] for memory in done.memories.values()]
    cosines = simplexes[0] @ simplexes[0].T
    torch.testing.assert_close(cosines, 10 / 9 * torch.eye(10) - 1 / 9, atol=1e-6, rtol=0)
    assert all(torch.equal(simplexes[0], simplex) for simplex in simplexes)
    assert not torch.equal(simplexes[0], other.memories[0]["simplex"])


@pytest.mark.parametrize("scale", [1.0, 3.0, -0.5])
def test_predictions_have_the_scale_and_no_prior(assemble, scale):
    algorithm = assemble("fedetf", ONE_KIND).algorithm
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    memory = {"simplex": simplex_etf(torch.eye(10))}
    extra = {"scale": torch.tensor(scale)}
    local = LocalContext(None, None, ClientState({}, memory), None, extra)
    found = algorithm.predict(ClassifierOutput(torch.zeros(4, 16), logits), local)
    expected = scale * F.normalize(logits, dim=1) @ memory["simplex"].T
    torch.testing.assert_close(found, expected)


def test_a_negative_scale_predicts_what_the_loss_trains(assemble):
    """The classes with the lowest loss are those that are predicted."""
    algorithm = assemble("fedetf", ONE_KIND).algorithm
    simplex = simplex_etf(torch.eye(10)).float()
    client, state = (
        SimpleNamespace(class_counts=torch.full((10,), 5)),
        ClientState({}, {"simplex": simplex}),
    )
    local = LocalContext(client, None, state, None, {"scale": torch.tensor(-2.0)})
    output = ClassifierOutput(torch.zeros(10, 16), -simplex)
    predicted = algorithm.predict(output, local).argmax(dim=1)
    assert predicted.tolist() == list(range(10))
    right, wrong = (
        algorithm.loss(output, Batch(Pixels(torch.zeros(10)), labels), local)
        for labels in (predicted, predicted.roll(1))
    )
    assert right < wrong


def test_a_simplex_that_has_been_tuned_keeps_its_lengths():
    outputs = torch.tensor([[3.0, 4.0]])
    found = corner_products(outputs, torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    torch.testing.assert_close(found, torch.tensor([[1.2, 0.8]]))


@pytest.fixture
def per(assemble):
    """A client that has the simplex, and what it is sent, for FedETF-Per with two alternations."""
    assembly = assemble("fedetf", {**ONE_KIND, "finetune_epochs": 2, "lr": 0.01})
    client = ClientRuntime(assembly, CPU).client(0, 3)
    algorithm = assembly.algorithm
    down = ExtendedModel(**sent_as(algorithm.init_server(assembly.server(CPU))))
    kept = algorithm.init_client(client)
    memory = {**kept.memory, "simplex": simplex_etf(rotation(10)).float()}
    return assembly, client, ClientState(kept.model, memory), down


def test_fedetf_per_is_its_recipe_written_out(per):
    assembly, client, state, down = per
    algorithm = assembly.algorithm
    local = algorithm.begin(client, state, down)
    model = local.model
    reference = ReferenceClient(assembly)
    scale, m = torch.tensor(1.0, requires_grad=True), state.memory["simplex"].clone()
    twin = copy.deepcopy(model)
    tuned = list(algorithm.fine_tune(local))

    def train(round_, epochs, sgd, prior):
        def loss(images, labels):
            logits = scale * (F.normalize(twin(Pixels(images)).logits, dim=1) @ m.T)
            return F.cross_entropy(logits + prior, labels)

        reference.train(round_, loss, sgd, epochs)

    counts = torch.bincount(reference.labels, minlength=10).clamp_min(1)
    train(4, 1, torch.optim.SGD([*twin.parameters(), scale], 0.01), counts.log())
    scale = scale.detach()
    for turn in (0, 1):
        m = m.detach().requires_grad_()
        train(5 + 2 * turn, 3, torch.optim.SGD([m], 0.1), 0)
        m = m.detach()
        train(6 + 2 * turn, 3, torch.optim.SGD(twin.head.parameters(), 0.05), 0)
        torch.testing.assert_close(tuned[turn].state.memory["simplex"], m, rtol=1e-4, atol=1e-5)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
    assert not torch.equal(tuned[0].state.memory["simplex"], tuned[1].state.memory["simplex"])


def test_fedetf_per_leaves_the_clients_memory_as_it_was(per):
    assembly, client, state, down = per
    before = {name: tensor.clone() for name, tensor in state.memory.items()}
    (scores,) = fine_tuned(assembly.algorithm, client, state, down, [HeldOut(client.train)])
    assert len(scores) == 3
    assert same(state.memory, before)
    assert all(0 <= score.accuracy <= 1 for score in scores)
    assert down.extra["scale"].item() == 1


def test_fedetf_per_is_measured_and_helps_under_label_skew(run):
    changes = {**ONE_KIND, "rounds": 3, "data.partition.alpha": 0.1, "finetune_epochs": 3}
    last = run("fedetf", changes).results[-1].metrics
    assert last["finetuned_accuracy"] > last["local_accuracy"] + 0.1
