"""Decode images and masks into one uint8 array; large images are decoded in several threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedray.errors import UserError
from fedray.integrity import threads

if TYPE_CHECKING:
    from PIL import Image

Encoded: TypeAlias = bytes | Path | NDArray[np.uint8]
"""One image: an encoded file's bytes, its path, or pixels [H, W] or [H, W, 3]."""

Resampling: TypeAlias = Literal["bilinear", "bicubic"]
"""The filter for resizing; CLIP's preprocessing is bicubic."""

Allocate: TypeAlias = Callable[[tuple[int, ...]], NDArray[np.uint8]]
"""A function that returns an uninitialised array of a shape."""


@dataclass(frozen=True)
class ReadOptions:
    """Options that select the images of a source and define how they are decoded.

    Attributes:
        image_size: S; the shorter side is scaled to S pixels, then the central S x S square is
            cropped. None keeps the size, which must be the same for all images.
        channels: 1 for grey, 3 for RGB; None means 1 if every image is grey, else 3.
        resize: the filter; sides and margins are then rounded as torchvision's Resize and
            CenterCrop do, which differs from fedray's rounding by at most one pixel. None uses the
            source's filter and fedray's rounding.
        classes: names of the classes to read, in the order of their labels; None for all.
        split: a split file below the root, instead of the official split (see `splits`).
    """

    image_size: int | None = None
    channels: int | None = None
    resize: Resampling | None = None
    classes: tuple[str, ...] | None = None
    split: str | None = None


AS_STORED = ReadOptions()
"""Images in their stored size and colours."""


class _Fit(NamedTuple):
    """How an image is resized to S x S pixels."""

    resampling: Literal["nearest", "bilinear", "bicubic"]
    as_torchvision: bool


def in_memory(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an array in memory."""
    return np.empty(shape, np.uint8)


_GREY = {"1", "L", "LA"}
DEEP = {"I", "F", "I;16", "I;16L", "I;16B", "I;16N"}
"""Pillow's modes with more than 8 bits per channel."""
_INDEXED = {"L", "P"}
_ANIMATED = {"GIF", "PNG", "WEBP", "TIFF"}
"""Formats in which a second image is a frame, not a thumbnail as in a camera's JPEG."""
_MOST_PIXELS = 1 << 27
"""Most pixels of a scaled image before its centre is cropped."""
_CHUNK = 64
_WORTH_THREADS = 64 * 64
"""Number of pixels from which decoding in several threads is faster.

Decoding releases the interpreter lock, reading the header does not. On two cores, 12,000 images of
32x32 took 1.1 s with one thread and 1.5 s with two; images of 128x128 took two thirds of the time
with two.
"""


def decode(
    encoded: Sequence[Encoded],
    where: Callable[[int], str],
    options: ReadOptions,
    *,
    resampling: Resampling = "bilinear",
    allocate: Allocate = in_memory,
) -> NDArray[np.uint8]:
    """Decode images into one array; images of different sizes are scaled and cropped.

    Args:
        encoded: n images.
        where: returns the name of the i-th image for messages ("train.parquet, row 7").
        options: size, channels and filter.
        resampling: the filter, unless the options name one.
        allocate: returns the array to fill.

    Returns:
        uint8 [n, channels, H, W].

    Raises:
        UserError: if an image cannot be decoded or has more than 8 bits per channel, or if sizes
            differ and `options.image_size` is None.
    """
    fit = _Fit(options.resize or resampling, options.resize is not None)

    def decode_all(channels: int, grey_only: bool = False) -> NDArray[np.uint8]:
        with _open(encoded[0], where(0)) as first:
            size = first.size if options.image_size is None else (options.image_size,) * 2
            workers = threads() if first.width * first.height >= _WORTH_THREADS else 1
        images = allocate((len(encoded), channels, size[1], size[0]))

        def fill(start: int) -> None:
            for i in range(start, min(start + _CHUNK, len(encoded))):
                with _open(encoded[i], where(i)) as image:
                    if grey_only and image.mode not in _GREY:
                        raise _Colour
                    pixels = _pixels(image, where(i), options.image_size, channels, fit)
                if pixels.shape[:0:-1] != size:
                    raise UserError(sizes_differ(where(i), pixels.shape[:0:-1], size))
                images[i] = pixels

        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(fill, range(0, len(encoded), _CHUNK)))
        return images

    if options.channels is not None:
        return decode_all(options.channels)
    with _open(encoded[0], where(0)) as first:
        grey = first.mode in _GREY
    if grey:
        with suppress(_Colour):
            return decode_all(1, grey_only=True)
    return decode_all(3)


def measure(encoded: Encoded, where: str) -> tuple[int, int]:
    """Return width and height of an image; only its header is read.

    Raises:
        UserError: if the file is not an image.
    """
    with _open(encoded, where) as image:
        return image.size


def thumbnail(encoded: Encoded, where: str, size: int) -> tuple[NDArray[np.uint8], bool]:
    """Decode one image fully, and return it at S x S pixels.

    Args:
        encoded: the image.
        where: names the image in messages.
        size: S.

    Returns:
        uint8 [S, S, 3], and whether the image is grey.

    Raises:
        UserError: if a run could not decode the image.
    """
    with _open(encoded, where) as image:
        grey = image.mode in _GREY
        pixels = _pixels(image, where, size, 3, _Fit("bilinear", as_torchvision=False))
    return np.ascontiguousarray(pixels.transpose(1, 2, 0)), grey


def sizes_differ(where: str, size: tuple[int, ...], first: tuple[int, ...]) -> str:
    """Return the message about images of different sizes; sizes are (width, height)."""
    return (
        f"images differ in size: {where} is {size[0]}x{size[1]}, the first is "
        f"{first[0]}x{first[1]}; set data.image_size, for example "
        f"data.image_size={min(*size, *first)}"
    )


