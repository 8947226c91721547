"""Several groups of prompts: Eqs. (2) and (6) of FedMGP, and the words that they start from."""

from __future__ import annotations

import pytest
import torch
from clips import DIGITS, clip_of, drawn

from fedray.algorithms.prompts.fedmgp import GroupedClip, Groups, combine
from fedray.models import ImageFeatures, Pixels
from fedray.models.prompted import ClassTexts


def test_eq6_mean_logits_and_mean_probabilities_disagree():
    unit = torch.ones(2, 1, 1)
    groups = Groups(unit, unit, torch.tensor([[[10.0, 0, 6]], [[0.0, 5, 6]]]))
    assert int(combine(groups, "logits", 0, 1.0).argmax()) == 2
    prob = combine(groups, "prob", 0, 1.0)
    assert int(prob.argmax()) == 0
    assert prob.exp().flatten().tolist() == pytest.approx([0.492, 0.134, 0.374], abs=1e-3)
    assert combine(groups, "max_logits", 0, 1.0).flatten().tolist() == [10, 0, 6]
    assert combine(groups, "group", 1, 1.0).flatten().tolist() == [0, 5, 6]


def test_averaged_features_are_not_renormalised():
    image = torch.tensor([[[1.0, 0]], [[0.0, 1]]])
    text = torch.tensor([[[1.0, 0], [0.0, 1]], [[1.0, 0], [1.0, 0]]])
    groups = Groups(image, text, torch.zeros(2, 1, 2))
    assert combine(groups, "features", 0, 2.0).flatten().tolist() == [1.0, 1.0]


def model_of(tiny_clip, text_length=2, visual_length=2, **config):
    made = GroupedClip(
        clip_of(tiny_clip),
        DIGITS,
        groups=3,
        text_length=text_length,
        visual_length=visual_length,
        **config,
    )
    return drawn(made)


def test_without_noise_the_first_words_are_the_photo(tiny_clip):
    model = model_of(tiny_clip)
    with torch.no_grad():
        noise = model.text - model.text.mean(0)
        assert 0 < noise.abs().max() < 0.06
        words = ClassTexts(model.clip.text, model.names)
        model.text.copy_(words.embeddings[0, 1:3].expand(3, -1, -1))
        features = model.text_features()
    assert torch.allclose(features, words.encode().expand(3, -1, -1), atol=1e-5)


def test_eq2_groups_in_one_batch_are_groups_one_by_one(tiny_clip):
    model = model_of(tiny_clip)
    images = Pixels(torch.rand(6, 1, 8, 8) * 2 - 1)
    batched = model.groups(images)
    with torch.no_grad():
        one_by_one = model.groups(images)
    for a, b in zip(batched, one_by_one, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert batched.image.shape == (3, 6, 24)
    assert batched.logits.shape == (3, 6, 5)


def test_a_prompt_length_beyond_the_photo_has_additional_positions(tiny_clip):
    model = model_of(tiny_clip, text_length=6)
    assert model.template == "X X X X X X {}."
    assert model.text_features().shape == (3, 5, 24)


@pytest.mark.parametrize("inference", ["logits", "prob", "max_logits", "features", "group"])
def test_the_output_holds_the_common_answer_and_every_group(tiny_clip, inference):
    model = model_of(tiny_clip, inference=inference, answering_group=2)
    output = model(Pixels(torch.rand(6, 1, 8, 8) * 2 - 1))
    assert output.groups.image.shape == (3, 6, 24)
    assert torch.equal(output.features, output.groups.image.mean(0))
    assert torch.equal(output.logits, combine(output.groups, inference, 2, model.clip.scale))


def test_one_modality_alone(tiny_clip):
    texts = model_of(tiny_clip, visual_length=0)
    assert set(dict(texts.named_parameters())) == {"text"}
    assert texts.reads is ImageFeatures
    images = model_of(tiny_clip, text_length=0)
    assert set(dict(images.named_parameters())) == {"visual"}
    assert images.reads is Pixels
    groups = images(Pixels(torch.rand(2, 1, 8, 8))).groups
    assert groups.text.shape == (1, 5, 24)
    assert groups.logits.shape == (3, 2, 5)
