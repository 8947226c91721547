"""FedPGP: the contrast and the personal context by hand, the loss, and several copies."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
import torch.nn.functional as F
from clips import DIGITS, clip_of, drawn, gradients, noise
from prompting import empty_client, initial_prompts, loss_of

from fedray.algorithms.prompts.fedpgp import ContrastOutput, PersonalClip, contrast
from fedray.algorithms.prompts.prompt_averaging import GlobalPrompts
from fedray.core import Batch, ClientState, LocalContext
from fedray.models import ImageFeatures

SHORT = {"algorithm.length": 4, "algorithm.rank": 2}


def test_the_contrast_by_hand():
    """cos(z_0, z_s) = 0.8 and cos(z_s, z_c) = 0.6 at t = 0.5, and the same twice is the same."""
    reference, shared = torch.tensor([[0.8, 0.6]]), torch.tensor([[[1.0, 0.0]]])
    personal = torch.tensor([[[0.6, 0.8]]])
    expected = -log(exp(1.6) / (exp(1.6) + exp(1.2)))
    assert contrast(reference, shared, personal, 0.5).item() == pytest.approx(expected)
    twice = contrast(reference, shared.repeat(2, 1, 1), personal.repeat(2, 1, 1), 0.5)
    assert twice.item() == pytest.approx(expected)


def loss_and_model(assemble, **hparams):
    changes = {**SHORT, **{f"algorithm.{name}": value for name, value in hparams.items()}}
    assembly = assemble("fedpgp", changes)
    client = empty_client(assembly)
    start = initial_prompts(assembly)
    model = client.load(start)
    batch = Batch(ImageFeatures(noise(6, model.clip.dim)), torch.arange(6))
    down = GlobalPrompts({"sigma": start["sigma"]}, {})
    local = LocalContext(client, model, ClientState({}), down)
    return loss_of(assembly, local, batch), model, batch


def test_the_loss_is_cross_entropy_and_mu_times_the_contrast(assemble):
    loss, model, batch = loss_and_model(assemble, mu=0.7)
    z_s, z_c = model.shared_and_personal()
    plain = F.cross_entropy(model(batch.inputs).logits, batch.labels)
    whole = plain + 0.7 * contrast(model.fixed_texts(), z_s, z_c, 0.5)
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(loss_and_model(assemble, mu=0)[0], plain)
    assert all(float(g.abs().max()) > 0 for g in gradients(model, loss).values())


def test_the_personal_context_by_hand(tiny_clip):
    model = PersonalClip(clip_of(tiny_clip), DIGITS, 2, 1)
    with torch.no_grad():
        model.sigma.fill_(1.0)
        model.u.copy_(torch.tensor([[[2.0], [3.0]]]))
        model.v.zero_()[0, 0, 0] = 5.0
    assert model.personal_context()[0, :, :2].tolist() == [[11.0, 1.0], [16.0, 1.0]]


def test_training_classifies_over_all_copies_and_evaluation_by_the_first(tiny_clip):
    model = drawn(PersonalClip(clip_of(tiny_clip), DIGITS, 4, 2, copies=2))
    features = noise(6, model.clip.dim)
    trained = model.train()(ImageFeatures(features))
    assert isinstance(trained, ContrastOutput)
    z_s, z_c = model.shared_and_personal()
    assert torch.equal(trained.shared, z_s)
    assert torch.equal(trained.personal, z_c)
    image = F.normalize(features, dim=-1)
    logits = model.clip.scale * torch.cat([image @ z_c[0].T, image @ z_c[1].T], dim=1)
    torch.testing.assert_close(trained.logits, logits)
    tested = model.eval()(ImageFeatures(features))
    assert not isinstance(tested, ContrastOutput)
    torch.testing.assert_close(tested.logits, logits[:, :5])
    assert torch.equal(tested.features, trained.features)
