"""What users of this and of neighbouring tools reported about data, texts, models and keys."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL.Image import Resampling, fromarray

from fedray.config import load_experiment
from fedray.core.training import augmented
from fedray.data.augment import Augmentation
from fedray.data.decoding import ReadOptions, decode
from fedray.errors import UserError
from fedray.language.encoders.clip_layouts import converted_preprocessing
from fedray.language.encoders.openclip_weights import WeightSource
from fedray.language.names import names_for
from fedray.runtime.assembly import image_keys
from fedray.runtime.resolve import resolve

# --- keys without effect --------------------------------------------------------------------------

REFUSED = {
    "texts of a method without texts": ("fedavg_digits", "text.encoder=bert"),
    "names of classes for prompts": ("promptfl_clip", "text.names=[cat, dog]"),
    "a file of descriptions for prompts": ("promptfl_clip", "text.descriptions=missing.json"),
    "a backbone for prompts": ("promptfl_clip", "model.group=mlp"),
    "weights of a backbone for prompts": ("promptfl_clip", "model.pretrained=weights.pth"),
    "a CLIP for backbones": ("fedavg_digits", "model.clip=openclip"),
    "bits of uploads that do not exist": ("local_digits", "wire.up_bits=8"),
    "precision of frozen texts": ("fedglcl_digits", "text.precision=bfloat16"),
    "a folder for the digits": ("fedavg_digits", "data.root=/tmp"),
}
"""Experiment with its method, and a key that nothing reads there."""

NAMED = {
    "official tests": ("fedavg_digits", "data.test_samples=5"),
    "local tests": ("fedavg_shapes", "data.test_fraction=0.4"),
    "nobody joins": ("fedavg_digits", "join.round=3"),
    "no privacy": ("fedavg_digits", "privacy.delta=0.1"),
    "no descriptions": ("fedglcl_digits text.style=name", "text.template=a {description}"),
    "no prompts": ("fedtsp_digits algorithm.prompt_length=0", "algorithm.prompt_lr=0.5"),
    "nothing is trained": ("promptfl_clip algorithm=zero_shot", "lr=0.1"),
    "no warm-up": ("fedavg_digits", "lr_schedule.warmup_lr=0.5"),
}
"""Experiment with other keys, and a key that one of them switches off."""


@pytest.mark.parametrize(("base", "key"), REFUSED.values(), ids=REFUSED)
def test_a_key_that_nothing_reads_is_refused(base, key):
    with pytest.raises(UserError, match=key.partition("=")[0]):
        resolve(base.split()[0], [*base.split()[1:], key])


@pytest.mark.parametrize(("base", "key"), NAMED.values(), ids=NAMED)
def test_a_key_that_another_one_switches_off_is_named(base, key, caplog):
    name, *keys = base.split()
    keyed = resolve(name, [*keys, key])
    assert key.partition("=")[0] in caplog.text
    assert keyed.identity() == resolve(name, keys).identity()


def test_keys_of_a_shipped_experiment_that_a_method_does_not_read_are_no_part_of_its_identity(
    tmp_path, caplog
):
    texts = resolve("fedtsp_digits", ["algorithm=fedavg", "model.feature_dim=64"])
    file = tmp_path / "mine.yaml"
    file.write_text("extends: fedtsp_digits\nname: fedtsp_digits\ntext: {style: name}\n")
    assert not caplog.text
    other = resolve(str(file), ["algorithm=fedavg", "model.feature_dim=64"])
    assert other.identity() == texts.identity()
    assert "text.style" in caplog.text


# --- names ----------------------------------------------------------------------------------------

NUMBERED = sorted(map(str, range(1, 13)))
"""1, 10, 11, 12, 2, ...: the order of folders."""


@pytest.mark.parametrize(
    ("names", "classes", "expected"),
    [
        ([f"name {i}" for i in range(1, 13)], NUMBERED, "'1'"),
        ({"2": "cat", "1": "dog"}, ["1", "2"], ("dog", "cat")),
        ({"Cat_A": "lynx", "St. Bernard": "dog"}, ["St. Bernard", "cat a"], ("dog", "lynx")),
        ({"1": "dog"}, ["1", "2"], "'2'"),
        ({"1": "dog", "2": "cat", "3": "owl"}, ["1", "2"], "'3'"),
        (["a", "b", "c"], ["2", "10", "1"], ("a", "b", "c")),
    ],
)
def test_names_go_to_the_classes_that_they_mean(tmp_path, names, classes, expected):
    file = tmp_path / "names.json"
    file.write_text(json.dumps(names))
    for given in (names, str(file)):
        if isinstance(expected, tuple):
            assert names_for(given, classes) == expected
        else:
            with pytest.raises(UserError, match=expected):
                names_for(given, classes)


def test_a_mapping_of_names_is_a_value_of_its_key():
    names = {"1": "dog", "St. Bernard": "saint"}
    keyed = resolve("fedtsp_digits", [f"text.names={json.dumps(names)}"])
    assert keyed.text.names == names == load_experiment(keyed.tree()).text.names


# --- preprocessing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preprocessing", "resize"),
    [
        ({}, "bicubic"),
        ({"interpolation": "bilinear", "resize_mode": "shortest"}, "bilinear"),
        ({"interpolation": "bicubic", "resize_mode": "squash"}, "squash_bicubic"),
        ({"interpolation": "bilinear", "resize_mode": "squash"}, "squash"),
        ({"resize_mode": "longest"}, None),
    ],
)
def test_images_are_scaled_as_the_clip_expects(monkeypatch, preprocessing, resize):
    monkeypatch.setattr(WeightSource, "preprocessing", lambda self: preprocessing)
    clip = ["model.clip=openclip", "model.clip.model=ViT-B-32", "model.clip.pretrained=random"]
    experiment = resolve("promptfl_clip", clip)
    if resize is None:
        with pytest.raises(UserError, match=r"set data\.resize"):
            image_keys(experiment)
    else:
        assert image_keys(experiment).resize == resize
    assert image_keys(resolve("promptfl_clip", [*clip, "data.resize=squash"])).resize == "squash"
    assert image_keys(resolve("promptfl_clip", [])).resize is None
    assert image_keys(resolve("fedavg_digits", ["data.image_size=16"])).resize is None


def test_the_preprocessing_of_transformers_is_read(tmp_path):
    content = {"resample": 2, "size": {"height": 9, "width": 9}, "image_mean": [0, 0, 0]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    found = converted_preprocessing(tmp_path, "model.clip")
    assert found == {"mean": [0, 0, 0], "interpolation": "bilinear", "resize_mode": "squash"}


@pytest.mark.parametrize(
    ("resize", "filter_"), [("squash", Resampling.BILINEAR), ("squash_bicubic", Resampling.BICUBIC)]
)
def test_both_sides_are_scaled_with_the_filter(resize, filter_):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    (found,) = decode([pixels], str, ReadOptions(image_size=16, resize=resize))
    expected = np.asarray(fromarray(pixels).resize((16, 16), filter_))
    assert np.array_equal(found.transpose(1, 2, 0), expected)


# --- own code of another type ---------------------------------------------------------------------


class Returns(Augmentation):
    """An augmentation that returns a function of the images."""

    name = "returns"

    def __init__(self, function):
        super().__init__()
        self.function = function

    def __call__(self, images, generator):
        return self.function(images)


@pytest.mark.parametrize(
    "function",
    [lambda images: images.float() / 255, lambda images: images.float(), lambda images: images[:1]],
    ids=["floats from 0 to 1", "floats from 0 to 255", "another number"],
)
def test_augmented_images_of_another_type_or_shape_are_refused(function):
    images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    with pytest.raises(UserError, match=r"data\.augment=returns"):
        augmented(Returns(function), images, torch.Generator())


@pytest.mark.parametrize("type_", [np.int64, np.float32, np.uint16])
def test_pixels_of_another_type_are_refused_with_theirs(type_):
    with pytest.raises(UserError, match=f"image 0 .*{np.dtype(type_)}"):
        decode([np.zeros((4, 4), type_)], "image {}".format, ReadOptions())
