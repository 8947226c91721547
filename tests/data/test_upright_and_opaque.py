"""Pixels are upright as EXIF says, and transparent images are on white; other bits stay."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from image_files import encode
from lab import refused
from PIL import Image, ImageOps, PngImagePlugin

from fedray.data import ReadOptions
from fedray.data.decoding import decode, decode_masks
from fedray.trained.images import Preprocessing

RNG = np.random.default_rng(0)
PICTURE = Image.fromarray(RNG.integers(0, 256, (8, 12, 3), dtype=np.uint8))
"""Twelve pixels wide, eight high, as stored."""
XMP = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="{}"/></x:xmpmeta>'


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def late_exif(orientation: int) -> bytes:
    """A PNG with its EXIF behind the pixels, as some editors write it."""
    png, tags = encode(PICTURE), exif(orientation).tobytes().removeprefix(b"Exif\x00\x00")
    end = png.rindex(b"IEND") - 4
    check = struct.pack(">I", zlib.crc32(b"eXIf" + tags))
    return png[:end] + struct.pack(">I", len(tags)) + b"eXIf" + tags + check + png[end:]


def in_xmp(orientation: int) -> bytes:
    info = PngImagePlugin.PngInfo()
    info.add_itxt("XML:com.adobe.xmp", XMP.format(orientation))
    return encode(PICTURE, pnginfo=info)


def saved(kind: str, **options):
    return lambda orientation: encode(PICTURE, kind, exif=exif(orientation), **options)


FORMATS = {
    "png": saved("PNG"),
    "png, behind the pixels": late_exif,
    "png, XMP": in_xmp,
    "jpeg": saved("JPEG"),
    "webp": saved("WEBP", lossless=True),
    "tiff": lambda n: encode(PICTURE, "TIFF", tiffinfo={274: n}),
}


def with_exif(image: Image.Image, orientation: int) -> Image.Image:
    image.getexif()[0x0112] = orientation
    return image


def pixels_of(stored: bytes, **options) -> np.ndarray:
    return decode([stored], str, ReadOptions(**options))[0].transpose(1, 2, 0)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("make", FORMATS.values(), ids=FORMATS)
def test_images_are_turned_as_their_orientation_says(make, orientation):
    plain = Image.open(io.BytesIO(make(1))).convert("RGB")
    expected = np.asarray(ImageOps.exif_transpose(with_exif(plain, orientation)))
    assert np.array_equal(pixels_of(make(orientation)), expected)


@pytest.mark.parametrize("tags", [exif(0), exif(9), exif(77), b"Exif\x00\x00II*\x00\xff\xff"])
def test_an_orientation_that_is_none_changes_nothing(tags):
    assert np.array_equal(pixels_of(encode(PICTURE, exif=tags)), PICTURE)


def test_a_mask_fits_the_upright_image():
    mask = Image.fromarray(np.arange(96, dtype=np.uint8).reshape(12, 8) % 3)
    turned = encode(mask.transpose(Image.Transpose.ROTATE_90), exif=exif(6))
    for stored in (encode(mask), turned):
        ids = decode_masks([FORMATS["jpeg"](6)], [stored], str, ReadOptions(), classes=3)
        assert np.array_equal(ids[0], mask)
    upright, stored = [FORMATS["jpeg"](1)], [encode(mask)]
    refused(lambda: decode_masks(upright, stored, str, ReadOptions(), classes=3), "8x12", "12x8")


# --- transparency ---------------------------------------------------------------------------------

ALPHA = np.where(np.arange(64).reshape(8, 8) % 3, 0, 255).astype(np.uint8)
"""0 is transparent."""
SHAPE = np.where(ALPHA == 0, 255, 0)
"""A black drawing on white."""


def black(mode: str) -> Image.Image:
    image = Image.new(mode, (8, 8))
    image.putalpha(Image.fromarray(ALPHA))
    return image


def palette(transparency: int | bytes, kind: str = "PNG") -> bytes:
    image = Image.fromarray(np.where(ALPHA, 0, 1).astype(np.uint8), "P")
    image.putpalette([0, 0, 0, 9, 9, 9])
    return encode(image, kind, transparency=transparency)


def keyed(mode: str, key: int | tuple[int, int, int]) -> bytes:
    image = Image.fromarray(np.where(ALPHA, 0, 7).astype(np.uint8)).convert(mode)
    return encode(image, transparency=key)


DRAWINGS = {
    "RGBA": encode(black("RGBA")),
    "LA": encode(black("LA")),
    "P, one index": palette(1),
    "P, alpha per index": palette(b"\xff\x00"),
    "GIF": palette(1, "GIF"),
    "RGB, a colour": keyed("RGB", (7, 7, 7)),
    "L, a grey": keyed("L", 7),
    "WebP": encode(black("RGBA"), "WEBP", lossless=True, exact=True),
    "TIFF": encode(black("RGBA"), "TIFF"),
}


@pytest.mark.parametrize("channels", [1, 3, None])
@pytest.mark.parametrize("stored", DRAWINGS.values(), ids=DRAWINGS)
def test_transparent_images_are_put_on_white(stored, channels):
    assert (decode([stored], str, ReadOptions(channels=channels))[0] == SHAPE).all()


def test_half_transparent_pixels_are_mixed_with_white():
    image = Image.new("RGBA", (2, 2), (0, 100, 200, 51))
    assert pixels_of(encode(image))[0, 0].tolist() == [204, 224, 244]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_an_image_without_a_transparent_pixel_keeps_its_bits(mode):
    image = PICTURE.convert("LA" if mode == "LA" else "RGB").convert(mode)
    assert np.array_equal(pixels_of(encode(image), channels=3), image.convert("RGB"))


def test_a_mask_is_not_composed():
    image = encode(Image.new("RGB", (8, 8)))
    ids = decode_masks([image], [palette(1)], str, ReadOptions(), classes=2)
    assert np.array_equal(ids[0], np.where(ALPHA, 0, 1))


def test_a_trained_model_sees_images_as_the_run_did(tmp_path):
    model = Preprocessing(3, 8, 8)
    for name, make in FORMATS.items():
        file = tmp_path / f"image.{name[:3]}"
        file.write_bytes(make(6))
        assert np.array_equal(model(Image.open(file)).values, model(file).values)
    for stored in DRAWINGS.values():
        values = model(Image.open(io.BytesIO(stored))).values
        assert np.array_equal(values[0, 0], np.where(SHAPE, 1, -1))
