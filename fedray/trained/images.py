"""Preprocessing of user images to the size, channels and value range of a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedray.base.errors import UserError
from fedray.data.decoding import Encoded, ReadOptions, Resampling, Resize, decode
from fedray.models import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

Images: TypeAlias = "Tensor | np.ndarray | str | Path | Image | Sequence[str | Path | Image | Any]"
"""A batch as a tensor or array [n, channels, H, W], [n, H, W, channels] or, in grey, [n, H, W]; a
single image without the dimension n; or a file, a PIL image, or several of these. Integers are in
0..255, floats in 0..1. [3, H, W] is refused, because it is three grey images or one in RGB. Files
and PIL images are read as a run reads them (`fedray.data.decoding`)."""


@dataclass(frozen=True)
class Preprocessing:
    """Conversion of images to the input of a model.

    Attributes:
        channels: 1 (grey) or 3 (RGB).
        height: height of the input in pixels.
        width: width of the input in pixels.
        resampling: filter for scaling images of other sizes; for square inputs, the centre is
            cropped after scaling.
        resize: the experiment's `data.resize`, which replaces the filter (see `ReadOptions`).
    """

    channels: int
    height: int
    width: int
    resampling: Resampling = "bilinear"
    resize: Resize | None = None

    def __str__(self) -> str:
        colour = "grey" if self.channels == 1 else "RGB"
        way = f"{self.resize or self.resampling}, centre crop"
        way = "both sides scaled" if (self.resize or "").startswith("squash") else way
        scaled = f", {way}" if self.height == self.width else ""
        return f"{self.width}x{self.height} pixels, {colour}{scaled}, in [-1, 1]"

    def __call__(self, images: Images) -> Pixels:
        """Return the images as input of the model, float32 [n, channels, H, W] in [-1, 1].

        Raises:
            UserError: if an image is invalid, cannot be read, or does not fit the model.
        """
        if isinstance(images, Tensor | np.ndarray):
            return Pixels(self._of_array(images))
        one = isinstance(images, str | Path) or hasattr(images, "convert")
        several: Sequence[Any] = [images] if one else list(images)  # type: ignore[arg-type]
        if not several:
            return Pixels(torch.zeros(0, self.channels, self.height, self.width))
        if all(isinstance(image, Tensor | np.ndarray) for image in several):
            return Pixels(torch.cat([self._of_array(image) for image in several]))
        encoded = [_encoded(image) for image in several]
        return Pixels.of(torch.from_numpy(self._decoded(encoded)))

    def _of_array(self, images: Tensor | np.ndarray) -> Tensor:
        """Convert a tensor or array; scale it unless its size fits.

        Raises:
            UserError: if the shape or the range of values is invalid.
        """
        batch = self._batch(_as_tensor(images))
        most = 1 if batch.is_floating_point() else 255
        if batch.numel() and not 0 <= float(batch.min()) <= float(batch.max()) <= most:
            kind = "floats" if batch.is_floating_point() else "integers"
            raise UserError(
                f"the images hold {kind} from {float(batch.min()):g} to {float(batch.max()):g}, "
                "expected floats from 0 to 1 or integers from 0 to 255"
            )
        if not batch.is_floating_point():
            batch = batch.to(torch.uint8)
        if batch.shape[1:] == (self.channels, self.height, self.width):
            exact = batch if batch.dtype == torch.uint8 else batch.float() * 2 - 1
            return Pixels.of(exact).values
        as_bytes = batch if batch.dtype == torch.uint8 else (batch * 255).round().to(torch.uint8)
        pixels: list[Encoded] = [image.permute(1, 2, 0).squeeze(2).numpy() for image in as_bytes]
        return Pixels.of(torch.from_numpy(self._decoded(pixels))).values

    def _batch(self, images: Tensor) -> Tensor:
        """Return images with the shape [n, 1 or 3, H, W].

        Raises:
            UserError: if the shape is neither that of an image nor of a batch, or is ambiguous.
        """
        batch = images
        if batch.ndim == 3 and len(batch) == 3 and not _last(batch):
            _, height, width = batch.shape
            raise UserError(
                f"the images have the shape {list(batch.shape)}, which is three grey images or one "
                f"in RGB; pass them as [3, 1, {height}, {width}] or [1, 3, {height}, {width}]"
            )
        one_alpha = batch.ndim == 3 and batch.shape[-1] in _WITH_ALPHA and self.width > 4
        first_alpha = batch.ndim == 3 and len(batch) == 4 and self.channels == 3
        if one_alpha or first_alpha:
            raise UserError(
                f"the images have the shape {list(batch.shape)}, which may be one image with "
                "transparency; pass it as a PIL image, or without its alpha channel"
            )
        if batch.ndim == 2 or (batch.ndim == 3 and (batch.shape[0] in _COLOURS or _last(batch))):
            batch = batch.unsqueeze(0)
        if batch.ndim == 3:
            batch = batch.unsqueeze(1)
        if batch.ndim == 4 and batch.shape[1] not in _COLOURS and _last(batch):
            batch = batch.permute(0, 3, 1, 2)
        if batch.ndim != 4 or batch.shape[1] not in _COLOURS:
            raise UserError(
                f"the images have the shape {list(images.shape)}, expected [n, channels, H, W] "
                f"with 1 or 3 channels, for this model [n, {self.channels}, {self.height}, "
                f"{self.width}]"
            )
        return batch

    def _decoded(self, encoded: Sequence[Encoded]) -> np.ndarray:
        if not encoded:
            return np.zeros((0, self.channels, self.height, self.width), np.uint8)
        square = self.height == self.width
        where = [str(x) if isinstance(x, Path) else f"image {i}" for i, x in enumerate(encoded)]
        size = self.height if square else None
        options = ReadOptions(size, self.channels, self.resize if square else None)
        pixels = decode(encoded, lambda i: where[i], options, resampling=self.resampling)
        if pixels.shape[2:] != (self.height, self.width):
            raise UserError(
                f"{where[0]} has {pixels.shape[3]}x{pixels.shape[2]} pixels, but the model expects "
                f"{self.width}x{self.height}; scale the image"
            )
        return pixels


_COLOURS = (1, 3)
_WITH_ALPHA = (2, 4)
"""Channels of grey and RGB images with transparency."""


def _last(images: Tensor) -> bool:
    """Return True if the last dimension can be the channels."""
    return images.shape[-1] in _COLOURS


def _as_tensor(images: Tensor | np.ndarray) -> Tensor:
    """Return a float, uint8 or int64 tensor on the CPU; arrays may be transposed views.

    Raises:
        UserError: if the elements are neither integers nor floats.
    """
    if isinstance(images, np.ndarray):
        if images.dtype.kind not in "iuf":
            raise UserError(f"the images hold {images.dtype}, expected floats or integers")
        wide = {"i": np.int64, "u": np.int64, "f": np.float32}[images.dtype.kind]
        kept = images.dtype == np.uint8
        return torch.from_numpy(np.ascontiguousarray(images, None if kept else wide))
    if images.dtype == torch.bool or images.is_complex():
        raise UserError(f"the images hold {images.dtype}, expected floats or integers")
    tensor = images.detach().cpu()
    return tensor if tensor.is_floating_point() or tensor.dtype == torch.uint8 else tensor.long()


def _encoded(image: Any) -> Encoded:
    """Return the input of the decoder for one image: the path of a file, or a PIL image.

    Raises:
        UserError: if the image is missing or of another type.
    """
    if isinstance(image, str | Path):
        path = Path(image).expanduser()
        if not path.is_file():
            problem = "is a folder; pass the images in it" if path.is_dir() else "does not exist"
            raise UserError(f"{path} {problem}")
        return path
    if hasattr(image, "convert"):
        pil_image: Image = image
        return pil_image
    raise UserError(
        f"{type(image).__name__} is not accepted here; pass either files and PIL images, or "
        "tensors and arrays"
    )
