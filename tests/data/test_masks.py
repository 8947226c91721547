"""Images with masks: the shapes that are drawn, folders that are read, and one sentence if not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from fedray.base.errors import UserError
from fedray.data import ReadOptions, load_images
from fedray.data.imageset import TEST, TRAIN, ImageSet, dominant_classes
from fedray.data.sources.shapes import Shapes

# --- image sets ----------------------------------------------------------------------------------


def made(masks, classes=3):
    n = len(masks)
    return ImageSet(
        "made",
        np.zeros((n, 1, 2, 2), np.uint8),
        np.zeros(n, np.int64),
        tuple("abcd"[:classes]),
        np.zeros(n, np.int8),
        masks=masks,
    )


def test_the_dominant_class_by_hand():
    masks = np.array([[[0, 0], [0, 2]], [[1, 2], [2, 0]], [[2, 1], [0, 0]], [[0, 0], [0, 0]]])
    assert dominant_classes(masks.astype(np.uint8), 3).tolist() == [2, 2, 1, 0]


def test_masks_are_part_of_what_identifies_images():
    one = np.zeros((2, 2, 2), np.uint8)
    other = one.copy()
    other[1, 1, 1] = 2
    hashes = {made(one).sha256, made(other).sha256, made(one[:0]).sha256}
    assert len(hashes) == 3
    assert made(one.copy()).sha256 in hashes
    assert not made(other).masks.flags.writeable


# --- shapes --------------------------------------------------------------------------------------


def test_shapes_are_always_the_same_and_drawn_once(monkeypatch):
    first = load_images("shapes")
    shapes, options = Shapes(), ReadOptions()
    root = shapes.find_root(None, download=False)
    again = shapes.read(shapes.chosen(root, options), options)
    assert first.sha256 == again.sha256
    monkeypatch.setattr(Shapes, "read", None)
    mapped = load_images("shapes")
    assert isinstance(mapped.masks, np.memmap)
    assert np.array_equal(mapped.masks, again.masks)


def test_every_style_has_every_shape_and_a_look_of_its_own():
    shapes = load_images("shapes")
    assert shapes.shape == (3, 32, 32)
    assert shapes.class_names == ("background", "circle", "square", "triangle", "cross")
    assert set(shapes.labels.tolist()) == {1, 2, 3, 4}
    assert shapes.domains.names == ("paper", "night", "stripes", "chessboard")
    grounds = []
    for domain in range(4):
        in_domain = shapes.domains.ids == domain
        assert np.bincount(shapes.origin[in_domain]).tolist() == [160, 40]
        for split in (TRAIN, TEST):
            pixels = np.bincount(shapes.masks[in_domain & (shapes.origin == split)].ravel())
            assert len(pixels) == 5
            assert (pixels[1:] > 0.02 * pixels.sum()).all()
        ground = np.moveaxis(shapes.images[in_domain], 1, 3)[shapes.masks[in_domain] == 0]
        grounds.append((ground.mean(), ground.std()))
    apart = [abs(a - b).max() for i, a in enumerate(np.array(grounds)) for b in grounds[:i]]
    assert min(apart) > 20


def test_shapes_in_other_sizes_and_grey():
    shapes = load_images("shapes", options=ReadOptions(image_size=20, channels=1))
    assert shapes.shape == (1, 20, 20)
    assert shapes.masks.shape == (800, 20, 20)
    with pytest.raises(
        UserError, match=r"data.image_size=15 is too small .* needs at least 16; raise it"
    ):
        load_images("shapes", options=ReadOptions(image_size=15))


# --- mask folder ---------------------------------------------------------------------------------


def write(folder, name, mask, *, mode="L", image_size=None):
    """An image whose red is ten times its mask, and the mask."""
    ids = np.array(mask, np.uint8)
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    red = Image.fromarray(np.stack([10 * ids, ids, ids], 2))
    red.resize(image_size or red.size).save(folder / "images" / f"{name}.png")
    labelled = Image.fromarray(ids)
    if mode == "P":
        labelled.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200])
    labelled.convert(mode).save(folder / "masks" / f"{name}.png")


def names(root, content=("nothing", "lung", "heart")):
    (root / "classes.json").write_text(json.dumps(content))


def test_a_folder_of_images_with_masks(tmp_path):
    write(tmp_path / "north/train", "b", [[0, 1], [1, 2]])
    write(tmp_path / "north/train", "a", [[0, 0], [0, 2]], mode="P")
    write(tmp_path / "north/test", "a", [[0, 0], [0, 0]])
    write(tmp_path / "east/train", "a", [[2, 2], [0, 1]])
    names(tmp_path)
    found = load_images("mask_folder", tmp_path)
    assert found.class_names == ("nothing", "lung", "heart")
    assert found.domains.names == ("east", "north")
    assert found.domains.ids.tolist() == [0, 1, 1, 1]
    assert found.origin.tolist() == [TRAIN, TEST, TRAIN, TRAIN]
    assert found.labels.tolist() == [2, 0, 2, 1]
    expected = [[[2, 2], [0, 1]], [[0, 0], [0, 0]], [[0, 0], [0, 2]], [[0, 1], [1, 2]]]
    assert found.masks.tolist() == expected
    assert np.array_equal(found.images[:, 0], 10 * found.masks)


def test_an_edited_mask_is_read_anew(tmp_path):
    write(tmp_path / "a/train", "x", [[0, 1], [1, 2]])
    names(tmp_path)
    load_images("mask_folder", tmp_path)
    Image.new("L", (2, 2), 2).save(tmp_path / "a/train/masks/x.png")
    assert load_images("mask_folder", tmp_path).masks.tolist() == [[[2, 2], [2, 2]]]


def test_masks_are_scaled_with_their_images_but_stay_ids(tmp_path):
    mask = np.zeros((12, 16), np.uint8)
    mask[:, 7:] = 2  # between two pixels of the result
    write(tmp_path / "a/train", "wide", mask)
    names(tmp_path)
    found = load_images("mask_folder", tmp_path, ReadOptions(image_size=6))
    assert found.masks.shape == (1, 6, 6)
    assert set(found.masks.ravel().tolist()) == {0, 2}
    inner = np.delete(np.arange(6), [2, 3])  # away from the edge, where the image is blurred
    assert np.array_equal(found.images[0, 0][:, inner], 10 * found.masks[0][:, inner])


@pytest.mark.parametrize(("low", "high"), [(0, 255), (0, 1), (3, 7)])
def test_of_two_classes_any_two_values_will_do(tmp_path, low, high):
    write(tmp_path / "a/train", "x", [[low, high], [high, high]])
    write(tmp_path / "a/train", "y", [[low, low], [low, low]])
    names(tmp_path, ["background", "prostate"])
    found = load_images("mask_folder", tmp_path)
    assert found.masks.tolist() == [[[0, 1], [1, 1]], [[0, 0], [0, 0]]]
    assert found.labels.tolist() == [1, 0]
