"""From encoded images, and masks, to one uint8 array, large ones in a pool of threads."""

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
"""How images are scaled; CLIP's own preprocessing is bicubic."""

Allocate: TypeAlias = Callable[[tuple[int, ...]], NDArray[np.uint8]]
"""Gives an array of a shape, whose values are yet to be set."""


@dataclass(frozen=True)
class ReadOptions:
    """Which images of a source are read, and how they are decoded.

    Attributes:
        image_size: S; the shorter side is scaled to S pixels, then the centre S x S is cut out.
            None keeps the size that all images have.
        channels: 1 grey, 3 RGB; None: 1 if every image is grey, else 3.
        resize: the filter; sides and margins are then rounded as torchvision's Resize and
            CenterCrop do, which differs from ours by at most one pixel. None takes the source's
            filter and our rounding.
        classes: names of the classes to read, in the order of their labels; None for all.
        split: a split file below the root, instead of the official split (see `splits`).
    """

    image_size: int | None = None
    channels: int | None = None
    resize: Resampling | None = None
    classes: tuple[str, ...] | None = None
    split: str | None = None


AS_STORED = ReadOptions()
"""Every image in its own size and colours."""


class _Fit(NamedTuple):
    """How an image becomes S x S pixels."""

    resampling: Literal["nearest", "bilinear", "bicubic"]
    as_torchvision: bool


