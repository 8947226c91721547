"""Images as people have them become what a model sees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from fedray.base.errors import UserError
from fedray.trained.images import Preprocessing

GREY, RGB = Preprocessing(1, 8, 8), Preprocessing(3, 16, 16)


def of(pixels: np.ndarray) -> torch.Tensor:
    """What a run makes of stored pixels."""
    return torch.from_numpy(pixels).float() * 2 / 255 - 1


@pytest.fixture
def picture():
    return np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)


def test_one_image_is_the_same_in_every_form(picture, tmp_path):
    expected = of(picture.transpose(2, 0, 1)[None])
    file = tmp_path / "one.png"
    Image.fromarray(picture).save(file)
    batch = picture.transpose(2, 0, 1)[None]
    forms = [
        file,
        str(file),
        [file],
        Image.open(file),
        Image.fromarray(picture).convert("RGBA"),
        batch,
        batch.astype(np.uint16),
        torch.from_numpy(batch.copy()),
        torch.from_numpy(batch.copy()).double() / 255,
    ]
    for form in forms:
        assert torch.allclose(RGB(form).values, expected, atol=1e-6)


def test_batches_of_grey_images(picture):
    grey = picture[None, None, :8, :8, 0]
    assert torch.allclose(GREY(grey).values, of(grey), atol=1e-6)
    assert GREY([]).values.shape == GREY(grey[:0]).values.shape == (0, 1, 8, 8)
    turned = np.ascontiguousarray(grey[..., ::-1])
    assert torch.equal(GREY(grey[..., ::-1]).values, GREY(turned).values)


@pytest.mark.parametrize("mode", ["P", "CMYK", "1", "LA"])
def test_a_picture_of_pillow_is_what_its_file_would_be(picture, mode, tmp_path):
    image = Image.fromarray(picture).convert(mode)
    file = tmp_path / "one.tiff"
    image.save(file)
    for model in (Preprocessing(1, 16, 16), RGB):
        assert torch.equal(model(image).values, model(file).values)


def test_other_sizes_and_colours_are_made_to_fit(picture, tmp_path):
    batch = picture.transpose(2, 0, 1)[None]
    assert GREY(batch).values.shape == (1, 1, 8, 8)
    assert RGB(batch[:, :1, :10]).values.shape == (1, 3, 16, 16)
    assert GREY(np.float32(batch) / 255).values.shape == (1, 1, 8, 8)
    files = []
    for number, size in enumerate([(20, 30), (50, 16)]):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(picture).resize(size).save(files[-1])
    assert RGB(files).values.shape == (2, 3, 16, 16)
    assert float(RGB(files).values.abs().max()) <= 1


def test_oblong_models_take_images_of_their_size_alone():
    oblong = Preprocessing(3, 8, 12)
    assert oblong(np.zeros((1, 3, 8, 12), np.uint8)).values.shape == (1, 3, 8, 12)
    with pytest.raises(UserError, match="has 8x12 pixels, but the model expects 12x8"):
        oblong(np.zeros((1, 3, 12, 8), np.uint8))


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (np.full((1, 1, 8, 8), 7.0), "values from 7 to 7, expected floats from 0 to 1"),
        (np.full((1, 1, 8, 8), -1, np.int8), "values from -1 to -1"),
        (np.full((1, 1, 8, 8), np.nan), "values from nan to nan"),
        (np.zeros((3, 8, 8)), r"shape \[3, 8, 8\], expected \[n, channels, H, W\]"),
        (np.zeros((2, 8, 8, 3)), r"shape \[2, 8, 8, 3\], expected \[n, channels, H, W\]"),
        (Image.fromarray(np.full((8, 8), 999, np.uint16)), "mode I;16, expected one with 8 bits"),
        ([__file__, np.zeros((8, 8))], "ndarray is neither a file nor a PIL image"),
        ("nowhere.png", "nowhere.png does not exist"),
        (".", "is a folder"),
        (__file__, "cannot be decoded"),
    ],
)
def test_what_cannot_be_read_is_said(images, said):
    with pytest.raises(UserError, match=said):
        GREY(images)


def test_a_model_of_squashed_images_squashes(tmp_path):
    pixels = np.zeros((20, 80, 3), np.uint8)
    pixels[:, :20] = 255
    for resize, white in (("squash", 0.25), (None, 0.0)):
        model = Preprocessing(3, 16, 16, "bilinear", resize)
        assert float(
            (model(pixels.transpose(2, 0, 1)[None]).values > 0).float().mean()
        ) == pytest.approx(white, abs=0.02)
    assert str(Preprocessing(3, 16, 16, "bilinear", "squash")) == (
        "16x16 pixels, RGB, both sides scaled, in [-1, 1]"
    )
