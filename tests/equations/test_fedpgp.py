"""FedPGP: the contrast by hand, U = 0, and an average that touches sigma alone."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
import torch.nn.functional as F
from prompting import NAMES, clip_of, drawn, empty_client, gradients, noise

from fedray.algorithms.fedavg import GlobalModel
from fedray.algorithms.fedpgp import PersonalClip, contrast
from fedray.algorithms.promptfl import ContextClip
from fedray.client import Batch, ClientState

SHORT = {"algorithm.length": 4, "algorithm.rank": 2}


def test_the_contrast_by_hand():
    """cos(z_0, z_s) = 0.8 and cos(z_s, z_c) = 0.6 at t = 0.5, and the same twice is the same."""
    reference, shared = torch.tensor([[0.8, 0.6]]), torch.tensor([[[1.0, 0.0]]])
    personal = torch.tensor([[[0.6, 0.8]]])
    expected = -log(exp(1.6) / (exp(1.6) + exp(1.2)))
    assert contrast(reference, shared, personal, 0.5).item() == pytest.approx(expected)
    twice = contrast(reference, shared.repeat(2, 1, 1), personal.repeat(2, 1, 1), 0.5)
    assert twice.item() == pytest.approx(expected)


def test_it_pulls_the_shared_to_clip_and_pushes_the_personal_from_the_shared():
    reference, shared, personal = F.normalize(noise(3, 4, 6), dim=-1)[:, None].requires_grad_()
    down_shared, down_personal = torch.autograd.grad(
        -contrast(reference[0], shared, personal, 0.5), (shared, personal)
    )
    assert float((down_personal * shared).sum()) < 0
    toward = torch.autograd.grad((reference * shared).sum(), shared)[0]
    assert float((down_shared * toward).sum()) > 0


def test_without_a_correction_the_personal_features_are_the_shared_ones(tiny_clip):
    model = drawn(PersonalClip(clip_of(tiny_clip), NAMES, 4, 2))
    plain = ContextClip(model.clip, NAMES, 4)
    plain.context.data.copy_(model.sigma[0])
    z_s, z_c = model.shared_and_personal()
    assert (z_s - z_c).abs().max() > 0  # U V starts small, but not at zero
    torch.testing.assert_close(z_s[0], plain.text_features())
    with torch.no_grad():
        model.u.zero_()
    z_s, z_c = model.shared_and_personal()
    assert torch.equal(z_s, z_c)
    similarity = (model.fixed_texts() * z_s).sum(-1)
    expected = torch.log1p(((1 - similarity) / 0.5).exp()).mean()
    torch.testing.assert_close(contrast(model.fixed_texts(), z_s, z_c, 0.5), expected)


def test_the_personal_context_by_hand(tiny_clip):
    model = PersonalClip(clip_of(tiny_clip), NAMES, 2, 1)
    with torch.no_grad():
        model.sigma.fill_(1.0)
        model.u.copy_(torch.tensor([[[2.0], [3.0]]]))
        model.v.zero_()[0, 0, 0] = 5.0
    assert model.personal_context()[0, :, :2].tolist() == [[11.0, 1.0], [16.0, 1.0]]


def loss_and_model(assemble, **knobs):
    changes = {**SHORT, **{f"algorithm.{name}": value for name, value in knobs.items()}}
    assembly = assemble("fedpgp", changes)
    client = empty_client(assembly)
    start = assembly.initial("prompted_clip")
    model = client.load(start)
    batch = Batch(noise(6, model.clip.dim), torch.arange(6))
    down = GlobalModel({"sigma": start["sigma"]}, {})
    return assembly.algorithm.local_loss(model, batch, down, ClientState({})), model, batch


def test_the_loss_is_cross_entropy_and_mu_times_the_contrast(assemble):
    loss, model, batch = loss_and_model(assemble, mu=0.7)
    z_s, z_c = model.shared_and_personal()
    plain = F.cross_entropy(model(batch.images).logits, batch.labels)
    whole = plain + 0.7 * contrast(model.fixed_texts(), z_s, z_c, 0.5)
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(loss_and_model(assemble, mu=0)[0], plain)
    assert all(float(g.abs().max()) > 0 for g in gradients(model, loss).values())


def test_a_second_prompt_is_only_wrong_answers(assemble):
    loss, model, batch = loss_and_model(assemble, copies=2, mu=0)
    _, z_c = model.shared_and_personal()
    assert not torch.equal(z_c[0], z_c[1])
    image = F.normalize(batch.images, dim=-1)
    logits = model.clip.scale * torch.cat([image @ z_c[0].T, image @ z_c[1].T], dim=1)
    torch.testing.assert_close(loss, F.cross_entropy(logits, batch.labels))
    assert model(batch.images).logits.shape == (6, 10)
    torch.testing.assert_close(model(batch.images).logits, logits[:, :10])


def test_the_average_touches_sigma_alone(run):
    done = run("fedpgp", {**SHORT, "rounds": 3, "participation": 0.5})
    assert set(done.servers[-1]) == {"sigma"}
    assert not torch.equal(done.servers[-1]["sigma"], done.servers[0]["sigma"])
    assert all(set(model) >= {"u", "v"} for model in done.models.values())
    trained = {client for result in done.results for client in result.participants}
    own = [done.models[client]["u"] for client in sorted(trained)]
    assert all(not torch.equal(own[0], other) for other in own[1:])
    numbers = done.servers[-1]["sigma"].numel()
    assert done.results[1].up.params == {"prompts": 2 * numbers, "statistics": 2}
