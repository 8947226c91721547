"""CoOp's data sets are read as CoOp reads them; a missing one says where it comes from."""

from __future__ import annotations

import json

import numpy as np
from PIL import Image

from fedray.base.streams import Streams
from fedray.config import DataConfig, component
from fedray.data import ReadOptions, federate, load_images
from fedray.data.imageset import TEST, TRAIN, VALIDATION

NAMES = ("Apply_Eye_Makeup", "golf")


def save_image(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 8, 3), value, np.uint8)).save(path)


def write_set(tmp_path, train=2, val=1, test=1):
    """So many images of two classes; each is as bright as its place in train, val, test."""
    split, value = {}, 0
    for part, count in (("train", train), ("val", val), ("test", test)):
        split[part] = []
        for label in (1, 0):
            for _ in range(count):
                path = f"{NAMES[label]}/{value}.png"
                save_image(tmp_path / "oxford_pets/images" / path, value)
                split[part].append([path, label, NAMES[label]])
                value += 1
    file = tmp_path / "oxford_pets/split_zhou_OxfordPets.json"
    file.write_text(json.dumps(split))
    return file


def load(file, **kwargs):
    return load_images("coop", file.parent, ReadOptions(**{"image_size": 6, **kwargs}))


def test_the_split_file_says_labels_names_and_splits(tmp_path):
    images = load(write_set(tmp_path))
    assert images.class_names == ("Apply Eye Makeup", "golf")
    assert images.labels.tolist() == [1, 1, 0, 0, 1, 0, 1, 0]
    assert images.origin.tolist() == [TRAIN] * 4 + [VALIDATION] * 2 + [TEST] * 2
    assert images.images[:, 0, 3, 3].tolist() == list(range(8))
    assert images.shape == (3, 6, 6)


def test_images_are_scaled_bicubically(tmp_path):
    file = write_set(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    image.save(file.parent / "images/golf/0.png")
    expected = np.asarray(image.resize((16, 12), Image.Resampling.BICUBIC))[:, 2:14]
    assert np.array_equal(load(file, image_size=12).images[0], expected.transpose(2, 0, 1))


DOMINANT = component("partition", "dominant_class", excluded=0)


def federated(images, partition, clients, test):
    return federate(
        images, partition.build(), DataConfig(clients=clients, test=test), Streams(0).numpy
    )


def test_val_is_neither_trained_nor_tested_on(tmp_path):
    images = load(write_set(tmp_path, train=8, val=4, test=4))
    for test in ("official", "local"):
        data = federated(images, component("partition", "iid"), 2, test)
        used = images.origin[data.used]
        assert np.bincount(used, minlength=3).tolist() == [16, 8, 0]


def test_clients_of_few_shots_validate_on_val(tmp_path):
    images = load(write_set(tmp_path, train=16, val=4, test=8))
    for test in ("official", "local"):
        data = federated(images, DOMINANT, 3, test)
        for train, validation, test in zip(data.train, data.validation, data.test, strict=True):
            assert sorted(np.bincount(images.labels[validation])) == [1, 4]
            assert (images.origin[validation] == VALIDATION).all()
            assert not (images.origin[np.concatenate([train, test])] == VALIDATION).any()
            assert len(train) == 20 or test == "local"


def test_another_split_may_replace_coops(tmp_path):
    file = write_set(tmp_path)
    paths = [f"images/golf/{i}.png" for i in (0, 1, 4, 6)]
    rest = [f"images/Apply_Eye_Makeup/{i}.png" for i in (2, 3, 5, 7)]
    (file.parent / "mine.json").write_text(json.dumps({"train": paths, "test": rest}))
    images = load(file, split="mine.json")
    assert images.origin.tolist() == [TRAIN, TRAIN, TEST, TEST, TRAIN, TEST, TRAIN, TEST]
