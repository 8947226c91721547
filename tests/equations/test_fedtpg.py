"""FedTPG: among which classes clients train, and what the network makes of their names."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from clips import clip_of, drawn, noise, prompted
from prompting import empty_client, initial_prompts, loss_of

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.prompts.fedtpg import PromptGenerator, held_classes
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
        local = LocalContext(client, model, ClientState({}), FedAvg.down(start))
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
        sent, _ = assembly.algorithm.client_update(client, ClientState({}), FedAvg.down(start))
        return any(not torch.equal(sent["model"][name], start[name]) for name in start)

    assert not moved("own")
    assert moved("all")


@pytest.fixture
def model(tiny_clip):
    return drawn(prompted("fedtpg", clip_of(tiny_clip)))


def test_the_attention_starts_as_pytorchs():
    generator = PromptGenerator(3, 16, 16)
    generator.initialise(torch.Generator().manual_seed(0))
    bound = (6 / (3 * 16 + 16)) ** 0.5  # of queries, keys and values together
    for layer in (generator.to_queries, generator.to_keys, generator.to_values):
        assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound


def test_the_order_of_the_names_does_not_matter_and_the_set_does(model):
    names = model.fixed_texts("{}")
    context = model.generator(names)
    torch.testing.assert_close(model.generator(names[[3, 0, 4, 1, 2]]), context)
    assert (model.generator(names[:3]) - context).abs().max() > 1e-5


def test_the_classes_in_scope_write_the_context(model):
    with torch.no_grad(), model.class_subset((1, 3)):
        context = model.generator(model.fixed_texts("{}"))
        alone = prompted("fedtpg", model.clip, ("one", "three"))
        alone.load_state_dict(model.state_dict())
        torch.testing.assert_close(model.texts(), alone.texts())
        expected = model.class_texts("X X X X {}.").encode(context)
        torch.testing.assert_close(model.texts(), expected)
