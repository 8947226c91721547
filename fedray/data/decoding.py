"""Decode stored images and masks into one uint8 array; no other module turns files into pixels.

Images are turned as their EXIF orientation says, and transparent ones are put on white. Large
images are decoded in several threads.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import UserError, named, one_line
from fedray.base.processors import allowed_cpus

if TYPE_CHECKING:
    from PIL import Image

# Pillow warns above 89 megapixels, and refuses twice as many; a warning helps nobody
warnings.filterwarnings("ignore", r"Image size .* exceeds limit", RuntimeWarning)

Encoded: TypeAlias = "bytes | Path | NDArray[np.uint8] | Image.Image"
"""One image: an encoded file's bytes, its path, pixels [H, W] or [H, W, 3], or a PIL image."""

Resampling: TypeAlias = Literal["bilinear", "bicubic"]
"""The filter for resizing; CLIP's preprocessing is bicubic."""

Resize: TypeAlias = Literal["bilinear", "bicubic", "squash", "squash_bicubic"]
"""How images are resized; squash: both sides to the same length, bilinearly unless named otherwise,
without a crop."""

Allocate: TypeAlias = Callable[[tuple[int, ...]], NDArray[np.uint8]]
"""A function that returns an uninitialised array of a shape."""


@dataclass(frozen=True)
class ReadOptions:
    """Which images of a source are read, and how: the keys `data.*` of the same names.

    The shorter side is scaled to `image_size`, and the centre is cropped. Without `resize`, the
    filter is the source's, and lengths are rounded down; with it, they are rounded as by
    torchvision's Resize and CenterCrop, which differs by at most one pixel.
    """

    image_size: int | None = None
    channels: int | None = None
    resize: Resize | None = None
    classes: tuple[str, ...] | None = None
    split: str | None = None


AS_STORED = ReadOptions()
"""Images in their stored size and colours."""


def in_memory(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an array in memory."""
    return np.empty(shape, np.uint8)


_GREY = {"1", "L", "LA"}
_DEEP = {"I", "F", "I;16", "I;16L", "I;16B", "I;16N"}
"""Pillow's modes with more than 8 bits per channel."""
_INDEXED = {"L", "P"}
_ANIMATED = {"GIF", "PNG", "WEBP", "TIFF"}
"""Formats in which a second image is a frame, not a thumbnail as in a camera's JPEG."""
_EXIF = {"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"}
"""What Pillow calls the parts of a file that may hold an orientation."""
_MOST_THREADS = 8
_CHUNK = 64
_WORTH_THREADS = 64 * 64
"""Number of pixels from which decoding in several threads is faster: decoding releases the
interpreter lock, reading the header does not."""


def decode(
    encoded: Sequence[Encoded],
    where: Callable[[int], str],
    options: ReadOptions,
    *,
    resampling: Resampling = "bilinear",
    allocate: Allocate = in_memory,
) -> NDArray[np.uint8]:
    """Decode n images into one array, uint8 [n, channels, H, W], scaled and cropped.

    Args:
        encoded: n images.
        where: returns the name of the i-th image for messages ("train.parquet, row 7").
        options: size, channels and filter.
        resampling: the filter, unless the options name one.
        allocate: returns the array to fill.

    Raises:
        UserError: if an image cannot be decoded or has more than 8 bits per channel, or if sizes
            differ and `options.image_size` is None.
    """
    first = _opened(encoded[0], where(0))
    size = first.size if options.image_size is None else (options.image_size,) * 2
    is_large = first.width * first.height >= _WORTH_THREADS
    workers = min(_MOST_THREADS, allowed_cpus()) if is_large else 1

    def decode_all(channels: int, grey_only: bool = False) -> NDArray[np.uint8]:
        images = allocate((len(encoded), channels, size[1], size[0]))

        def fill(start: int) -> None:
            for i in range(start, min(start + _CHUNK, len(encoded))):
                image = _opened(encoded[i], where(i))
                if grey_only and image.mode not in _GREY:
                    raise _Colour
                images[i] = _pixels(image, where(i), channels, size, options, resampling)

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(fill, range(0, len(encoded), _CHUNK)))
        return images

    if options.channels is not None:
        return decode_all(options.channels)
    if first.mode in _GREY:
        with suppress(_Colour):
            return decode_all(1, grey_only=True)
    return decode_all(3)


