"""MaPLe's prompts: what each comparison of DP2FL shares."""

from __future__ import annotations

import torch
from clips import clip_of, drawn, prompted

from fedray.models.prompted.texts import word_embeddings


def model_of(tiny_clip, length=2, depth=1, words="a photo of a"):
    return drawn(
        prompted("maple_fedavg", clip_of(tiny_clip), length=length, depth=depth, words=words)
    )


def test_the_first_prompt_is_a_photo_and_deeper_maps_start_equal(tiny_clip):
    model = model_of(tiny_clip, depth=3)
    assert torch.equal(model.task[0], word_embeddings(model.clip.text, "a photo", 2))
    assert not torch.equal(model.task[1], model.task[2])
    assert torch.equal(model.data[1].weight, model.data[2].weight)
    assert not torch.equal(model.data[0].weight, model.data[1].weight)
    bound = 1 / model.clip.text.token_width**0.5
    assert 0.9 * bound < model.data[0].weight.abs().max() <= bound


def test_text_features_start_as_those_of_the_plain_texts(tiny_clip):
    model = model_of(tiny_clip)
    plain = model.class_texts().encode()
    assert torch.allclose(model.text_features(), plain, atol=1e-6)


def test_longer_prompts_leave_the_names_alone(tiny_clip):
    model = model_of(tiny_clip, length=6, words=None)
    assert model.template == "X X X X X X {}."
    features = model.text_features()
    assert not torch.allclose(features[0], features[1], atol=1e-4)


def test_random_words_start_from_noise(tiny_clip):
    model = model_of(tiny_clip, words=None)
    assert 0.005 < model.task[0].std() < 0.05
