"""MaPLe's prompts: how they start, and what each comparison of DP2FL shares."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fedray.algorithms.maple import DualPromptClip
from fedray.models.clip.prompted import word_embeddings

DEEP = {"algorithm.depth": 3}


def model_of(assembly):
    model = assembly.empty("prompted_clip")
    model.load_state_dict(assembly.initial("prompted_clip"))
    return model


def test_the_first_prompt_is_a_photo_and_deeper_maps_start_equal(assemble):
    model = model_of(assemble("maple_local", DEEP))
    assert torch.equal(model.task[0], word_embeddings(model.clip.text, "a photo", 2))
    assert not torch.equal(model.task[1], model.task[2])
    assert torch.equal(model.data[1].weight, model.data[2].weight)
    assert not torch.equal(model.data[0].weight, model.data[1].weight)
    bound = 1 / model.clip.text.token_width**0.5
    assert 0.9 * bound < model.data[0].weight.abs().max() <= bound


def test_text_features_start_as_those_of_the_plain_texts(assemble):
    model = model_of(assemble("maple_local"))
    plain = model.class_texts().encode()
    assert torch.allclose(model.text_features(), plain, atol=1e-6)


def test_longer_prompts_leave_the_names_alone(assemble):
    long = {"algorithm.length": 6, "algorithm.words": None}
    model = model_of(assemble("maple_local", long))
    assert model.template == "X X X X X X {}."
    features = model.text_features()
    assert not torch.allclose(features[0], features[1], atol=1e-4)


def test_deep_prompts_change_both_features(assemble):
    model = model_of(assemble("maple_local", DEEP))
    images = torch.rand(3, 1, 8, 8) * 2 - 1
    with torch.no_grad():
        before = model.text_features(), model.image_features(images)
        model.task[2].mul_(100)
        after = model.text_features(), model.image_features(images)
    assert not torch.allclose(before[0], after[0], atol=1e-4)
    assert not torch.allclose(before[1], after[1], atol=1e-4)


def test_embedded_images_give_the_features_of_images(assemble):
    model = model_of(assemble("maple_local", DEEP))
    images = torch.rand(3, 1, 8, 8) * 2 - 1
    with torch.no_grad():
        embedded = model.clip.vision.embed(images)
        assert torch.equal(model.image_features(embedded), model.image_features(images))


def test_random_words_start_from_noise(assemble):
    model = model_of(assemble("maple_local", {"algorithm.words": None}))
    assert 0.005 < model.task[0].std() < 0.05


def test_fedprox_without_its_term_is_fedavg(run):
    one = run("maple_fedavg")
    assert run("maple_fedprox", {"algorithm.mu": 0}).same_clients_as(one)
    pulled = run("maple_fedprox", {"algorithm.mu": 10})
    assert not torch.equal(pulled.servers[-1]["task.0"], one.servers[-1]["task.0"])


def test_pfedme_keeps_personal_prompts_near_the_global_ones(run):
    done = run("maple_pfedme", {"algorithm.inner_steps": 2})
    assert done.assembly.algorithm.hp.weights == "uniform"
    assert "global_accuracy" not in done.results[-1].metrics
    assert not torch.equal(done.models[0]["task.0"], done.models[1]["task.0"])


def test_local_training_sends_nothing_and_fedavg_all_parameters(run):
    alone = run("maple_local")
    assert alone.results[1].up.total_params == alone.results[1].down.total_params == 0
    assert not torch.equal(alone.models[0]["task.0"], alone.models[1]["task.0"])
    averaged = run("maple_fedavg")
    parameters = 2 * 16 + (16 + 1) * 32
    assert averaged.results[1].up.params["prompts"] == 4 * parameters


@pytest.mark.parametrize(("depth", "task", "data"), [(1, 1_024, 393_984), (9, 9_216, 3_545_856)])
def test_sizes_for_vit_b_16(depth, task, data):
    text, vision = (
        SimpleNamespace(layers=12, token_width=512),
        SimpleNamespace(layers=12, width=768),
    )
    clip = SimpleNamespace(text=text, vision=vision)
    model = DualPromptClip(clip, ["one"], length=2, depth=depth, words=None)
    parts = model.apart(dict(model.named_parameters()))
    assert [part.numel() for part in parts] == [task, data]
