"""The training images of several sets as one, and random views of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedray.data import ImageSet, ReadOptions, load_images
from fedray.data.imageset import TEST, TRAIN
from fedray.pretrain.export import MEAN, STD
from fedray.pretrain.spec import ImageConfig, ImagesConfig, PretrainConfig


@dataclass(frozen=True)
class Pool:
    """Training images.

    Attributes:
        images: uint8 [n, 3, S, S].
        classes: int64 [n], positions in `class_names`.
        class_names: the sets' class names, one set after the other.
        order: int64 [m], the images of one epoch, unshuffled; oversampled ones occur repeatedly.
    """

    images: Tensor
    classes: Tensor
    class_names: tuple[str, ...]
    order: Tensor


def decode(images: ImagesConfig, size: int) -> ImageSet:
    """A set at `size` pixels and three channels, from this node's cache.

    Raises:
        UserError: when it is not there.
    """
    root = None if images.root is None else Path(images.root)
    return load_images(images.source, root, ReadOptions(size, 3))


def training_pool(config: PretrainConfig) -> Pool:
    """The official training images of all sets of `config.train`.

    A source without splits gives its images but for every fifth, which is held out.
    """
    pixels: list[NDArray[np.uint8]] = []
    classes: list[NDArray[np.int64]] = []
    names: list[str] = []
    order: list[NDArray[np.int64]] = []
    for part in config.train:
        found = decode(part, config.image.size)
        rows = split_rows(found, TRAIN)
        first = sum(map(len, pixels))
        pixels.append(found.images[rows])
        classes.append(found.labels[rows] + len(names))
        names += found.class_names
        order += [np.arange(first, first + len(rows))] * part.repeat
    return Pool(
        torch.from_numpy(np.concatenate(pixels)),
        torch.from_numpy(np.concatenate(classes)),
        tuple(names),
        torch.from_numpy(np.concatenate(order)),
    )


def split_rows(images: ImageSet, split: int) -> NDArray[np.intp]:
    """Rows of the official TRAIN or TEST images; without a split every fifth image is TEST."""
    origin = images.origin
    if not (origin == TEST).any():
        origin = np.where(np.arange(len(origin)) % 5 == 4, TEST, TRAIN).astype(np.int8)
    return np.flatnonzero(origin == split)


def normalise(pixels: Tensor) -> Tensor:
    """uint8 or 0..255 [n, 3, S, S] to what the tower reads."""
    mean, std = (
        torch.tensor(value, device=pixels.device).view(1, 3, 1, 1) for value in (MEAN, STD)
    )
    return (pixels.float() / 255 - mean) / std


@dataclass(frozen=True)
class Views:
    """What is drawn for the views of one batch; the same for any number of workers.

    Attributes:
        affine: [B, 2, 3], where each pixel of a view lies in its image, both in -1..1.
        colour: [B, 3], factors of brightness, contrast and saturation.
    """

    affine: Tensor
    colour: Tensor


def draw_views(count: int, config: ImageConfig, generator: torch.Generator) -> Views:
    """Random crops of 3:4 to 4:3, mirrored or not, and colours."""
    u = torch.rand(count, 8, generator=generator)
    area = config.smallest_crop + (1 - config.smallest_crop) * u[:, 0]
    ratio = torch.exp((2 * u[:, 1] - 1) * float(torch.tensor(4 / 3).log()) / 2)
    wide, high = (area.sqrt() * ratio).clamp(max=1), (area.sqrt() / ratio).clamp(max=1)
    sign = torch.where(u[:, 2] < 0.5, -1.0, 1.0) if config.flip else torch.ones(count)
    affine = torch.zeros(count, 2, 3)
    affine[:, 0, 0], affine[:, 1, 1] = wide * sign, high
    affine[:, 0, 2], affine[:, 1, 2] = (
        (1 - wide) * (2 * u[:, 3] - 1),
        (1 - high) * (2 * u[:, 4] - 1),
    )
    colour = 1 + config.colour * (2 * u[:, 5:8] - 1) * torch.tensor([1.0, 1.0, 2.0])
    return Views(affine, colour)


def look(pixels: Tensor, views: Views) -> Tensor:
    """The views of uint8 images [n, 3, S, S], normalised."""
    images = pixels.float() / 255
    grid = F.affine_grid(views.affine, list(images.shape), align_corners=False)
    images = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    bright, contrast, saturation = views.colour.view(-1, 3, 1, 1, 1).unbind(1)
    grey = images.mean(1, keepdim=True)
    images = grey + saturation * (images - grey)
    middle = images.mean((1, 2, 3), keepdim=True)
    return normalise((255 * bright * (middle + contrast * (images - middle))).clamp(0, 255))
