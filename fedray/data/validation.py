"""Validation images, which clients hold out of their training images, class by class."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import UserError
from fedray.config import DataConfig
from fedray.data.federated import FederatedData
from fedray.data.partitions import Indices, Partition


def gives_validation(keys: DataConfig) -> bool:
    """Return True if clients will have validation images; reads no image."""
    return keys.validation_fraction is not None or not isinstance(keys.partition.build(), Partition)


def hold_out(
    data: FederatedData, fraction: float, rng_for: Callable[[str], np.random.Generator]
) -> FederatedData:
    """Hold out a share of each client's training images for validation, stratified by class.

    A client whose classes have one image each keeps all of them and has no validation images.

    Raises:
        UserError: if no client would have a validation image, or if the partition already defines
            validation images.
    """
    if data.validation is not None:
        raise UserError(
            f"data.validation_fraction={fraction:g}, but data.partition already gives every client "
            "validation images; remove data.validation_fraction"
        )
    rng, labels = rng_for("validation"), np.asarray(data.images.labels)
    splits = [stratified_split(part, labels[part], fraction, rng) for part in data.train]
    train, validation = zip(*splits, strict=True)
    if not any(map(len, validation)):
        raise UserError(
            f"data.validation_fraction={fraction:g} needs a client with two training images of a "
            "class, but there is none; lower data.clients, use more images, or remove "
            "data.validation_fraction"
        )
    return replace(data, train=train, validation=validation)


def stratified_split(
    indices: Indices, labels: NDArray[np.integer], fraction: float, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Hold out ceil(f n) of n images: of a class with n_c images, f n_c rounded, but never all.

    Every class gives floor(f n_c). The missing images come from the classes with the largest
    remainders; ties are broken at random. If they would be a class's last image, fewer than
    ceil(f n) are held out. Returns the remaining and the held-out indices [n], both sorted.
    """
    order = rng.permutation(len(indices))
    classes, counts = np.unique(labels, return_counts=True)
    shares = np.round(fraction * counts, 9)  # 0.1 * 30 is 3, without rounding error
    held_out = np.minimum(np.floor(shares), counts - 1).astype(np.int64)
    missing = math.ceil(round(float(fraction * len(indices)), 6)) - int(held_out.sum())
    ties = rng.permutation(len(classes))
    largest = ties[np.argsort((held_out - shares)[ties], kind="stable")]
    able = largest[(shares > held_out)[largest] & (held_out + 1 < counts)[largest]]
    held_out[able[:missing]] += 1
    positions = [
        order[labels[order] == c][:count] for c, count in zip(classes, held_out, strict=True)
    ]
    is_held_out = np.zeros(len(indices), dtype=bool)
    is_held_out[np.concatenate([*positions, np.empty(0, dtype=np.int64)])] = True
    return np.sort(indices[~is_held_out]), np.sort(indices[is_held_out])
