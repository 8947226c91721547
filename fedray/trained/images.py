"""Images as their owner has them, made what a model was trained on: size, channels, range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedray.data.decoding import DEEP, Encoded, ReadOptions, Resampling, decode, too_deep
from fedray.errors import UserError
from fedray.models import Pixels

if TYPE_CHECKING:
    from PIL.Image import Image

Images: TypeAlias = "Tensor | np.ndarray | str | Path | Image | Sequence[str | Path | Image | Any]"
"""A batch as a tensor or array [n, channels, H, W], [n, H, W, channels] or, in grey, [n, H, W]; one
image likewise without n; or a file, a PIL image, or several of these. Integers are in 0..255,
floats in 0..1."""


@dataclass(frozen=True)
class Preprocessing:
    """How images become what a model sees.

    Attributes:
        channels: 1 grey, 3 RGB.
        height: in pixels.
        width: in pixels.
        resampling: how those of other sizes are scaled; a square's centre is cut out then.
        as_torchvision: whether sides and margins are rounded as torchvision's transforms do.
    """

    channels: int
    height: int
    width: int
    resampling: Resampling = "bilinear"
    as_torchvision: bool = False

    def __str__(self) -> str:
        colour = "grey" if self.channels == 1 else "RGB"
        scaled = f", {self.resampling}, centre cut out" if self.height == self.width else ""
        return f"{self.width}x{self.height} pixels, {colour}{scaled}, in [-1, 1]"

    def __call__(self, images: Images) -> Pixels:
        """Return the images as the model sees them, float32 [n, channels, H, W] in [-1, 1].

        Raises:
            UserError: when they are none, cannot be read, or do not fit.
        """
        if isinstance(images, Tensor | np.ndarray):
            return Pixels(self._of_array(images))
        one = isinstance(images, str | Path) or hasattr(images, "convert")
        several: Sequence[Any] = [images] if one else list(images)  # type: ignore[arg-type]
        if not several:
            return Pixels(torch.zeros(0, self.channels, self.height, self.width))
        if all(isinstance(each, Tensor | np.ndarray) for each in several):
            return Pixels(torch.cat([self._of_array(each) for each in several]))
        encoded = [_encoded(each, self._mode) for each in several]
        return Pixels.of(torch.from_numpy(self._decoded(encoded)))

    @property
    def _mode(self) -> Literal["L", "RGB"]:
        """Return Pillow's name of the colours."""
        return "L" if self.channels == 1 else "RGB"

    def _of_array(self, images: Tensor | np.ndarray) -> Tensor:
        """Return a tensor or array, of the size that it has where that fits.

        Raises:
            UserError: when it is no images, or its values are out of range.
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
        pixels: list[Encoded] = [each.permute(1, 2, 0).squeeze(2).numpy() for each in as_bytes]
        return Pixels.of(torch.from_numpy(self._decoded(pixels))).values

    def _batch(self, images: Tensor) -> Tensor:
        """Return as [n, 1 or 3, H, W].

        Raises:
            UserError: when it is neither one image nor a batch, or may be both.
        """
        found = images
        if self.channels == 1 and found.ndim == 3 and len(found) == 3 and not _last(found):
            _, height, width = found.shape
            raise UserError(
                f"the images have the shape {list(found.shape)}, which is three grey images or one "
                f"in RGB; give them as [3, 1, {height}, {width}] or [1, 3, {height}, {width}]"
            )
        if found.ndim == 2 or (found.ndim == 3 and (found.shape[0] in _COLOURS or _last(found))):
            found = found.unsqueeze(0)
        if found.ndim == 3:
            found = found.unsqueeze(1)
        if found.ndim == 4 and found.shape[1] not in _COLOURS and _last(found):
            found = found.permute(0, 3, 1, 2)
        if found.ndim != 4 or found.shape[1] not in _COLOURS:
            raise UserError(
                f"the images have the shape {list(images.shape)}, expected [n, channels, H, W] "
                f"with 1 or 3 channels, for this model [n, {self.channels}, {self.height}, "
                f"{self.width}]"
            )
        return found

    def _decoded(self, encoded: Sequence[Encoded]) -> np.ndarray:
        square = self.height == self.width
        names = [each if isinstance(each, Path) else "image" for each in encoded]
        where = [f"{name} {i}" if name == "image" else str(name) for i, name in enumerate(names)]
        size = self.height if square else None
        resize = self.resampling if self.as_torchvision else None
        options = ReadOptions(size, self.channels, resize)
        found = decode(encoded, lambda i: where[i], options, resampling=self.resampling)
        if found.shape[2:] != (self.height, self.width):
            raise UserError(
                f"{where[0]} has {found.shape[3]}x{found.shape[2]} pixels, and the model sees "
                f"{self.width}x{self.height}; scale it"
            )
        return found


_COLOURS = (1, 3)


def _last(images: Tensor) -> bool:
    """Return whether the channels stand last."""
    return images.shape[-1] in _COLOURS


def _as_tensor(images: Tensor | np.ndarray) -> Tensor:
    """Return a tensor on the CPU, float, uint8 or int64; an array may be a transposed view.

    Raises:
        UserError: when it holds no numbers.
    """
    if isinstance(images, np.ndarray):
        if images.dtype.kind not in "iuf":
            raise UserError(f"the images hold {images.dtype}, expected floats or integers")
        wide = {"i": np.int64, "u": np.int64, "f": np.float32}[images.dtype.kind]
        kept = images.dtype == np.uint8
        return torch.from_numpy(np.ascontiguousarray(images, None if kept else wide))
    if images.dtype == torch.bool or images.is_complex():
        raise UserError(f"the images hold {images.dtype}, expected floats or integers")
    found = images.detach().cpu()
    return found if found.is_floating_point() or found.dtype == torch.uint8 else found.long()


def _encoded(image: Any, mode: Literal["L", "RGB"]) -> Encoded:
    """Return one image as the decoder takes it: a PIL image in these colours, as a file's would be.

    Raises:
        UserError: when it is none, or has more than 8 bits a channel.
    """
    if isinstance(image, str | Path):
        path = Path(image).expanduser()
        if not path.is_file():
            what = "is a folder; name the images in it" if path.is_dir() else "does not exist"
            raise UserError(f"{path} {what}")
        return path
    if hasattr(image, "convert"):  # a PIL image
        if image.mode in DEEP:
            raise UserError(too_deep("the image", image.mode))
        return np.asarray(image if image.mode == mode else image.convert(mode))
    raise UserError(
        f"{type(image).__name__} is no image here; expected files and PIL images, or tensors and "
        "arrays, not both"
    )
