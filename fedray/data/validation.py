"""Validation images: what clients hold out of their training images, class by class."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedray.config import DataConfig
from fedray.data.federated import FederatedData
from fedray.data.partitions import FewShotProtocol, Indices, build_partition
from fedray.errors import UserError


def gives_validation(keys: DataConfig) -> bool:
    """Return True if clients will have validation images, without reading any image."""
    few_shot = isinstance(build_partition(keys.partition), FewShotProtocol)
    return few_shot or keys.validation_fraction is not None


def hold_out(
    data: FederatedData, fraction: float, rng_for: Callable[[str], np.random.Generator]
) -> FederatedData:
    """Take a share of each client's training images out for validation, stratified by class.

    A client whose classes have one image each keeps all of them, and validates on none.

    Args:
        data: the partitioned images.
        fraction: of a client's training images, between 0 and 1.
        rng_for: gives the stream for "validation".

    Raises:
        UserError: when nobody would have an image to validate on, or the partition already gave
            everybody some.
    """
    if data.validation is not None:
        raise UserError(
            f"data.validation_fraction={fraction:g}, but data.partition already gives every client "
            "validation images; leave data.validation_fraction out"
        )
    rng, labels = rng_for("validation"), np.asarray(data.images.labels)
    splits = [stratified_split(part, labels[part], fraction, rng) for part in data.train]
    train, validation = zip(*splits, strict=True)
    if not any(map(len, validation)):
        raise UserError(
            f"data.validation_fraction={fraction:g} finds no client with two training images of a "
            "class, one of which it could validate on; lower data.clients, use more images, or "
            "leave data.validation_fraction out"
        )
    return replace(data, train=train, validation=validation)


def stratified_split(
    indices: Indices, labels: NDArray[np.integer], fraction: float, rng: np.random.Generator
) -> tuple[Indices, Indices]:
    """Hold out ceil(f n) of n images: of a class with n_c images f n_c, rounded, and never all.

    Every class gives floor(f n_c); what is missing comes from the classes with the largest
    remainders, of equal ones drawn at random. Where the missing ones would be a class's last
    image, there are fewer than ceil(f n).

    Args:
        indices: int64 [n].
        labels: the class of each of them [n].
        fraction: f, between 0 and 1.
        rng: random stream.

    Returns:
        The indices that stay and those that are held out, both sorted.
    """
    order = rng.permutation(len(indices))
    classes, counts = np.unique(labels, return_counts=True)
    shares = np.round(fraction * counts, 9)  # 0.1 * 30 is 3, not a little more
    held = np.minimum(np.floor(shares), counts - 1).astype(np.int64)
    missing = math.ceil(round(float(fraction * len(indices)), 6)) - int(held.sum())
    ties = rng.permutation(len(classes))
    largest = ties[np.argsort((held - shares)[ties], kind="stable")]
    able = largest[(shares > held)[largest] & (held + 1 < counts)[largest]]
    held[able[:missing]] += 1
    taken = [order[labels[order] == c][:count] for c, count in zip(classes, held, strict=True)]
    out = np.zeros(len(indices), dtype=bool)
    out[np.concatenate([*taken, np.empty(0, dtype=np.int64)])] = True
    return np.sort(indices[~out]), np.sort(indices[out])
