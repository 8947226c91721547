"""FedETF's simplex and its scale, and FedETF-Per as its recipe."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from reference import ReferenceClient
from tensors import CPU

from fedray.algorithms.averaging.fedavg import ExtraParameters
from fedray.algorithms.averaging.fedetf import corner_products, simplex_etf
from fedray.core import ClientState, LocalContext
from fedray.models import ClassifierOutput, Pixels
from fedray.runtime.groups import GroupRunner

ONE_KIND = {"model.group": "cnn2"}


def sent_as(state):
    """The fields of what clients are sent."""
    return {"model": state["model"], "extra": state["extra"]}


def rotation(classes):
    draw = torch.randn(
        classes, classes, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return torch.linalg.qr(draw).Q


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


def test_a_simplex_that_has_been_tuned_keeps_its_lengths():
    outputs = torch.tensor([[3.0, 4.0]])
    found = corner_products(outputs, torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
    torch.testing.assert_close(found, torch.tensor([[1.2, 0.8]]))


@pytest.fixture
def per(assemble):
    """A client that has the simplex, and what it is sent, for FedETF-Per with two alternations."""
    assembly = assemble("fedetf", {**ONE_KIND, "finetune_epochs": 2, "lr": 0.01})
    client = GroupRunner(assembly, CPU).client(0, 3)
    algorithm = assembly.algorithm
    down = ExtraParameters.down(**sent_as(algorithm.init_server(assembly.server(CPU))))
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
