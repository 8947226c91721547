"""Augmentations move pixels, draw anew for every image, and read no global generator."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from tensors import seeded

from fedray.config import component
from fedray.data.augment import (
    NO_AUGMENTATION,
    _rotated,
    augmentations,
)

MOVING = sorted({*augmentations.names()} - {"none"})
GEOMETRIC = ("flip_crop", "flip_rotate")


def images(count=64, channels=3, height=9, width=12):
    random = torch.Generator().manual_seed(1)
    shape = (count, channels, height, width)
    return torch.randint(1, 256, shape, generator=random, dtype=torch.uint8)


def crops(image):
    """Every crop of a padded image, as it is and flipped."""
    _, height, width = image.shape
    padded = torch.nn.functional.pad(image, (4, 4, 4, 4))
    for row in range(9):
        for column in range(9):
            crop = padded[:, row : row + height, column : column + width]
            yield from ((row, column, False, crop), (row, column, True, crop.flip(2)))


def made(name, **params):
    return component("augmentation", name, key="data.augment", **params).build()


def test_they_are_values():
    """Frozen settings that hold them compare, hash and travel to other processes."""
    assert made("none") == NO_AUGMENTATION
    assert made("flip_crop") == made("flip_crop", padding=4) != made("flip_crop", padding=3)
    assert made("flip_crop") != made("flip_rotate")
    assert len({made("flip_crop"), made("flip_crop", padding=4), made("none")}) == 2
    assert pickle.loads(pickle.dumps(made("flip_crop", padding=3))) == made("flip_crop", padding=3)


def test_none_gives_the_same_images_and_draws_nothing():
    random, batch = seeded(), images()
    before = random.get_state()
    assert NO_AUGMENTATION(batch, random) is batch
    assert torch.equal(random.get_state(), before)


@pytest.mark.parametrize("name", MOVING)
def test_a_stream_gives_the_same_views_and_the_next_batch_others(name):
    augment, batch, torch_state = made(name), images(), torch.get_rng_state()
    kept, random = batch.clone(), seeded()
    first, second = augment(batch, random), augment(batch, random)
    assert first.dtype == torch.uint8
    assert first.shape == batch.shape
    assert first.is_contiguous()
    assert torch.equal(augment(batch, seeded()), first)
    assert not torch.equal(first, second)
    assert torch.equal(batch, kept)
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_flip_crop_gives_crops_of_the_padded_image():
    batch = images(count=300, channels=2)
    seen = []
    for image, view in zip(batch, made("flip_crop")(batch, seeded()), strict=True):
        places = [where for *where, crop in crops(image) if torch.equal(crop, view)]
        assert len(places) == 1
        seen.append(places[0])
    rows, columns, flips = zip(*seen, strict=True)
    assert set(rows) == set(columns) == set(range(9))
    assert 110 < sum(flips) < 190  # 150 +- 4.6 deviations of a fair coin


def test_padding_bounds_the_shift():
    batch = images(count=100, channels=1)
    for image, view in zip(batch, made("flip_crop", padding=1)(batch, seeded()), strict=True):
        (row, column, *_), *others = [
            where for *where, crop in crops(image) if torch.equal(crop, view)
        ]
        assert not others
        assert {row, column} <= {3, 4, 5}


def test_without_padding_or_angle_images_are_only_flipped():
    batch = images(count=100)
    for augment in (made("flip_crop", padding=0), made("flip_rotate", max_angle=0)):
        views = augment(batch, seeded())
        flipped = [
            torch.equal(view, image.flip(2)) for view, image in zip(views, batch, strict=True)
        ]
        kept = [torch.equal(view, image) for view, image in zip(views, batch, strict=True)]
        assert all(a != b for a, b in zip(flipped, kept, strict=True))
        assert 30 < sum(flipped) < 70


def test_flip_rotate_is_pillows_rotation_by_up_to_30_degrees():
    """Nearest pixels, black corners; a pixel on the edge between two may fall on either side."""
    batch = images(count=40, height=24, width=24)
    smooth = torch.nn.functional.interpolate(batch.float(), scale_factor=1 / 6, mode="area")
    batch = torch.nn.functional.interpolate(smooth, size=24, mode="nearest").to(torch.uint8)
    flips, angles = 0, []
    for image, view in zip(batch, made("flip_rotate")(batch, seeded()), strict=True):
        found = min(
            (
                np.mean(np.asarray(turned.rotate(angle)) != view.permute(1, 2, 0).numpy()),
                flip,
                angle,
            )
            for flip, turned in enumerate(
                Image.fromarray(one.permute(1, 2, 0).numpy()) for one in (image, image.flip(2))
            )
            for angle in np.arange(-30, 30.5, 0.5)
        )
        assert found[0] < 0.03
        flips += found[1]
        angles.append(found[2])
    assert 8 < flips < 32
    assert min(angles) < -20 < 20 < max(angles)


def test_what_is_turned_in_from_outside_is_black():
    white = torch.full((200, 1, 32, 32), 255, dtype=torch.uint8)
    for name in GEOMETRIC:
        views = made(name)(white, seeded())
        assert set(views.unique().tolist()) == {0, 255}
        assert (views[:, :, 12:20, 12:20] == 255).all()


def test_a_resized_crop_is_pillows_of_its_box():
    """Pillow rounds between its two passes, so that a level of difference is left."""
    batch = images(count=40, height=24, width=32)
    smooth = torch.nn.functional.interpolate(batch.float(), scale_factor=1 / 8, mode="area")
    batch = torch.nn.functional.interpolate(smooth, size=(24, 32), mode="bicubic").clamp(0, 255)
    batch, augment = batch.to(torch.uint8), made("resized_crop")
    views, boxes, flips = augment(batch, seeded()), augment.boxes(40, 24, 32, seeded()), 0
    for image, view, (top, left, rows, columns) in zip(batch, views, boxes.tolist(), strict=True):
        whole = Image.fromarray(image.permute(1, 2, 0).numpy())
        part = whole.crop((left, top, left + columns, top + rows))
        expected = np.asarray(part.resize((32, 24), Image.Resampling.BICUBIC)).astype(int)
        found = view.permute(1, 2, 0).numpy().astype(int)
        as_it_is, flipped = (np.abs(each - expected).max() for each in (found, found[:, ::-1]))
        assert min(as_it_is, flipped) <= 2
        flips += flipped < as_it_is
    assert 8 < flips < 32


def test_boxes_of_resized_crops_have_torchvisions_areas_and_ratios():
    height, width = 40, 60
    boxes = made("resized_crop", scale_min=0.25, scale_max=0.5).boxes(4000, height, width, seeded())
    top, left, rows, columns = boxes.T.tolist()
    for t, h, le, w in zip(top, rows, left, columns, strict=True):
        assert 0 <= t <= height - h
        assert 0 <= le <= width - w
        assert 0.24 <= h * w / (height * width) <= 0.51
        assert 0.72 <= w / h <= 1.39
    areas = boxes[:, 2] * boxes[:, 3] / (height * width)
    assert areas.mean() == pytest.approx(0.375, abs=0.01)
    assert {t for t, h in zip(top, rows, strict=True) if h == 30} == set(range(11))


def test_a_box_that_never_fits_is_the_middle():
    """A strip of 10 by 100 pixels has no part that is all of it and of an allowed ratio."""
    boxes = made("resized_crop", scale_min=1).boxes(3, 10, 100, seeded())
    assert boxes.tolist() == [[0, 43, 10, 13]] * 3
    assert made("resized_crop", scale_min=1, ratio_max=1).boxes(1, 8, 8, seeded()).tolist() == [
        [0, 0, 8, 8]
    ]


def test_crop_flip_rotate_is_the_one_after_the_other():
    batch, random = images(), seeded()
    cropped = made("flip_crop")(batch, random)
    rows, columns = _rotated(batch, 15.0, random)
    _, channels, height, width = batch.shape
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    place = (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).flatten(1)
    turned = cropped.flatten(2).gather(2, place.unsqueeze(1).expand(-1, channels, -1))
    expected = turned.view(batch.shape) * inside.unsqueeze(1)
    assert torch.equal(made("crop_flip_rotate")(batch, seeded()), expected)
    assert not torch.equal(expected, cropped)
    straight = made("crop_flip_rotate", max_angle=0)(batch, seeded())
    assert torch.equal(straight, cropped)
