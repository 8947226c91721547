"""FedPGP: several copies."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from clips import clip_of, drawn, noise, prompted

from fedray.algorithms.prompts.fedpgp import ContrastOutput
from fedray.models import ImageFeatures


def test_training_classifies_over_all_copies_and_evaluation_by_the_first(tiny_clip):
    model = drawn(prompted("fedpgp", clip_of(tiny_clip), length=4, rank=2, copies=2))
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
