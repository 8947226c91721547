"""What users of this and of neighbouring tools reported about data, texts, models and keys."""

from __future__ import annotations

import json
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.errors import LocalEntryNotFoundError

from fedray.base.errors import UserError
from fedray.config import component, load_experiment
from fedray.core.training import augmented
from fedray.data.augment import Augmentation
from fedray.data.decoding import ReadOptions, decode
from fedray.data.sources import Listing, Row, Source
from fedray.language.encoders.weights import hub_folder
from fedray.language.names import names_for
from fedray.language.text_cache import cached_text_embeddings
from fedray.models.clip import small_clip_folder
from fedray.models.init import width_of
from fedray.models.prompted.texts import check_distinct
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


def test_a_null_switches_an_inherited_key_off_and_is_not_refused():
    assert resolve("fedavg_cifar100_paper", ["data.source=digits", "data.root=null"])


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
def test_images_are_scaled_as_the_clip_expects(tmp_path, preprocessing, resize):
    assert image_keys(resolve("promptfl_clip", [])).resize == "bilinear", "of the small CLIP"
    folder = shutil.copytree(small_clip_folder(), tmp_path / "clip")
    file = folder / "open_clip_config.json"
    content = json.loads(file.read_text())
    file.write_text(json.dumps({**content, "preprocess_cfg": preprocessing}))
    clip = ["model.clip=openclip", f"model.clip.path={folder}"]
    experiment = resolve("promptfl_clip", clip)
    if resize is None:
        with pytest.raises(UserError, match=r"set data\.resize"):
            image_keys(experiment)
    else:
        assert image_keys(experiment).resize == resize
    assert image_keys(resolve("promptfl_clip", [*clip, "data.resize=squash"])).resize == "squash"
    assert image_keys(resolve("fedavg_digits", ["data.image_size=16"])).resize is None


def test_the_preprocessing_of_transformers_is_read(tmp_path):
    content = {"resample": 2, "size": {"height": 9, "width": 9}, "image_mean": [0, 0, 0]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(content))
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()
    found = component("CLIP", "openclip", path=str(tmp_path)).build().source().preprocess
    assert found == {"mean": [0, 0, 0], "interpolation": "bilinear", "resize_mode": "squash"}


# --- own code of another type ---------------------------------------------------------------------


class Returns(Augmentation):
    """An augmentation that returns a function of the images."""

    name = "returns"
    function: Any = None

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
        augmented(Returns(function=function), images, torch.Generator())


@pytest.mark.parametrize("type_", [np.int64, np.float32, np.uint16])
def test_pixels_of_another_type_are_refused_with_theirs(type_):
    with pytest.raises(UserError, match=f"image 0 .*{np.dtype(type_)}"):
        decode([np.zeros((4, 4), type_)], "image {}".format, ReadOptions())


class Rows(Source):
    """A source of two images whose second label is given."""

    name, kept = "rows", False
    label: Any = None

    def listing(self, root, options):
        image, labels = np.zeros((4, 4), np.uint8), enumerate((0, self.label))
        rows = [Row(image, value, where=f"row {i}") for i, value in labels]
        return Listing(("cat", "dog"), rows)


@pytest.mark.parametrize("label", ["dog", 0.5, np.array([1]), None, 2, -1])
def test_a_label_that_is_no_position_is_refused_with_its_row(tmp_path, label):
    with pytest.raises(UserError, match="row 1 has the label"):
        Rows(label=label).load(tmp_path, ReadOptions())


@pytest.mark.parametrize("label", [1, np.int32(1), np.array(1), torch.tensor(1)])
def test_whole_numbers_of_any_type_are_labels(tmp_path, label):
    assert Rows(label=label).load(tmp_path, ReadOptions()).labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("function", "works"),
    [
        (lambda x: x.numpy(), True),
        (lambda x: x.double(), True),
        (lambda x: x.clone().requires_grad_(), True),
        (lambda x: x[:1], False),
        (lambda x: "text", False),
    ],
    ids=["numpy", "double", "gradient", "too few", "text"],
)
def test_features_of_a_text_encoder_may_be_any_array(monkeypatch, function, works):
    features = torch.arange(6.0).view(2, 3)
    choice = component("text encoder", "random", dim=3).build()
    monkeypatch.setattr(type(choice.build()), "features", lambda self, texts: function(features))
    monkeypatch.setattr(type(choice), "cached", False)
    if works:
        found = cached_text_embeddings(choice, ["a", "b"])
        assert torch.equal(found, features)
        assert found.dtype == torch.float32
        assert not found.requires_grad
    else:
        with pytest.raises(UserError, match=r"text\.encoder=random"):
            cached_text_embeddings(choice, ["a", "b"])


class Auxiliary(torch.nn.Flatten):
    """A network with a second output in training, as torchvision's GoogLeNet."""

    def forward(self, x):
        flat = super().forward(x)
        return (flat, flat) if self.training else flat


def test_a_network_with_other_outputs_in_training_is_refused():
    with pytest.raises(UserError, match=r"mine gives .* and tuple in training"):
        width_of("mine", Auxiliary(), 1, 4)


# --- messages -------------------------------------------------------------------------------------


def test_prompts_advise_no_file_that_the_source_does_not_read():
    with pytest.raises(UserError, match="rename the classes") as refused:
        check_distinct(None, ["1", "2", "3"])
    assert "dataset_info.json" not in str(refused.value)


def test_a_snapshot_of_the_hub_may_lack_files_in_every_version(monkeypatch, tmp_path):
    class Incomplete(LocalEntryNotFoundError):
        snapshot_path = str(tmp_path)

    def download(api, repository, local_files_only):
        raise Incomplete("some files are missing")

    (tmp_path / "vocab.txt").touch()
    monkeypatch.setattr("huggingface_hub.HfApi.snapshot_download", download)
    monkeypatch.delattr("huggingface_hub.errors.IncompleteSnapshotError")
    assert hub_folder("a.key", "a/b", model=False, words=True) == tmp_path
