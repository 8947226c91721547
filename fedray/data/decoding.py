"""Decode stored images and masks into one uint8 array; no other module turns files into pixels.

Images are turned as their EXIF orientation says, and transparent ones are put on white. Large
images are decoded in several threads.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import UserError
from fedray.base.processors import allowed_cpus
from fedray.storage.files import read_regular

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
    """Options that select the images of a source and define how they are decoded.

    Attributes:
        image_size: S; the shorter side is scaled to S pixels, then the central S x S square is
            cropped (but see `resize`). None keeps the size, which must be the same for all images.
        channels: 1 for grey, 3 for RGB; None means 1 if every image is grey, else 3.
        resize: the filter; sides and margins are then rounded as torchvision's Resize and
            CenterCrop do, which differs from fedray's rounding by at most one pixel. "squash"
            and "squash_bicubic" scale both sides to S pixels, as torchvision's Resize((S, S)). None
            uses the source's filter and fedray's rounding.
        classes: names of the classes to read, in the order of their labels; None for all.
        split: a split file below the root, instead of the official split (see `splits`).
    """

    image_size: int | None = None
    channels: int | None = None
    resize: Resize | None = None
    classes: tuple[str, ...] | None = None
    split: str | None = None


AS_STORED = ReadOptions()
"""Images in their stored size and colours."""


_SQUASHES = ("squash", "squash_bicubic")


class _Fit(NamedTuple):
    """How an image is resized to S x S pixels."""

    resampling: Literal["nearest", "bilinear", "bicubic"]
    as_torchvision: bool
    squash: bool = False

    @classmethod
    def of(cls, resize: Resize | None, resampling: Literal["nearest"] | Resampling) -> _Fit:
        """Return the fit of `data.resize`, with another filter if it is None or for masks."""
        if resize is None or resampling == "nearest":
            return cls(resampling, resize is not None, resize in _SQUASHES)
        return cls("bicubic" if "bicubic" in resize else "bilinear", True, resize in _SQUASHES)


def in_memory(shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return an array in memory."""
    return np.empty(shape, np.uint8)


_GREY = {"1", "L", "LA"}
DEEP = {"I", "F", "I;16", "I;16L", "I;16B", "I;16N"}
"""Pillow's modes with more than 8 bits per channel."""
_INDEXED = {"L", "P"}
_ORIENTATION, _SIDEWAYS = 0x0112, {5, 6, 7, 8}
"""EXIF's tag of the orientation, and its values that swap width and height."""
_ANIMATED = {"GIF", "PNG", "WEBP", "TIFF"}
"""Formats in which a second image is a frame, not a thumbnail as in a camera's JPEG."""
_EXIF = {"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"}
"""What Pillow calls the parts of a file that may hold an orientation."""
_LATE_EXIF = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")
"""Texts in a PNG whose EXIF, possibly stored behind the pixels, Pillow reads with the pixels."""
_MOST_THREADS = 8
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
    encoded: Collection[Encoded],
    where: Callable[[int], str],
    options: ReadOptions,
    *,
    resampling: Resampling = "bilinear",
    allocate: Allocate = in_memory,
    transparent: set[int] | None = None,
) -> NDArray[np.uint8]:
    """Decode images into one array; images of different sizes are scaled and cropped.

    Args:
        encoded: n images; iterated over up to four times, and never held in memory as a whole.
        where: returns the name of the i-th image for messages ("train.parquet, row 7").
        options: size, channels and filter.
        resampling: the filter, unless the options name one.
        allocate: returns the array to fill.
        transparent: gets the numbers of the images that are transparent somewhere.

    Returns:
        uint8 [n, channels, H, W].

    Raises:
        UserError: if an image cannot be decoded or has more than 8 bits per channel, or if sizes
            differ and `options.image_size` is None.
    """
    fit = _Fit.of(options.resize, resampling)
    item = next(iter(encoded))
    with _open(item, where(0)) as first:
        stored, grey = _upright_size(first, item), first.mode in _GREY
    size = stored if options.image_size is None else (options.image_size,) * 2
    workers = min(_MOST_THREADS, allowed_cpus()) if stored[0] * stored[1] >= _WORTH_THREADS else 1

    def decode_all(channels: int, grey_only: bool = False) -> NDArray[np.uint8]:
        images = allocate((len(encoded), channels, size[1], size[0]))

        def fill(chunk: Sequence[tuple[int, Encoded]]) -> None:
            for i, item in chunk:
                with _open(item, where(i)) as image:
                    if grey_only and image.mode not in _GREY:
                        raise _Colour
                    pixels, is_transparent = _pixels(
                        image, where(i), options.image_size, channels, fit
                    )
                if pixels.shape[:0:-1] != size:
                    raise UserError(sizes_differ(where(i), pixels.shape[:0:-1], size))
                images[i] = pixels
                if is_transparent and transparent is not None:
                    transparent.add(i)

        with ThreadPoolExecutor(workers) as pool:
            chunks = _chunks(enumerate(encoded), _CHUNK)
            while some := list(islice(chunks, 4 * workers)):
                list(pool.map(fill, some))
        return images

    if options.channels is not None:
        return decode_all(options.channels)
    if grey:
        with suppress(_Colour):
            return decode_all(1, grey_only=True)
    return decode_all(3)


