"""`data.resize`: images are prepared as by open_clip's own transforms, bit for bit."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from fedray.data import ReadOptions
from fedray.data.decoding import decode
from fedray.data.sources import load_images
from fedray.models import Pixels
from fedray.runtime.resolve import resolve

SIZES = ((224, 224), (500, 375), (333, 500), (97, 71), (32, 32), (225, 224), (1000, 301), (63, 64))


def image(width, height, mode="RGB"):
    random = np.random.default_rng(width)
    rows = random.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    small = Image.fromarray(rows).resize((width, height), Image.Resampling.BILINEAR)
    return small.convert(mode)


def encoded(picture):
    file = BytesIO()
    picture.save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_clips_preprocessing_is_open_clips_own(mode):
    from open_clip import image_transform

    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    transform = image_transform(64, is_train=False, mean=mean, std=std)
    for size in SIZES:
        picture = image(*size, mode)
        options = ReadOptions(image_size=64, channels=3, resize="bicubic")
        (ours,) = decode([encoded(picture)], str, options)
        pixels = (Pixels.of(torch.from_numpy(ours)).values + 1) / 2
        normalised = (pixels - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        assert torch.allclose(normalised, transform(picture), rtol=0, atol=1e-6), size


def test_without_it_a_source_scales_as_it_did():
    """Bilinear, and margins rounded down."""
    picture = image(97, 71)
    (ours,) = decode([encoded(picture)], str, ReadOptions(image_size=64, channels=3))
    scaled = picture.resize((87, 64), Image.Resampling.BILINEAR)
    assert (ours.transpose(1, 2, 0) == np.asarray(scaled.crop((11, 0, 75, 64)))).all()


@pytest.mark.parametrize(
    ("resize", "size", "box"),
    [("bicubic", (87, 64), (12, 0, 76, 64)), ("squash", (64, 64), (0, 0, 64, 64))],
)
def test_masks_are_scaled_and_cut_as_their_images(tmp_path, resize, size, box):
    """97x71 pixels become 87x64, whose margin of 11.5 torchvision rounds to 12, or are squashed."""
    ids = np.random.default_rng(0).integers(0, 3, (71, 97), dtype=np.uint8)
    for folder, picture in (("images", image(97, 71)), ("masks", Image.fromarray(ids))):
        (tmp_path / "a" / "train" / folder).mkdir(parents=True)
        picture.save(tmp_path / "a" / "train" / folder / "0.png")
    (tmp_path / "classes.json").write_text('["ground", "cat", "dog"]')
    found = load_images("mask_folder", tmp_path, ReadOptions(image_size=64, resize=resize))
    scaled = Image.fromarray(ids).resize(size, Image.Resampling.NEAREST)
    assert np.array_equal(found.masks[0], np.asarray(scaled.crop(box)))


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("resize", ["squash", "squash_bicubic"])
def test_squash_is_torchvisions_resize_to_both_sides(mode, resize):
    """As FedBN's and FedGLCL's code, transforms.Resize([S, S])."""
    from torchvision.transforms import InterpolationMode, Resize

    names = {"squash": InterpolationMode.BILINEAR, "squash_bicubic": InterpolationMode.BICUBIC}
    for size in SIZES:
        picture = image(*size, mode)
        options = ReadOptions(image_size=64, channels=3, resize=resize)
        (ours,) = decode([encoded(picture)], str, options)
        expected = Resize([64, 64], names[resize])(picture.convert("RGB"))
        assert np.array_equal(ours, np.asarray(expected).transpose(2, 0, 1)), size


def test_squash_keeps_the_sides_of_any_image():
    """Without a crop no image is too oblong, and nothing of it is lost."""
    pixels = np.zeros((20, 4000, 3), np.uint8)
    pixels[:, :1000] = 255
    options = ReadOptions(image_size=16, channels=3, resize="squash")
    (ours,) = decode([encoded(Image.fromarray(pixels))], str, options)
    assert (ours > 127).mean() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("name", ["office", "domainnet"])
def test_fedglcl_squashes_as_its_code(name):
    data = resolve(f"fedglcl_{name}_paper", ["data.root=/tmp"]).data
    assert (data.image_size, data.resize, data.split) == (256, "squash", "lists")
    assert resolve("fedglcl_office", ["data.root=/tmp"]).data.resize is None
