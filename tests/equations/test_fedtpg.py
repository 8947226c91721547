"""FedTPG: among which classes clients train; only the network travels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from clips import noise
from prompting import empty_client, initial_prompts, loss_of

from fedray.algorithms.averaging.fedavg import GlobalModel
from fedray.algorithms.prompts.fedtpg import held_classes
from fedray.core import Batch, ClientState, LocalContext
from fedray.models import ImageFeatures


def test_a_client_trains_on_the_subset_of_its_classes(assemble):
    assembly = assemble("fedtpg")
    client = empty_client(assembly, labels=(7, 2, 2, 5))
    assert held_classes(client) == (2, 5, 7)
    start = initial_prompts(assembly)
    model = client.load(start)
    batch = Batch(ImageFeatures(noise(3, model.clip.dim)), torch.tensor([7, 2, 5]))
    with model.class_subset((2, 5, 7)):
        local = LocalContext(client, model, ClientState({}), GlobalModel(start, {}))
        loss = loss_of(assembly, local, batch)
        logits = model(batch.inputs).logits
    assert logits.shape == (3, 3)
    assert loss.item() == pytest.approx(F.cross_entropy(logits, torch.tensor([2, 0, 1])).item())


def test_a_client_of_one_class_has_no_gradient_on_its_subset_but_on_all_classes(assemble):
    def moved(classes):
        assembly = assemble("fedtpg", {"algorithm.classes": classes})
        client, start = empty_client(assembly, (3,) * 8), initial_prompts(assembly)
        stored = noise(*client.train._stored.shape).numpy()
        client = replace(client, train=replace(client.train, _stored=stored))
        sent, _ = assembly.algorithm.client_update(client, ClientState({}), GlobalModel(start, {}))
        return any(not torch.equal(sent.weights[name], start[name]) for name in start)

    assert not moved("own")
    assert moved("all")


def test_after_training_tests_have_all_classes(run):
    done = run("fedtpg", {"lr": 0.5})
    assert done.assembly.algorithm.hp.weights == "uniform"
    assert len({tuple(result.per_client.values()) for result in done.results}) > 1
    every = run("fedtpg", {"lr": 0.5, "algorithm.classes": "all"})
    assert not torch.equal(
        every.servers[-1]["model"]["generator.queries"],
        done.servers[-1]["model"]["generator.queries"],
    )
