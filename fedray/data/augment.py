"""Image augmentation of a local step: every image of a batch by draws of its own, without a loop.

An augmentation says which source pixel each pixel of the result shows; outside is black.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["AUGMENTATIONS", "augment"]

PADDING = 4
"""Black pixels around an image that `flip_crop` crops from."""
MAX_ANGLE = 30.0
"""Degrees that `flip_rotate` turns at most, either way."""


class _Coordinates(NamedTuple):
    """Source row and column of every pixel of B results, int64, each broadcast to [B, H, W]."""

    rows: Tensor
    columns: Tensor


def augment(images: Tensor, how: str, random: torch.Generator) -> Tensor:
    """Augment a batch for training.

    Args:
        images: uint8 [B, channels, H, W], left as it is.
        how: none, or a key of `AUGMENTATIONS`.
        random: CPU generator of every draw, so that all devices see the same ones.

    Returns:
        uint8 [B, channels, H, W].
    """
    if how == "none":
        return images
    count, channels, height, width = images.shape
    rows, columns = AUGMENTATIONS[how](count, height, width, images.device, random)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    place = (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).flatten(1)
    place = place.unsqueeze(1).expand(-1, channels, -1)
    moved = images.flatten(2).gather(2, place).view(images.shape)
    return moved.masked_fill_(~inside.unsqueeze(1), 0)


def _flip_crop(
    count: int, height: int, width: int, device: torch.device, random: torch.Generator
) -> _Coordinates:
    """Pad by 4 and crop back at random, then flip left to right every other time."""
    shift = torch.randint(-PADDING, PADDING + 1, (2, count, 1), generator=random).to(device)
    columns = _flipped(count, width, device, random) + shift[1]
    rows = torch.arange(height, device=device) + shift[0]
    return _Coordinates(rows.unsqueeze(2), columns.unsqueeze(1))


def _flip_rotate(
    count: int, height: int, width: int, device: torch.device, random: torch.Generator
) -> _Coordinates:
    """Flip left to right every other time, then turn by up to 30 degrees about the centre."""
    columns = _flipped(count, width, device, random)
    angles = (torch.rand(count, 1, 1, generator=random) * 2 - 1) * math.radians(MAX_ANGLE)
    sine, cosine = angles.sin().to(device), angles.cos().to(device)
    y = (torch.arange(height, device=device) - (height - 1) / 2).unsqueeze(1)
    x = torch.arange(width, device=device) - (width - 1) / 2
    row = (cosine * y - sine * x + (height - 1) / 2).round().long()
    column = (cosine * x + sine * y + (width - 1) / 2).round().long()
    # a turned place outside the image stays outside whichever way the image is flipped
    source = columns.gather(1, column.clamp(0, width - 1).flatten(1)).view(column.shape)
    return _Coordinates(row, torch.where((column >= 0) & (column < width), source, -1))


def _flipped(count: int, width: int, device: torch.device, random: torch.Generator) -> Tensor:
    """Columns [B, W] in their order or, with probability 1/2, backwards."""
    backwards = (torch.rand(count, 1, generator=random) < 0.5).to(device)
    forth = torch.arange(width, device=device)
    return torch.where(backwards, width - 1 - forth, forth)


AUGMENTATIONS: Mapping[
    str, Callable[[int, int, int, torch.device, torch.Generator], _Coordinates]
] = MappingProxyType({"flip_crop": _flip_crop, "flip_rotate": _flip_rotate})
"""What `data.augment` may be called: the function from the batch's size and a generator."""
