"""Vectorised image augmentation for local training: independent draws for each image of a batch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, StrictBool, model_validator
from torch import Tensor

from fedray.config import Entry
from fedray.config.registry import Registry


class Augmentation(Entry, ABC):
    """A random change of training images, drawn for every batch."""

    is_identity: ClassVar[bool] = False
    """Whether images stay unchanged, so that frozen features of them can be cached."""

    @abstractmethod
    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Augment a batch.

        Args:
            images: uint8 [B, channels, H, W]; not modified.
            generator: CPU generator of all draws, so that every device gets the same ones.

        Returns:
            uint8 [B, channels, H, W].
        """


augmentations: Registry[type[Augmentation]] = Registry("augmentation", "fedray.data.augment")


@augmentations.add
class NoAugmentation(Augmentation):
    """No change of the images."""

    name = "none"
    is_identity = True

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return images


NO_AUGMENTATION = NoAugmentation()
"""The augmentation that changes nothing."""


class GeometricAugmentation(Augmentation):
    """A crop, flip and rotation, as far as the parameters have `padding` and `max_angle`.

    Each pixel is taken from a source pixel; those from outside the image are black.
    """

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the shifts of rows and columns, then the flips, then the angles."""
        count, channels, height, width = images.shape
        padding, angle = (getattr(self, key, None) for key in ("padding", "max_angle"))
        shift = torch.zeros(2, count, 1, 1, dtype=torch.int64)
        if padding is not None:
            shift = torch.randint(-padding, padding + 1, shift.shape, generator=generator)
        flip = torch.rand(count, 1, 1, generator=generator) < 0.5
        shift, flip = shift.to(images.device), flip.to(images.device)
        row, column = torch.arange(height).to(shift)[:, None], torch.arange(width).to(shift)
        if angle is not None:
            row, column = _rotated(images, angle, generator)
        rows, columns = row + shift[0], torch.where(flip, width - 1 - column, column) + shift[1]
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        inside = inside & (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        pixel = (rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)).flatten(1)
        pixel = pixel.unsqueeze(1).expand(-1, channels, -1)
        moved = images.flatten(2).gather(2, pixel).view(images.shape)
        return moved.masked_fill_(~inside.unsqueeze(1), 0)


@augmentations.add
class FlipCrop(GeometricAugmentation):
    """Pad, crop back at a random position, and flip left to right with probability 1/2.

    He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, Section 4.2 (CIFAR-10,
    4 pixels a side).
    """

    name = "flip_crop"
    paper = "He et al., CVPR 2016"

    padding: int = Field(4, ge=0, le=512)
    """Black pixels added on every side before the crop; 0: flips only."""


@augmentations.add
class FlipRotate(GeometricAugmentation):
    """Flip left to right with probability 1/2, and rotate by a random angle about the centre.

    The augmentation of FedGLCL's experiments (30 degrees), with nearest-neighbour sampling.
    """

    name = "flip_rotate"
    paper = "Yan et al., FedGLCL, ICLR 2025"

    max_angle: float = Field(30.0, ge=0, le=180)
    """Degrees; the angle is uniform between minus and plus this."""


@augmentations.add
class CropFlipRotate(FlipCrop):
    """Pad and crop back at random, flip left to right with probability 1/2, and rotate a little.

    MOON's augmentation of CIFAR-100 (official code: 4 pixels, 15 degrees). FedGLCL's CIFAR-100
    code seems to build on MOON's; FedGLCL does not state its augmentation. Sampling is
    nearest-neighbour.
    """

    name = "crop_flip_rotate"
    paper = "Li et al., MOON, CVPR 2021, official code"

    max_angle: float = Field(15.0, ge=0, le=180)
    """Degrees; the angle is uniform between minus and plus this."""


def _rotated(images: Tensor, max_angle: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return source rows and columns [B, H, W] of images rotated about their centre."""
    count, _, height, width = images.shape
    device = images.device
    unit = torch.rand(count, 1, 1, generator=generator) * 2 - 1
    angles = unit * math.radians(max_angle)
    sine, cosine = angles.sin().to(device), angles.cos().to(device)
    y = (torch.arange(height, device=device) - (height - 1) / 2).unsqueeze(1)
    x = torch.arange(width, device=device) - (width - 1) / 2
    row = (cosine * y - sine * x + (height - 1) / 2).round().long()
    column = (cosine * x + sine * y + (width - 1) / 2).round().long()
    return row, column


