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

Images: TypeAlias = "Tensor | np.ndarray | str | Path | Image | Sequence[str | Path | Image]"
"""A batch as a tensor or array [n, channels, H, W] with 1 (grey) or 3 (RGB) channels, integers in
0..255 or floats in 0..1; or a file, a PIL image, or several of these, which are read as a run reads
files (`fedray.data.decoding`)."""


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
            batch = images if isinstance(images, Tensor) else np.ascontiguousarray(images)
            return self._of_batch(torch.as_tensor(batch).detach().cpu())
        one = isinstance(images, str | Path) or hasattr(images, "convert")
        several: Sequence[Any] = [images] if one else list(images)  # type: ignore[arg-type]
        return Pixels.of(torch.from_numpy(self._decoded([_encoded(image) for image in several])))

    def _of_batch(self, batch: Tensor) -> Pixels:
        """Convert a batch; scale it unless its size fits.

        Raises:
            UserError: if the shape or the range of values is invalid.
        """
        if batch.ndim != 4 or batch.shape[1] not in (1, 3):
            raise UserError(
                f"the images have the shape {list(batch.shape)}, expected [n, channels, H, W] "
                f"with 1 or 3 channels, for this model [n, {self.channels}, {self.height}, "
                f"{self.width}]"
            )
        is_float = batch.is_floating_point()
        batch = batch if is_float or batch.dtype == torch.uint8 else batch.long()
        low, high = batch.aminmax() if batch.numel() else (0, 0)
        if not 0 <= float(low) <= float(high) <= (1 if is_float else 255):
            raise UserError(
                f"the images hold values from {float(low):g} to {float(high):g}, expected floats "
                "from 0 to 1 or integers from 0 to 255"
            )
        if not is_float:
            batch = batch.to(torch.uint8)
        if batch.shape[1:] == (self.channels, self.height, self.width):
            return Pixels.of(batch.float() * 2 - 1 if is_float else batch)
        stored = (batch * 255).round().to(torch.uint8) if is_float else batch
        pixels: list[Encoded] = [image.permute(1, 2, 0).squeeze(2).numpy() for image in stored]
        return Pixels.of(torch.from_numpy(self._decoded(pixels)))

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


def _encoded(image: Any) -> Encoded:
    """Return the input of the decoder for one image: the path of a file, or a PIL image.

    Raises:
        UserError: if the image is missing or of another type.
    """
    if hasattr(image, "convert"):
        pil_image: Image = image
        return pil_image
    if not isinstance(image, str | Path):
        raise UserError(f"{type(image).__name__} is neither a file nor a PIL image")
    path = Path(image).expanduser()
    if not path.is_file():
        raise UserError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}")
    return path
