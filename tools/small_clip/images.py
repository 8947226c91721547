"""The training images of several sets as one pool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedray.data import ImageSet, ReadOptions, load_images
from fedray.data.imageset import TEST, TRAIN
from tools.small_clip.spec import ImagesSpec, Spec


@dataclass(frozen=True)
class Pool:
    """Training images.

    Attributes:
        images: uint8 [n, 3, S, S].
        classes: int64 [n], positions in `class_names`.
        class_names: class names of all sets, one set after the other.
        order: int64 [m], the images of one epoch, unshuffled; oversampled ones occur repeatedly.
    """

    images: Tensor
    classes: Tensor
    class_names: tuple[str, ...]
    order: Tensor


def decode(images: ImagesSpec, size: int) -> ImageSet:
    """Load a set at `size` pixels and three channels, through the cache of this node.

    Raises:
        UserError: if it is missing.
    """
    root = None if images.root is None else Path(images.root)
    return load_images(images.source, root, ReadOptions(size, 3))


def training_pool(spec: Spec) -> Pool:
    """Load the training images of all sets of `spec.train`."""
    pixels: list[NDArray[np.uint8]] = []
    classes: list[NDArray[np.int64]] = []
    names: list[str] = []
    order: list[NDArray[np.int64]] = []
    for part in spec.train:
        images = decode(part, spec.image.size)
        rows = split_rows(images, TRAIN)
        first = sum(map(len, pixels))
        pixels.append(images.images[rows])
        classes.append(images.labels[rows] + len(names))
        names += images.class_names
        order += [np.arange(first, first + len(rows))] * part.repeat
    return Pool(
        torch.from_numpy(np.concatenate(pixels)),
        torch.from_numpy(np.concatenate(classes)),
        tuple(names),
        torch.from_numpy(np.concatenate(order)),
    )


def split_rows(images: ImageSet, split: int) -> NDArray[np.intp]:
    """Return the rows of official TRAIN or TEST images; without a split every fifth is TEST."""
    origin = images.origin
    if not (origin == TEST).any():
        origin = np.where(np.arange(len(origin)) % 5 == 4, TEST, TRAIN).astype(np.int8)
    return np.flatnonzero(origin == split)
