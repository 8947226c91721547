"""From encoded images, and masks, to one uint8 array, large ones in a pool of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedray.data.cache import allocate
from fedray.errors import UserError
from fedray.integrity import threads

if TYPE_CHECKING:
    from PIL import Image

Encoded: TypeAlias = bytes | Path | NDArray[np.uint8]
"""One image: an encoded file's bytes, its path, or pixels [H, W] or [H, W, 3]."""

Resampling: TypeAlias = Literal["bilinear", "bicubic"]
"""How images are scaled; CLIP's own preprocessing is bicubic."""


class _Fit(NamedTuple):
    """How an image becomes S x S pixels.

    Attributes:
        resampling: the filter of Pillow.
        as_torchvision: whether sides and margins are rounded as Resize and CenterCrop do, which
            differs from ours by at most one pixel.
    """

    resampling: Literal["nearest", "bilinear", "bicubic"]
    as_torchvision: bool


_resizing: ContextVar[Resampling | None] = ContextVar("_resizing", default=None)


@contextmanager
def resizing(resampling: Resampling | None) -> Iterator[None]:
    """Scale images in this way instead of their source's, as torchvision's transforms do."""
    token = _resizing.set(resampling)
    try:
        yield
    finally:
        _resizing.reset(token)


def asked_resizing() -> Resampling | None:
    """How images are to be scaled; None leaves it to their source."""
    return _resizing.get()


def _fit_for(resampling: Literal["nearest", "bilinear", "bicubic"]) -> _Fit:
    """A source's own filter, or the one that is asked for; masks keep theirs."""
    asked = asked_resizing()
    if asked is None:
        return _Fit(resampling, as_torchvision=False)
    return _Fit("nearest" if resampling == "nearest" else asked, as_torchvision=True)


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
    *,
    image_size: int | None,
    channels: int | None,
    resampling: Resampling = "bilinear",
) -> NDArray[np.uint8]:
    """Decode images to one array; those that differ in size are scaled and cropped.

    Args:
        encoded: n images.
        where: names the i-th image in errors ("train.parquet, row 7").
        image_size: S; the shorter side is scaled to S pixels, then the centre S x S is cut out.
            None keeps the size that all images have.
        channels: 1 grey, 3 RGB; None: 1 when every image is grey, else 3.
        resampling: how they are scaled, unless `resizing` says otherwise.

    Returns:
        uint8 [n, channels, H, W]; inside `cached` it is mapped (see `allocate`).

    Raises:
        UserError: when an image cannot be decoded or holds more than 8 bits a channel, or when
            sizes differ and `image_size` is None.
    """
    fit = _fit_for(resampling)
    if channels is not None:
        return _decode(encoded, where, image_size, channels, fit)
    with _open(encoded[0], where(0)) as first:
        grey = first.mode in _GREY
    if grey:
        with suppress(_Colour):
            return _decode(encoded, where, image_size, 1, fit, grey_only=True)
    return _decode(encoded, where, image_size, 3, fit)


def measure(encoded: Encoded, where: str) -> tuple[int, int]:
    """Width and height of one image, of which only the head is read.

    Raises:
        UserError: when it is no image.
    """
    with _open(encoded, where) as image:
        return image.size