def _chunks(
    items: Iterator[tuple[int, Encoded]], size: int
) -> Iterator[Sequence[tuple[int, Encoded]]]:
    """Yield lists of `size` items; the last one may be shorter."""
    while chunk := list(islice(items, size)):
        yield chunk


def stored_size(encoded: Encoded, where: str) -> tuple[int, int]:
    """Return width and height of an image when upright; only its header is read.

    Raises:
        UserError: if the file is not an image.
    """
    with _open(encoded, where) as image:
        return _upright_size(image, encoded)


class Thumbnail(NamedTuple):
    """A small copy of an image, uint8 [S, S, 3], and whether it is grey or partly transparent."""

    pixels: NDArray[np.uint8]
    grey: bool
    transparent: bool


def thumbnail(encoded: Encoded, where: str, size: int) -> Thumbnail:
    """Decode one image fully, and return it at S x S pixels.

    Args:
        encoded: the image.
        where: names the image in messages.
        size: S.

    Raises:
        UserError: if a run could not decode the image.
    """
    with _open(encoded, where) as image:
        grey = image.mode in _GREY
        fit = _Fit("bilinear", as_torchvision=False)
        pixels, transparent = _pixels(image, where, size, 3, fit)
    return Thumbnail(np.ascontiguousarray(pixels.transpose(1, 2, 0)), grey, transparent)


def transparency_note(transparent: int, total: int) -> tuple[str, ...]:
    """Return a sentence about transparent images, if there are any."""
    if not transparent:
        return ()
    number = f"{transparent:,} of {total:,} images"
    return (f"{number} are transparent in places; they are put on a white ground",)


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
    fit = _Fit.of(options.resize, "nearest")

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
            size, expected = _upright_size(mask_image, mask), _upright_size(image_file, image)
            if size != expected:
                raise UserError(
                    f"{named(i)} has {size[0]}x{size[1]} pixels, but its image {where(i)} has "
                    f"{expected[0]}x{expected[1]}; make them equal"
                )
            upright = _loaded(mask_image, named(i))
            decoded.append(_array(upright, named(i), options.image_size, fit))
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
    from PIL import Image, ImageOps, UnidentifiedImageError

    if isinstance(item, np.ndarray) and item.dtype != np.uint8:
        raise UserError(f"{where} has pixels of type {item.dtype}, expected uint8 from 0 to 255")
    try:
        if isinstance(item, np.ndarray):
            return Image.fromarray(item)
        if isinstance(item, Image.Image):
            return ImageOps.exif_transpose(item)  # a copy
        image = Image.open(BytesIO(item) if isinstance(item, bytes) else item)
        frames = getattr(image, "n_frames", 1) if image.format in _ANIMATED else 1
    except UnidentifiedImageError:
        raise UserError(f"{where} is not an image; replace or remove it") from None
    except Exception as error:  # Pillow's readers hardly check their input
        raise UserError(
            f"{where} cannot be read as an image: {decoding_reason(error)}; replace or remove it"
        ) from None
    if frames > 1:
        image.close()
        raise UserError(f"{where} contains {frames} images, expected one; keep one of them")
    return image


