"""Personal contexts of low rank: by hand, U = 0, and what training gives besides."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from clips import DIGITS, clip_of, drawn, noise

from fedray.algorithms.prompts.fedpgp import ContrastOutput, PersonalClip
from fedray.models import ImageFeatures
from fedray.models.prompted import ContextClip


def test_the_personal_context_by_hand(tiny_clip):
    model = PersonalClip(clip_of(tiny_clip), DIGITS, 2, 1)
    with torch.no_grad():
        model.sigma.fill_(1.0)
        model.u.copy_(torch.tensor([[[2.0], [3.0]]]))
        model.v.zero_()[0, 0, 0] = 5.0
    assert model.personal_context()[0, :, :2].tolist() == [[11.0, 1.0], [16.0, 1.0]]


def test_without_a_correction_the_personal_features_are_the_shared_ones(tiny_clip):
    model = drawn(PersonalClip(clip_of(tiny_clip), DIGITS, 4, 2))
    plain = ContextClip(model.clip, DIGITS, 4)
    plain.context.data.copy_(model.sigma[0])
    z_s, z_c = model.shared_and_personal()
    assert (z_s - z_c).abs().max() > 0  # U V starts small, but not at zero
    torch.testing.assert_close(z_s[0], plain.text_features())
    with torch.no_grad():
        model.u.zero_()
    z_s, z_c = model.shared_and_personal()
    torch.testing.assert_close(z_s, z_c)


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