def thumbnail(encoded: Encoded, where: str, size: int) -> tuple[NDArray[np.uint8], bool]:
    """One image at S pixels a side, read whole.

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
        pixels = _pixels(image, where, size, 3, _fit_for("bilinear"))
    return np.ascontiguousarray(pixels.transpose(1, 2, 0)), grey


def sizes_differ(where: str, size: tuple[int, int], first: tuple[int, int]) -> str:
    """What is said of images of several sizes, each width and height."""
    return (
        f"images differ in size: {where} is {size[0]}x{size[1]}, the first is "
        f"{first[0]}x{first[1]}; set data.image_size, for example "
        f"data.image_size={min(*size, *first)}"
    )


def too_deep(where: str, mode: str) -> str:
    """What is said of an image of more than 8 bits a channel."""
    return (
        f"{where} has pixels of mode {mode}, more than 8 bits a channel; "
        "convert it to 8-bit grey or RGB"
    )


def decode_masks(
    images: Sequence[Encoded],
    masks: Sequence[Encoded],
    *,
    image_size: int | None,
    classes: int,
    where: Callable[[int], str] | None = None,
) -> NDArray[np.uint8]:
    """Decode masks, scaled and cropped as `decode` does their images, but by the nearest pixel.

    Args:
        images: n images.
        masks: their masks, 8-bit grey or with a palette; a pixel's value, or its palette index,
            is its class. Of two classes they may hold any two values (0 and 255): the lower one is
            the background.
        image_size: as for `decode`.
        classes: C; values must be below.
        where: names the i-th image in errors; by default its path.

    Returns:
        uint8 [n, H, W].

    Raises:
        UserError: when a mask cannot be decoded, is not as large as its image, or holds a class
            that there is not.
    """
    found, fit = [], _fit_for("nearest")
    for i, (image, mask) in enumerate(zip(images, masks, strict=True)):
        of_image = str(image) if where is None else where(i)
        of_mask = str(mask) if where is None else f"the mask of {where(i)}"
        with _open(image, of_image) as opened, _open(mask, of_mask) as labelled:
            if labelled.mode not in _INDEXED:
                raise UserError(
                    f"{of_mask} has pixels of mode {labelled.mode}, expected one class id a pixel: "
                    "save it as 8-bit grey or with a palette"
                )
            if labelled.size != opened.size:
                raise UserError(
                    f"{of_mask} has {labelled.width}x{labelled.height} pixels, its image "
                    f"{of_image} {opened.width}x{opened.height}; make them equal"
                )
            found.append(_array(labelled, of_mask, image_size, fit))
    ids = np.stack(found)
    if classes == 2 and len(values := np.unique(ids)) == 2:
        return np.asarray(ids == values[1], np.uint8)
    for i in np.flatnonzero(ids.reshape(len(ids), -1).max(1) >= classes)[:1]:
        raise UserError(
            f"{masks[i] if where is None else where(i)} holds the class {ids[i].max()}, but "
            f"classes.json names {classes} classes (0 to {classes - 1}); mend the mask or name the "
            "class"
        )
    return ids


class _Colour(Exception):
    """An image has colour after all."""


def _decode(
    encoded: Sequence[Encoded],
    where: Callable[[int], str],
    image_size: int | None,
    channels: int,
    fit: _Fit,
    *,
    grey_only: bool = False,
) -> NDArray[np.uint8]:
    with _open(encoded[0], where(0)) as first:
        width, height = first.size
    workers = threads() if width * height >= _WORTH_THREADS else 1
    if image_size is not None:
        width = height = image_size
    images = allocate((len(encoded), channels, height, width))

    def fill(start: int) -> None:
        for i in range(start, min(start + _CHUNK, len(encoded))):
            with _open(encoded[i], where(i)) as image:
                if grey_only and image.mode not in _GREY:
                    raise _Colour
                pixels = _pixels(image, where(i), image_size, channels, fit)
            if pixels.shape[1:] != (height, width):
                _, own_height, own_width = pixels.shape
                raise UserError(sizes_differ(where(i), (own_width, own_height), (width, height)))
            images[i] = pixels

    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(fill, range(0, len(encoded), _CHUNK)):
            pass
    return images


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
            f"{where} cannot be read as an image: {_reason(error)}; mend or remove it"
        ) from None
    if frames > 1:
        image.close()
        raise UserError(f"{where} holds {frames} images, expected one; keep one of them")
    return image


def _pixels(
    image: Image.Image, where: str, image_size: int | None, channels: int, fit: _Fit
) -> NDArray[np.uint8]:
    """Pixels uint8 [channels, H, W] of one opened image."""
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
    """Pixels of one opened image, [H, W] or [H, W, 3], in `mode`, or unconverted for None."""
    try:
        if mode is None or image.mode == mode:
            image.load()
        else:
            image = image.convert(mode)
    except Exception as error:  # as above
        raise UserError(f"{where} cannot be decoded: {_reason(error)}; mend or remove it") from None
    if image_size is None:
        return np.asarray(image)
    if max(image.size) * image_size**2 > min(image.size) * _MOST_PIXELS:
        raise UserError(
            f"{where} has {image.width}x{image.height} pixels, too oblong for data.image_size="
            f"{image_size}; cut or remove it"
        )
    return np.asarray(_fitted(image, image_size, fit))


def _reason(error: Exception) -> str:
    """An error's message on one line; its class's name where it has none."""
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
