"""data.classes: some classes of the data, by name and in the order of their labels."""

from __future__ import annotations

import json

import numpy as np
import pytest
from lab import refused
from PIL import Image

from fedray.base.errors import UserError
from fedray.config import load_experiment
from fedray.data import ReadOptions, load_images
from fedray.data.imageset import TEST, TRAIN

NAMES = ("bird", "cat", "dog", "owl")


def save(path, tone):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 6), tone, np.uint8)).save(path)


@pytest.fixture
def root(tmp_path):
    """Two domains; nobody painted an owl, and a dog's file is broken."""
    root = tmp_path / "domains"
    for d, domain in enumerate(("art", "photo")):
        for c, name in enumerate(NAMES):
            for i in range(3 if (domain, name) != ("art", "owl") else 0):
                save(root / domain / name / f"{i}.png", 100 * d + 10 * c + i)
    (root / "photo" / "dog" / "0.png").write_text("no image")
    return root


def test_labels_follow_the_order_of_the_names_and_other_files_are_not_read(root):
    found = load_images("domain_folder", root, ReadOptions(classes=("owl", "bird")))
    assert found.class_names == ("owl", "bird")
    tones = found.images[:, 0, 0, 0].tolist()
    expected = [(0, 1), (1, 1), (2, 1), (100, 1), (101, 1), (102, 1)]
    expected += [(130, 0), (131, 0), (132, 0)]
    assert list(zip(tones, found.labels.tolist(), strict=True)) == expected
    assert found.domains.ids.tolist() == [0] * 3 + [1] * 6
    refused(lambda: load_images("domain_folder", root), "dog/0.png")


def test_a_domain_without_the_classes_is_left_out(root):
    assert load_images("domain_folder", root, ReadOptions(classes=("owl",))).domains.names == (
        "photo",
    )


def test_a_split_file_may_list_the_other_classes_too(root):
    paths = sorted(path.relative_to(root).as_posix() for path in root.glob("*/*/*.png"))
    lists = {"train": [p for p in paths if "0" not in p], "test": [p for p in paths if "0" in p]}
    (root / "split.json").write_text(json.dumps(lists))
    options = ReadOptions(classes=("cat",), split="split.json")
    assert load_images("domain_folder", root, options).origin.tolist() == [TEST, TRAIN, TRAIN] * 2
    (root / "split.json").write_text(json.dumps({**lists, "test": [*lists["test"], "art/x.png"]}))
    refused(lambda: load_images("domain_folder", root, options), "art/x.png")


def test_any_source_can_be_filtered():
    whole = load_images("digits")
    names = [whole.class_names[7], whole.class_names[2]]
    found = load_images("digits", options=ReadOptions(classes=tuple(names)))
    kept = np.flatnonzero(np.isin(whole.labels, [7, 2]))
    assert found.class_names == tuple(names)
    assert np.array_equal(found.images, whole.images[kept])
    assert np.array_equal(found.labels, np.where(whole.labels[kept] == 7, 0, 1))
    assert np.array_equal(found.origin, whole.origin[kept])


def test_masks_cannot_be_filtered():
    refused(
        lambda: load_images("shapes", options=ReadOptions(classes=("circle", "cross"))),
        "data.classes",
    )


def test_a_name_that_is_not_there(root):
    message = r"data\.classes names 'brid', which it does not .* 4 classes.*Did you mean 'bird'"
    with pytest.raises(UserError, match=message):
        load_images("domain_folder", root, ReadOptions(classes=("cat", "brid")))
    refused(
        lambda: load_images("digits", options=ReadOptions(classes=("x", "y"))),
        "data.classes",
        "'x'",
    )
    refused(lambda: load_experiment({"data": {"classes": ["a", "b", "a"]}}), "data.classes", "'a'")
