"""Zero-shot CLIP: nothing is trained, and tests are those of the texts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from clips import CPU

from fedray.algorithms.prompts.zero_shot import ZeroShotClip
from fedray.runtime.clients import ClientRuntime


def test_nothing_is_trained(run):
    done = run("zero_shot", {"rounds": 2})
    for result in done.results:
        assert "train_loss" not in result.metrics
        assert result.per_client == done.results[0].per_client
    assert all(model == {} for model in done.models.values())


def test_the_accuracy_is_that_of_the_text_that_is_asked_for(run):
    texts = {"algorithm.template": "a drawing of a {}, by hand"}
    plain, other = run("zero_shot"), run("zero_shot", texts)
    assert plain.results[0].per_client != other.results[0].per_client
    runtime = ClientRuntime(other.assembly, CPU)
    client = runtime.client(0, 1)
    features, labels = runtime.held_out(0, 1).test.tensors(CPU)
    model = ZeroShotClip(client.skeleton.model.clip, other.assembly.setting.class_names)
    with torch.no_grad():
        text = model.fixed_texts(texts["algorithm.template"])
    right = (F.normalize(features, dim=-1) @ text.T).argmax(1) == labels
    assert other.results[0].per_client[0] == pytest.approx(float(right.float().mean()))
