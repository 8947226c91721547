"""FedETF's simplex and loss by hand, its scale, and what travels when."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedray.algorithms.beside import learn_beside
from fedray.algorithms.fedavg import GlobalModel
from fedray.algorithms.fedetf import (
    SCALE,
    SIMPLEX,
    Simplex,
    balanced_loss,
    corner_products,
    simplex_etf,
)
from fedray.algorithms.fedlc import COUNTS
from fedray.client import ClientState, LocalTraining, to_float

CPU = torch.device("cpu")
ONE_KIND = {"model.group": "cnn2"}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


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


def test_a_tensor_beside_the_model_takes_the_steps_of_sgd():
    knobs = LocalTraining(lr=0.1, momentum=0.9, weight_decay=0.01)
    ours, theirs = torch.tensor(2.0), torch.tensor(2.0, requires_grad=True)
    learn_beside(ours, knobs)
    sgd = torch.optim.SGD([theirs], 0.1, momentum=0.9, weight_decay=0.01)
    for x in (1.0, -2.0, 0.5):
        (ours * x).square().backward()
        assert ours.grad is None
        sgd.zero_grad()
        (theirs * x).square().backward()
        sgd.step()
        assert torch.equal(ours, theirs)
    assert ours.item() != 2.0


def test_one_client_is_centralised_training_of_model_and_scale(run):
    from fedray.models import build

    changes = {**ONE_KIND, "data.clients": 1, "momentum": 0.9}
    done = run("fedetf", changes)
    assembly = done.assembly
    model = build("cnn2", **assembly.shape, generator=assembly.streams.torch("weights/cnn2"))
    own = assembly.data.train[0]
    images = torch.from_numpy(assembly.data.images.images[own]).float() * (2 / 255) - 1
    labels = torch.from_numpy(assembly.data.images.labels[own])
    prior = torch.stack([(labels == c).sum() for c in range(10)]).log()
    m = done.memories[0][SIMPLEX].T
    scale = torch.tensor(1.0, requires_grad=True)
    for round_ in (1, 2):
        sgd = torch.optim.SGD([*model.parameters(), scale], 0.05, momentum=0.9)
        random = assembly.streams.torch("batches", round_=round_)
        for index in torch.randperm(len(labels), generator=random).split(16):
            sgd.zero_grad()
            logits = scale * F.normalize(model(images[index]).logits, dim=1) @ m
            F.cross_entropy(logits + prior, labels[index]).backward()
            sgd.step()
    after = dict(done.servers[-1])
    assert after[SCALE].item() == pytest.approx(scale.item(), abs=1e-5)
    assert abs(scale.item() - 1) > 0.01
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(after[name], tensor, rtol=1e-4, atol=1e-5)


def test_the_scale_is_averaged_like_a_weight_and_a_fixed_one_does_not_travel(run):
    learnt = run("fedetf", ONE_KIND)
    fixed = run("fedetf", {**ONE_KIND, "algorithm.learn_scale": False})
    whole = sum(tensor.numel() for tensor in fixed.servers[0].values())
    assert learnt.servers[0][SCALE].item() == 1
    assert learnt.servers[2][SCALE].item() != learnt.servers[1][SCALE].item() != 1
    assert SCALE not in fixed.servers[-1]
    assert fixed.results[1].up.params["weights"] == 4 * whole
    assert learnt.results[1].up.params["weights"] == 4 * (whole + 1)
    assert learnt.results[1].down.params == {"weights": 4 * (whole + 1)}


def test_a_download_stays_as_it_is_for_the_other_clients(assemble):
    from fedray.runtime.clients import ClientRuntime

    assembly, cpu = assemble("fedetf", ONE_KIND), torch.device("cpu")
    runtime, algorithm = ClientRuntime(assembly, cpu), assembly.algorithm
    simplex = Simplex(simplex_etf(torch.eye(10)))
    state = algorithm.init_server(assembly.server(cpu))
    down = GlobalModel({name: tensor.clone() for name, tensor in state.items()}, {})
    _, kept = runtime.step("receive_simplex", 0, 0, None, simplex)
    reply, _ = runtime.step("client_update", 1, 0, kept, down)
    assert reply.uplink.weights[SCALE].item() != 1
    assert all(torch.equal(down.weights[name], tensor) for name, tensor in state.items())


def test_a_fixed_scale_is_the_one_that_was_asked_for(run):
    changes = {**ONE_KIND, "rounds": 1, "algorithm.learn_scale": False}
    one, ten = run("fedetf", changes), run("fedetf", {**changes, "algorithm.scale": 10})
    moved = [
        sum(float((run.servers[1][n] - t).abs().sum()) for n, t in run.servers[0].items())
        for run in (one, ten)
    ]
    assert moved[1] > 2 * moved[0]


def test_the_simplex_is_sent_once_to_everybody_and_counts_stay(run):
    changes = {**ONE_KIND, "participation": 0.5, "weight_decay": 0.1}
    done = run("fedetf", changes)
    assert done.results[0].down.params == {"prototypes": 4 * 10 * 10}
    assert all(set(result.down.params) == {"weights"} for result in done.results[1:])
    data = done.assembly.data
    assert set(done.memories) == {0, 1, 2, 3}
    for client, memory in done.memories.items():
        assert set(memory) == {SIMPLEX, COUNTS}
        cosines = memory[SIMPLEX] @ memory[SIMPLEX].T
        torch.testing.assert_close(cosines, 10 / 9 * torch.eye(10) - 1 / 9, atol=1e-6, rtol=0)
        assert torch.equal(memory[SIMPLEX], done.memories[0][SIMPLEX])
        expected = np.bincount(data.images.labels[data.train[client]], minlength=10)
        assert memory[COUNTS].tolist() == expected.tolist()
    other = run("fedetf", {**changes, "seed": 1, "rounds": 1})
    assert not torch.equal(done.memories[0][SIMPLEX], other.memories[0][SIMPLEX])


def test_predictions_have_no_prior(assemble):
    from fedray.models import build

    assembly = assemble("fedetf", ONE_KIND)
    model = build("cnn2", **assembly.shape, generator=None).eval()
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    memory = {SIMPLEX: simplex_etf(torch.eye(10)), COUNTS: torch.tensor([1000] + [0] * 9)}
    found = assembly.algorithm.predict(model, images, ClientState({}, memory))
    expected = F.normalize(model(images).logits, dim=1) @ memory[SIMPLEX].T
    torch.testing.assert_close(found, expected)


def test_it_learns(run):
    changes = {"rounds": 6, "local_epochs": 2, "momentum": 0.9, "data.partition": "iid"}
    kind = {"model.group": "cnn3", "algorithm.scale": 5}
    done = run("fedetf", {**changes, **kind})
    first, last = done.results[0].metrics, done.results[-1].metrics
    assert last["global_accuracy"] > first["global_accuracy"] + 0.3


def test_a_simplex_that_has_been_tuned_keeps_its_lengths():
    outputs = torch.tensor([[3.0, 4.0]])
    found = corner_products(outputs, torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    torch.testing.assert_close(found, torch.tensor([[1.2, 0.8]]))


@pytest.fixture
def per(assemble):
    """A client that has the simplex, and what it is sent, for FedETF-Per with two alternations."""
    from fedray.runtime.clients import ClientRuntime

    assembly, cpu = assemble("fedetf", {**ONE_KIND, "finetune_epochs": 2, "lr": 0.01}), CPU
    client = ClientRuntime(assembly, cpu).client(0, 3)
    algorithm = assembly.algorithm
    down = GlobalModel(algorithm.init_server(assembly.server(cpu)), {})
    kept = algorithm.init_client(client)
    memory = {**kept.memory, SIMPLEX: simplex_etf(rotation(10)).float()}
    return algorithm, client, ClientState(kept.model, memory), down


def test_fedetf_per_is_its_recipe_written_out(per):
    algorithm, client, state, down = per
    model = client.load(algorithm.start(client, state, down))
    images, labels = client.train.tensors(CPU)
    images = to_float(images)
    scale, m = torch.tensor(1.0, requires_grad=True), state.memory[SIMPLEX].clone()
    twin = copy.deepcopy(model)
    tuned = list(algorithm.finetuning(client, model, state, down))

    def logits(index):
        return scale * (F.normalize(twin(images[index]).logits, dim=1) @ m.T)

    def train(round_, epochs, sgd, prior):
        random = algorithm.setting.streams.torch("batches", round_=round_, client=0)
        for _ in range(epochs):
            for index in torch.randperm(len(labels), generator=random).split(16):
                sgd.zero_grad()
                F.cross_entropy(logits(index) + prior, labels[index]).backward()
                sgd.step()

    counts = torch.bincount(labels, minlength=10).clamp_min(1)
    train(4, 1, torch.optim.SGD([*twin.parameters(), scale], 0.01), counts.log())
    scale = scale.detach()
    for turn in (0, 1):
        m = m.detach().requires_grad_()
        train(5 + 2 * turn, 3, torch.optim.SGD([m], 0.1), 0)
        m = m.detach()
        train(6 + 2 * turn, 3, torch.optim.SGD(twin.head.parameters(), 0.05), 0)
        torch.testing.assert_close(tuned[turn].memory[SIMPLEX], m, rtol=1e-4, atol=1e-5)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)
    assert not torch.equal(tuned[0].memory[SIMPLEX], tuned[1].memory[SIMPLEX])


def test_fedetf_per_leaves_the_clients_memory_as_it_was(per):
    algorithm, client, state, down = per
    before = {name: tensor.clone() for name, tensor in state.memory.items()}
    _, after = algorithm.finetune(client, state, down)
    assert after is state
    assert same(state.memory, before)
    assert 0 <= client.metrics["finetuned_accuracy"] <= client.metrics["finetuned_accuracy_best"]


def test_fedetf_per_is_measured_and_helps_under_label_skew(run):
    changes = {**ONE_KIND, "rounds": 3, "data.partition.alpha": 0.1, "finetune_epochs": 3}
    last = run("fedetf", changes).results[-1].metrics
    assert last["finetuned_accuracy"] > last["local_accuracy"] + 0.1