def in_memory(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an array in memory."""
    return np.empty(shape, np.uint8)


_GREY = {"1", "L", "LA"}
DEEP = {"I", "F", "I;16", "I;16L", "I;16B", "I;16N"}
"""Pillow's modes of more than 8 bits a channel."""
_INDEXED = {"L", "P"}
_ANIMATED = {"GIF", "PNG", "WEBP", "TIFF"}
"""Formats in which a second image is not, as in a camera's JPEG, the first one's thumbnail."""
_MOST_PIXELS = 1 << 27
"""Of an image that is scaled before its centre is cut out."""
_CHUNK = 64
_WORTH_THREADS = 64 * 64
"""Pixels from which decoding, which frees the interpreter lock, outweighs reading the header.

On two cores 12,000 images of 32x32 took 1.1 s with one thread and 1.5 s with two, and images of
128x128 took two thirds of the time with two.
"""


def decode(
    encoded: Sequence[Encoded],
    where: Callable[[int], str],
    options: ReadOptions,
    *,
    resampling: Resampling = "bilinear",
    allocate: Allocate = in_memory,
) -> NDArray[np.uint8]:
    """Decode images to one array; those that differ in size are scaled and cropped.

    Args:
        encoded: n images.
        where: names the i-th image in errors ("train.parquet, row 7").
        options: their size, channels and filter.
        resampling: the filter unless the options name one.
        allocate: gives the array.

    Returns:
        uint8 [n, channels, H, W].

    Raises:
        UserError: when an image cannot be decoded or holds more than 8 bits a channel, or when
            sizes differ and `options.image_size` is None.
    """
    fit = _Fit(options.resize or resampling, options.resize is not None)

    def filled(channels: int, grey_only: bool = False) -> NDArray[np.uint8]:
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
        return filled(options.channels)
    with _open(encoded[0], where(0)) as first:
        grey = first.mode in _GREY
    if grey:
        with suppress(_Colour):
            return filled(1, grey_only=True)
    return filled(3)


def measure(encoded: Encoded, where: str) -> tuple[int, int]:
    """Return width and height of one image, of which only the head is read.

    Raises:
        UserError: when it is no image.
    """
    with _open(encoded, where) as image:
        return image.size


def thumbnail(encoded: Encoded, where: str, size: int) -> tuple[NDArray[np.uint8], bool]:
    """Return one image at S pixels a side, read whole.

    Args:
        encoded: the image.
        where: names it in errors.
        size: S.

    Returns:
        uint8 [S, S, 3], and whether the image is grey.

    Raises:
        UserError: when a run could not decode it.
    """
    with _open(encoded, where) as image:
        grey = image.mode in _GREY
        pixels = _pixels(image, where, size, 3, _Fit("bilinear", as_torchvision=False))
    return np.ascontiguousarray(pixels.transpose(1, 2, 0)), grey


def sizes_differ(where: str, size: tuple[int, ...], first: tuple[int, ...]) -> str:
    """Return the message about images of several sizes, each width and height."""
    return (
        f"images differ in size: {where} is {size[0]}x{size[1]}, the first is "
        f"{first[0]}x{first[1]}; set data.image_size, for example "
        f"data.image_size={min(*size, *first)}"
    )


def too_deep(where: str, mode: str) -> str:
    """Return the message about an image of more than 8 bits a channel."""
    return (
        f"{where} has pixels of mode {mode}, more than 8 bits a channel; "
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
    """Decode masks, scaled and cropped as `decode` does their images, but by the nearest pixel.

    Args:
        images: n images.
        masks: their masks, 8-bit grey or with a palette; a pixel's value, or its palette index,
            is its class. Of two classes they may hold any two values (0 and 255): the lower one is
            the background.
        where: names the i-th image in errors.
        options: as for `decode`.
        classes: C; values must be below.

    Returns:
        uint8 [n, H, W].

    Raises:
        UserError: when a mask cannot be decoded, is not as large as its image, or holds a class
            that there is not.
    """
    fit = _Fit("nearest", options.resize is not None)

    def named(i: int) -> str:
        return str(masks[i]) if isinstance(masks[i], Path) else f"the mask of {where(i)}"

    found = []
    for i, (image, mask) in enumerate(zip(images, masks, strict=True)):
        with _open(image, where(i)) as opened, _open(mask, named(i)) as labelled:
            if labelled.mode not in _INDEXED:
                raise UserError(
                    f"{named(i)} has pixels of mode {labelled.mode}, expected one class id a "
                    "pixel: save it as 8-bit grey or with a palette"
                )
            if labelled.size != opened.size:
                raise UserError(
                    f"{named(i)} has {labelled.width}x{labelled.height} pixels, its image "
                    f"{where(i)} {opened.width}x{opened.height}; make them equal"
                )
            found.append(_array(labelled, named(i), options.image_size, fit))
    ids = np.stack(found)
    if classes == 2 and len(values := np.unique(ids)) == 2:
        return np.asarray(ids == values[1], np.uint8)
    for i in np.flatnonzero(ids.reshape(len(ids), -1).max(1) >= classes)[:1]:
        raise UserError(
            f"{named(i)} holds the class {ids[i].max()}, but there are {classes} classes (0 to "
            f"{classes - 1}); mend the mask or name the class"
        )
    return ids


class _Colour(Exception):
    """An image has colour after all."""


def _open(item: Encoded, where: str) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    try:
        if isinstance(item, np.ndarray):
            return Image.fromarray(item)
        image = Image.open(BytesIO(item) if isinstance(item, bytes) else item)
        frames = getattr(image, "n_frames", 1) if image.format in _ANIMATED else 1
    except UnidentifiedImageError:
        raise UserError(f"{where} is not an image; mend or remove it") from None
    except Exception as error:  # its readers check little of what they unpack
        raise UserError(
            f"{where} cannot be read as an image: {reason(error)}; mend or remove it"
        ) from None
    if frames > 1:
        image.close()
        raise UserError(f"{where} holds {frames} images, expected one; keep one of them")
    return image


def _pixels(
    image: Image.Image, where: str, image_size: int | None, channels: int, fit: _Fit
) -> NDArray[np.uint8]:
    """Return the pixels uint8 [channels, H, W] of one opened image."""
    stored = " ".join(str(tile[3]) for tile in getattr(image, "tile", ()))  # as RGB;16B, cut to RGB
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
    """Return the pixels [H, W] or [H, W, 3] of one opened image, in `mode`; None: unconverted."""
    try:
        if mode is None or image.mode == mode:
            image.load()
        else:
            image = image.convert(mode)
    except Exception as error:  # as above
        raise UserError(f"{where} cannot be decoded: {reason(error)}; mend or remove it") from None
    if image_size is None:
        return np.asarray(image)
    if max(image.size) * image_size**2 > min(image.size) * _MOST_PIXELS:
        raise UserError(
            f"{where} has {image.width}x{image.height} pixels, too oblong for data.image_size="
            f"{image_size}; cut or remove it"
        )
    return np.asarray(_fitted(image, image_size, fit))


def reason(error: Exception) -> str:
    """Return an error's message on one line; its class's name where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def _fitted(image: Image.Image, size: int, fit: _Fit) -> Image.Image:
    """Scale the shorter side to `size` and cut out the centre square."""
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
    left, top = (width - size) / 2, (height - size) / 2
    left, top = (round(left), round(top)) if fit.as_torchvision else (int(left), int(top))
    return image.crop((left, top, left + size, top + size))