def too_deep(where: str, mode: str) -> str:
    """Return the message about an image with more than 8 bits per channel."""
    return (
        f"{where} has pixels of mode {mode}, more than 8 bits per channel; "
        "convert it to 8-bit grey or RGB"
    )


def decode_masks(
    images: Sequence[Encoded],
    masks: Sequence[Encoded],
    where: Callable[[int], str],
    options: ReadOptions,
    *,
    classes: int,
) -> NDArray[np.uint8]:
    """Decode masks; scale and crop them as `decode` does their images, by nearest neighbour.

    Args:
        images: n images.
        masks: their masks, 8-bit grey or with a palette; a pixel's value (or palette index) is its
            class. With two classes, any two values are allowed (such as 0 and 255); the lower one
            is the background.
        where: returns the name of the i-th image for messages.
        options: the options of `decode`.
        classes: C; values must be below C.

    Returns:
        uint8 [n, H, W].

    Raises:
        UserError: if a mask cannot be decoded, differs in size from its image, or contains an
            unknown class.
    """
    fit = _Fit("nearest", options.resize is not None)

    def named(i: int) -> str:
        return str(masks[i]) if isinstance(masks[i], Path) else f"the mask of {where(i)}"

    decoded = []
    for i, (image, mask) in enumerate(zip(images, masks, strict=True)):
        with _open(image, where(i)) as image_file, _open(mask, named(i)) as mask_image:
            if mask_image.mode not in _INDEXED:
                raise UserError(
                    f"{named(i)} has pixels of mode {mask_image.mode}, expected one class id "
                    "per pixel; save it as 8-bit grey or with a palette"
                )
            if mask_image.size != image_file.size:
                raise UserError(
                    f"{named(i)} has {mask_image.width}x{mask_image.height} pixels, but its image "
                    f"{where(i)} has {image_file.width}x{image_file.height}; make them equal"
                )
            decoded.append(_array(mask_image, named(i), options.image_size, fit))
    ids = np.stack(decoded)
    if classes == 2 and len(values := np.unique(ids)) == 2:
        return np.asarray(ids == values[1], np.uint8)
    for i in np.flatnonzero(ids.reshape(len(ids), -1).max(1) >= classes)[:1]:
        raise UserError(
            f"{named(i)} contains class {ids[i].max()}, but there are {classes} classes (0 to "
            f"{classes - 1}); correct the mask or name the class"
        )
    return ids


class _Colour(Exception):
    """Signals that an image assumed to be grey has colour."""


def _open(item: Encoded, where: str) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    try:
        if isinstance(item, np.ndarray):
            return Image.fromarray(item)
        image = Image.open(BytesIO(item) if isinstance(item, bytes) else item)
        frames = getattr(image, "n_frames", 1) if image.format in _ANIMATED else 1
    except UnidentifiedImageError:
        raise UserError(f"{where} is not an image; replace or remove it") from None
    except Exception as error:  # Pillow's readers hardly check their input
        raise UserError(
            f"{where} cannot be read as an image: {reason(error)}; replace or remove it"
        ) from None
    if frames > 1:
        image.close()
        raise UserError(f"{where} contains {frames} images, expected one; keep one of them")
    return image


def _pixels(
    image: Image.Image, where: str, image_size: int | None, channels: int, fit: _Fit
) -> NDArray[np.uint8]:
    """Return the pixels of an opened image, uint8 [channels, H, W]."""
    stored = " ".join(
        str(tile[3]) for tile in getattr(image, "tile", ())
    )  # such as RGB;16B, reduced to RGB
    if image.mode in DEEP or ";16" in stored:
        raise UserError(too_deep(where, image.mode))
    pixels = _array(image, where, image_size, fit, "L" if channels == 1 else "RGB")
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _array(
    image: Image.Image,
    where: str,
    image_size: int | None,
    fit: _Fit,
    mode: str | None = None,
) -> NDArray[np.uint8]:
    """Return the pixels of an opened image, [H, W] or [H, W, 3], in `mode`; None: unconverted."""
    try:
        if mode is None or image.mode == mode:
            image.load()
        else:
            image = image.convert(mode)
    except Exception as error:  # see `_open`
        raise UserError(
            f"{where} cannot be decoded: {reason(error)}; replace or remove it"
        ) from None
    if image_size is None:
        return np.asarray(image)
    if max(image.size) * image_size**2 > min(image.size) * _MOST_PIXELS:
        raise UserError(
            f"{where} has {image.width}x{image.height} pixels, too oblong for data.image_size="
            f"{image_size}; crop or remove it"
        )
    return np.asarray(_fitted(image, image_size, fit))


def reason(error: Exception) -> str:
    """Return an error's message on one line, or its class name if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


def _fitted(image: Image.Image, size: int, fit: _Fit) -> Image.Image:
    """Scale the shorter side to `size` and crop the central square."""
    from PIL import Image

    width, height = image.size
    shorter = min(width, height)
    if shorter != size:
        if fit.as_torchvision:
            width, height = (int(size * side / shorter) for side in (width, height))
        else:
            scale = size / shorter
            width, height = max(size, int(width * scale)), max(size, int(height * scale))
        image = image.resize((width, height), Image.Resampling[fit.resampling.upper()])
    left_edge, top_edge = (width - size) / 2, (height - size) / 2
    left_edge, top_edge = (
        (round(left_edge), round(top_edge))
        if fit.as_torchvision
        else (int(left_edge), int(top_edge))
    )
    return image.crop((left_edge, top_edge, left_edge + size, top_edge + size))
