"""Augmentations move pixels, draw anew for every image, and read no global generator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from fedray.config import DataConfig
from fedray.data.augment import AUGMENTATIONS, augment


def images(count=64, channels=3, height=9, width=12):
    random = torch.Generator().manual_seed(1)
    shape = (count, channels, height, width)
    return torch.randint(1, 256, shape, generator=random, dtype=torch.uint8)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def crops(image):
    """Every crop of a padded image, as it is and flipped."""
    _, height, width = image.shape
    padded = torch.nn.functional.pad(image, (4, 4, 4, 4))
    for row in range(9):
        for column in range(9):
            crop = padded[:, row : row + height, column : column + width]
            yield from ((row, column, False, crop), (row, column, True, crop.flip(2)))


def test_every_name_of_the_key_is_there():
    names = DataConfig.model_fields["augment"].annotation.__args__
    assert set(names) == {"none", *AUGMENTATIONS}


def test_none_gives_the_same_images_and_draws_nothing():
    random, batch = seeded(), images()
    before = random.get_state()
    assert augment(batch, "none", random) is batch
    assert torch.equal(random.get_state(), before)


@pytest.mark.parametrize("how", AUGMENTATIONS)
def test_a_stream_gives_the_same_views_and_the_next_batch_others(how):
    batch, torch_state = images(), torch.get_rng_state()
    kept, random = batch.clone(), seeded()
    first, second = augment(batch, how, random), augment(batch, how, random)
    assert first.dtype == torch.uint8
    assert first.shape == batch.shape
    assert first.is_contiguous()
    assert torch.equal(augment(batch, how, seeded()), first)
    assert not torch.equal(first, second)
    assert torch.equal(batch, kept)
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_flip_crop_gives_crops_of_the_padded_image():
    batch = images(count=300, channels=2)
    seen = []
    for image, view in zip(batch, augment(batch, "flip_crop", seeded()), strict=True):
        places = [where for *where, crop in crops(image) if torch.equal(crop, view)]
        assert len(places) == 1
        seen.append(places[0])
    rows, columns, flips = zip(*seen, strict=True)
    assert set(rows) == set(columns) == set(range(9))
    assert 110 < sum(flips) < 190  # 150 +- 4.6 deviations of a fair coin


def test_flip_rotate_is_pillows_rotation_by_up_to_30_degrees():
    """Nearest pixels, black corners; a pixel on the edge between two may fall on either side."""
    batch = images(count=40, height=24, width=24)
    smooth = torch.nn.functional.interpolate(batch.float(), scale_factor=1 / 6, mode="area")
    batch = torch.nn.functional.interpolate(smooth, size=24, mode="nearest").to(torch.uint8)
    flips, angles = 0, []
    for image, view in zip(batch, augment(batch, "flip_rotate", seeded()), strict=True):
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
    for how in AUGMENTATIONS:
        views = augment(white, how, seeded())
        assert set(views.unique().tolist()) == {0, 255}
        assert (views[:, :, 12:20, 12:20] == 255).all()
