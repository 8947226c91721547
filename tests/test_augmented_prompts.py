"""Prompts trained on random views: the tower sees every view, tests read what was kept."""

from __future__ import annotations

import pytest
import torch
from clips import CPU
from tensors import same

from fedray.models import ImageFeatures, PatchFeatures, Pixels
from fedray.runtime.groups import GroupRunner

VIEWS = {"data.augment": "resized_crop"}
ONE = {"rounds": 1, "data.clients": 2}


@pytest.mark.parametrize(
    ("method", "kept"),
    [("promptfl", ImageFeatures), ("fedotp", PatchFeatures), ("fedmgp", Pixels)],
)
def test_training_reads_pixels_and_tests_read_what_was_kept(assemble, method, kept):
    def kind(runtime):
        return runtime.assembly.models.samples(CPU)(runtime.assembly.data.test[0]).kind

    augmented = GroupRunner(assemble(method, VIEWS), CPU)
    assert augmented.client(0, 1).train.kind is Pixels
    assert kind(augmented) is kept
    plain = GroupRunner(assemble(method), CPU)
    assert plain.client(0, 1).train.kind is kind(plain) is kept


def test_other_views_train_other_prompts_and_the_same_views_the_same(run):
    plain, views, again = (run("promptfl", {**ONE, **each}) for each in ({}, VIEWS, VIEWS))
    assert views.same_clients_as(again)
    assert not same(plain.servers[-1]["model"], views.servers[-1]["model"])
    assert plain.results[0].metrics == views.results[0].metrics  # tests see no views


def test_views_of_the_whole_image_train_what_the_kept_features_do(run):
    """The one view that there is: up to rounding, the kept features and the pixels' are equal."""
    whole = {"name": "resized_crop", "scale_min": 1, "ratio_max": 1, "flip": False}
    plain, views = (run("promptfl", {**ONE, **each}) for each in ({}, {"data.augment": whole}))
    for name, prompt in plain.servers[-1]["model"].items():
        assert torch.allclose(prompt, views.servers[-1]["model"][name], atol=1e-5)
