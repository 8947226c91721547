"""PromptFL: FedAvg of a context; its relatives with FedProx and without a server."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from clips import CPU, DIGITS, clip_of, drawn, gradients, noise
from prompting import empty_client, initial_prompts, loss_of, prompted_model

from fedray.algorithms.prompts.prompt_averaging import GlobalPrompts
from fedray.core import Batch, ClientState, LocalContext
from fedray.errors import UserError
from fedray.models import ImageFeatures
from fedray.models.prompted import ContextClip
from fedray.runtime.clients import ClientRuntime

SHORT = {"algorithm.length": 4}


@pytest.mark.parametrize(
    ("method", "key"), [("promptfl", "algorithm.length"), ("fedmgp", "algorithm.text_length")]
)
def test_a_prompt_that_would_push_the_names_out_is_refused(assemble, method, key):
    fits = prompted_model(assemble(method, {key: 29}))  # 32 tokens: start, name, end
    features = drawn(fits).text_features()
    assert not torch.allclose(features[..., 0, :], features[..., 1, :])
    with pytest.raises(UserError, match=f"{key}=30 leaves no room .* set {key} to 29 or less"):
        prompted_model(assemble(method, {key: 30})).text_features()


def test_one_full_batch_step_of_everybody_is_one_centralised_step(run):
    changes = {**SHORT, "rounds": 1, "batch_size": 1000, "lr": 2.0}
    done = run("promptfl", changes)
    runtime = ClientRuntime(done.assembly, CPU)
    clients = [runtime.client(client, 1) for client in range(4)]
    parts = [client.train.tensors(CPU) for client in clients]
    features, labels = (torch.cat(both) for both in zip(*parts, strict=True))
    before, after = (state["model"]["context"] for state in done.servers)
    model = clients[0].load({"context": before})
    logits = model(ImageFeatures(features)).logits
    gradient = gradients(model, F.cross_entropy(logits, labels))["context"]
    moved = (after - before).abs().max()
    assert (after - (before - 2.0 * gradient)).abs().max() < 1e-3 * moved
    assert moved > 1e-3
    assert len({len(part[1]) for part in parts}) > 1  # so the weights of the mean matter


def test_the_proximal_terms_gradient_is_mu_times_the_distance(assemble):
    def gradient(mu, offset):
        assembly = assemble("promptfl_fedprox", {**SHORT, "algorithm.mu": mu})
        client = empty_client(assembly)
        start = initial_prompts(assembly)
        model = client.load({"context": start["context"] + offset})
        batch = Batch(ImageFeatures(noise(6, model.clip.dim)), torch.arange(6))
        local = LocalContext(client, model, ClientState({}), GlobalPrompts(start, {}))
        return gradients(model, loss_of(assembly, local, batch))["context"]

    away = gradient(0.3, 0.5) - gradient(0.0, 0.5)
    torch.testing.assert_close(away, torch.full_like(away, 0.3 * 0.5), rtol=0, atol=1e-5)
    assert torch.equal(gradient(0.3, 0.0), gradient(0.0, 0.0))


def test_words_as_context_are_the_text_with_these_words(tiny_clip):
    model = drawn(ContextClip(clip_of(tiny_clip), DIGITS, 4, "a photo of a"))
    plain = model.fixed_texts("a photo of a {}.")
    torch.testing.assert_close(model.text_features(), plain, rtol=0, atol=1e-5)
    assert (drawn(ContextClip(model.clip, DIGITS, 4)).text_features() - plain).abs().max() > 1e-2