@augmentations.add
class ResizedCrop(Augmentation):
    """A random crop of the image, resized bicubically to its size, and flipped half the time.

    torchvision's RandomResizedCrop and RandomHorizontalFlip, with which CoOp and its successors
    train prompts (FedMGP, C.2: area 0.08 to 1). The crop is taken from the stored square image,
    at its resolution, not from the original file.

    Features of random crops cannot be cached. Methods whose prompts are only in the texts then run
    the frozen image tower on every image of every epoch instead of once, which on ViT-B/16 takes
    nearly all of their time. Tests still read cached features.
    """

    name = "resized_crop"
    paper = "Szegedy et al., CVPR 2015; Zhou et al., CoOp, IJCV 2022"

    scale_min: float = Field(0.08, gt=0, le=1)
    """Smallest area of a crop, as a share of the image's area."""
    scale_max: float = Field(1.0, gt=0, le=1)
    """Largest area of a crop, as a share of the image's area."""
    ratio_max: float = Field(4 / 3, ge=1, le=100)
    """Largest ratio of width to height of a crop; the smallest is its inverse."""
    flip: StrictBool = True
    """Whether crops are flipped left to right with probability 1/2."""

    @model_validator(mode="after")
    def _some_share(self) -> ResizedCrop:
        if self.scale_min > self.scale_max:
            raise ValueError(
                f"scale_min={self.scale_min:g} is above scale_max={self.scale_max:g}; lower "
                "data.augment.scale_min"
            )
        return self

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a box and a flip for each image, and resize the box's content."""
        count, _, height, width = images.shape
        boxes = self.boxes(count, height, width, generator).tolist()
        flips = (torch.rand(count, generator=generator) < 0.5).tolist()
        views = []
        for image, (y, x, rows, columns), flip in zip(images, boxes, flips, strict=True):
            crop = image[None, :, y : y + rows, x : x + columns].float()
            view = F.interpolate(crop, (height, width), mode="bicubic", antialias=True)
            views.append(view.flip(3) if flip and self.flip else view)
        return torch.cat(views).round_().clamp_(0, 255).to(torch.uint8) if views else images

    def boxes(self, count: int, height: int, width: int, generator: torch.Generator) -> Tensor:
        """Draw each image's top, left, rows and columns, int64 [count, 4].

        Takes the first of ten tries that fits; if none fits, the largest centred box with an
        allowed ratio.
        """
        params, tries = self, 10
        share, shape, down, right = torch.rand(4, count, tries, generator=generator)
        area = (params.scale_min + (params.scale_max - params.scale_min) * share) * height * width
        ratio = ((2 * shape - 1) * math.log(params.ratio_max)).exp()
        rows, columns = (area / ratio).sqrt().round().long(), (area * ratio).sqrt().round().long()
        fits = (rows > 0) & (rows <= height) & (columns > 0) & (columns <= width)
        top_edge = (down * (height - rows + 1).clamp_min(1)).long()
        left_edge = (right * (width - columns + 1).clamp_min(1)).long()
        candidates = torch.stack([top_edge, left_edge, rows, columns], dim=2)
        first = fits.long().argmax(1)
        boxes_that_fit = candidates[torch.arange(count), first]
        return torch.where(fits.any(1, keepdim=True), boxes_that_fit, self._middle(height, width))

    def _middle(self, height: int, width: int) -> Tensor:
        """Return the largest centred box with an allowed ratio, int64 [4]."""
        most = self.ratio_max
        rows, columns = min(height, round(width * most)), min(width, round(height * most))
        return torch.tensor([(height - rows) // 2, (width - columns) // 2, rows, columns])