def _upright_size(image: Image.Image, item: Encoded) -> tuple[int, int]:
    """Return width and height of an opened image when upright; read the header only, if possible.

    Pillow itself turns a TIFF, and reads EXIF behind the pixels of a PNG only with the pixels.
    """
    width, height = image.size
    if image.format == "TIFF" or (
        image.format == "PNG" and "exif" not in image.info and not _has_late_exif(item)
    ):
        return width, height
    with suppress(Exception):  # damaged EXIF says nothing
        if image.getexif().get(_ORIENTATION) in _SIDEWAYS:
            return height, width
    return width, height


def _has_late_exif(item: Encoded) -> bool:
    content = read_regular(item) if isinstance(item, Path) else item
    return isinstance(content, bytes) and any(text in content for text in _LATE_EXIF)


def _loaded(image: Image.Image, where: str) -> Image.Image:
    """Read an opened image's pixels, and turn it as its EXIF orientation says."""
    from PIL import ImageOps

    try:
        image.load()
    except Exception as error:  # see `_open`
        raise _undecodable(where, error) from None
    if image.info.keys() & _EXIF:  # without, Pillow would search in vain, and turns TIFF itself
        with suppress(Exception):  # damaged EXIF says nothing
            ImageOps.exif_transpose(image, in_place=True)
    return image


def _opaque(image: Image.Image, where: str) -> tuple[Image.Image, bool]:
    """Put a loaded image on white; return also whether it is transparent anywhere."""
    from PIL import Image

    if not image.has_transparency_data:
        return image, False
    try:
        coloured = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
    except Exception as error:  # see `_open`
        raise _undecodable(where, error) from None
    if coloured.getchannel("A").getextrema()[0] == 255:
        return image, False
    white = Image.new("RGBA", coloured.size, "white")
    return Image.alpha_composite(white, coloured), True


def _undecodable(where: str, error: Exception) -> UserError:
    return UserError(f"{where} cannot be decoded: {decoding_reason(error)}; replace or remove it")


def _pixels(
    image: Image.Image, where: str, image_size: int | None, channels: int, fit: _Fit
) -> tuple[NDArray[np.uint8], bool]:
    """Return the pixels of an opened image, uint8 [channels, H, W], and if it is transparent."""
    stored = " ".join(
        str(tile[3]) for tile in getattr(image, "tile", ())
    )  # such as RGB;16B, reduced to RGB
    if image.mode in DEEP or ";16" in stored:
        raise UserError(too_deep(where, image.mode))
    image, transparent = _opaque(_loaded(image, where), where)
    pixels = _array(image, where, image_size, fit, "L" if channels == 1 else "RGB")
    return (pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)), transparent


def _array(
    image: Image.Image,
    where: str,
    image_size: int | None,
    fit: _Fit,
    mode: str | None = None,
) -> NDArray[np.uint8]:
    """Return the pixels of a loaded image, [H, W] or [H, W, 3], in `mode`; None: unconverted."""
    try:
        if mode is not None and image.mode != mode:
            image = image.convert(mode)
    except Exception as error:  # see `_open`
        raise _undecodable(where, error) from None
    if image_size is None:
        return np.asarray(image)
    if not fit.squash and max(image.size) * image_size**2 > min(image.size) * _MOST_PIXELS:
        raise UserError(
            f"{where} has {image.width}x{image.height} pixels, too oblong for data.image_size="
            f"{image_size}; crop or remove it"
        )
    return np.asarray(_fitted(image, image_size, fit))


def decoding_reason(error: Exception) -> str:
    """Return an error's message on one line, or its class name if it has no message."""
    return " ".join(str(error).split()) or type(error).__name__


def _fitted(image: Image.Image, size: int, fit: _Fit) -> Image.Image:
    """Scale the shorter side to `size` and crop the central square, or scale both sides."""
    from PIL import Image

    if fit.squash:
        return image.resize((size, size), Image.Resampling[fit.resampling.upper()])
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