def decode_masks(
    images: Sequence[Encoded],
    masks: Sequence[Encoded],
    where: Callable[[int], str],
    options: ReadOptions,
    *,
    classes: int,
) -> NDArray[np.uint8]:
    """Decode the masks of n images, uint8 [n, H, W], scaled and cropped by nearest neighbour.

    A mask is 8-bit grey or has a palette; a pixel's value (or palette index) is its class, below
    `classes`. With two classes, any two values are allowed (such as 0 and 255); the lower one is
    the background.

    Raises:
        UserError: if a mask cannot be decoded, differs in size from its image, or contains an
            unknown class.
    """
    decoded = []
    for i, (image, mask) in enumerate(zip(images, masks, strict=True)):
        name = str(mask) if isinstance(mask, Path) else f"the mask of {where(i)}"
        found, size = _opened(mask, name), _opened(image, where(i)).size
        if found.mode not in _INDEXED or found.size != size:
            raise UserError(
                f"{name} has mode {found.mode} and {found.width}x{found.height} pixels, expected "
                f"one class id per pixel (8-bit grey, or a palette) and {size[0]}x{size[1]} "
                "pixels, as its image has"
            )
        decoded.append(np.asarray(_fitted(found, options, "nearest")))
    ids = np.stack(decoded)
    if classes == 2 and len(values := np.unique(ids)) == 2:
        return np.asarray(ids == values[1], np.uint8)
    for i in np.flatnonzero(ids.reshape(len(ids), -1).max(1) >= classes)[:1]:
        raise UserError(
            f"the mask of {where(i)} contains class {ids[i].max()}, but there are {classes} "
            f"classes (0 to {classes - 1}); correct the mask or name the class"
        )
    return ids


class _Colour(Exception):
    """Signals that an image assumed to be grey has colour."""


def sizes_of(encoded: Iterable[Encoded], where: Callable[[int], str]) -> Counter[tuple[int, int]]:
    """Count the images of each (width, height); all images are decoded."""
    return Counter(_opened(item, where(i)).size for i, item in enumerate(encoded))


@contextmanager
def _decodable(where: str) -> Iterator[None]:
    """Turn errors of Pillow, whose readers hardly check their input, into a UserError."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"{where} cannot be decoded: {one_line(named(error))}; replace or remove it"
        ) from None


def _opened(item: Encoded, where: str) -> Image.Image:
    """Return an image with its pixels, turned as its EXIF orientation says.

    Raises:
        UserError: if it cannot be decoded, is one of several, or has more than 8 bits a channel.
    """
    from PIL import Image, ImageOps

    if isinstance(item, np.ndarray):
        if item.dtype != np.uint8:
            raise UserError(f"{where} has pixels of type {item.dtype}, expected uint8, 0 to 255")
        return Image.fromarray(item)
    frames = 1
    with _decodable(where):
        if isinstance(item, Image.Image):
            image = ImageOps.exif_transpose(item)  # a copy
        else:
            with Image.open(BytesIO(item) if isinstance(item, bytes) else item) as image:
                frames = getattr(image, "n_frames", 1) if image.format in _ANIMATED else 1
                image.load()
    if frames > 1 or image.mode in _DEEP:
        raise UserError(
            f"{where} has {frames} images of mode {image.mode}, expected one with 8 bits per "
            "channel; convert it to 8-bit grey or RGB"
        )
    if image.info.keys() & _EXIF:  # without, Pillow would search in vain; it turns TIFF itself
        with suppress(Exception):  # damaged EXIF says nothing
            ImageOps.exif_transpose(image, in_place=True)
    return image


def _pixels(
    image: Image.Image,
    where: str,
    channels: int,
    size: tuple[int, int],
    options: ReadOptions,
    resampling: Resampling,
) -> NDArray[np.uint8]:
    """Return the pixels of an image on a white ground, uint8 [channels, H, W], of a size (W, H)."""
    with _decodable(where):
        coloured = _on_white(image).convert("L" if channels == 1 else "RGB")
        fitted = _fitted(coloured, options, resampling)
    if fitted.size != size:
        raise UserError(
            f"images differ in size: {where} is {image.width}x{image.height}, the first is "
            f"{size[0]}x{size[1]}; set data.image_size, for example "
            f"data.image_size={min(*image.size, *size)}"
        )
    pixels = np.asarray(fitted)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _on_white(image: Image.Image) -> Image.Image:
    """Put an image that is transparent somewhere on white."""
    from PIL import Image

    if not image.has_transparency_data:
        return image
    coloured = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    if coloured.getchannel("A").getextrema()[0] == 255:
        return image
    return Image.alpha_composite(Image.new("RGBA", coloured.size, "white"), coloured)


def _fitted(
    image: Image.Image, options: ReadOptions, resampling: Literal["nearest"] | Resampling
) -> Image.Image:
    """Scale the shorter side to the image size and crop the central square, or scale both sides."""
    from PIL import Image

    size, resize = options.image_size, options.resize
    if size is None:
        return image
    if resize is not None and resampling != "nearest":
        resampling = "bicubic" if "bicubic" in resize else "bilinear"
    chosen = Image.Resampling[resampling.upper()]
    if resize in ("squash", "squash_bicubic"):
        return image.resize((size, size), chosen)
    shorter = min(image.size)

    def scaled(side: int) -> int:
        """Return the scaled length of a side, rounded as torchvision does if a filter is named."""
        if resize is not None:
            return int(size * side / shorter)
        return max(size, int(side * (size / shorter)))

    width, height = map(scaled, image.size)
    image = image.resize((width, height), chosen)
    whole = int if resize is None else round
    left, top = whole((width - size) / 2), whole((height - size) / 2)
    return image.crop((left, top, left + size, top + size))
