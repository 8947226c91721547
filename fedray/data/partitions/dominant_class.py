"""DP2FL's few-shot clients: each lacks some classes, and one of its classes is dominant.

arXiv:2504.16357, Section "Datasets". Per client, the pool has at most 16 images of each class; a
fifth of the classes is dropped; a quarter of the pool of every other class is kept; and one of
these classes, the dominant one, also keeps the other three quarters.

Our reading where the paper is silent: every client draws its pools from the whole training split;
counts are rounded, to at least 1; the dominant class is drawn from the kept ones. Validation images
come from the source's official ones (CoOp's val), or else from training images that no client
trains on: one per class, and proportionally more for the dominant class. The test is the largest
subset of the official one with the class proportions of the training images.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictBool

from fedray.base.errors import UserError
from fedray.data.partitions import ClientSplits, FewShotProtocol, Indices, Pools, partitions


@partitions.add
class DominantClass(FewShotProtocol):
    """Few-shot label skew: some classes are missing, one is dominant (DP2FL).

    Client i draws from a separate random stream. Its training and test images do not depend on the
    number of clients; its validation images are images that no client trains on.
    """

    name = "dominant_class"
    paper = "DP2FL, arXiv:2504.16357"

    shots: int = Field(16, ge=1, le=10**6)
    """Most images of a class in a client's pool; the dominant class keeps all of them."""
    excluded: float = Field(0.2, ge=0, lt=1)
    """Share of the classes that a client lacks."""
    kept_share: float = Field(0.25, gt=0, le=1)
    """Share of its pool that each other class keeps; 1: no class is dominant."""
    disjoint: StrictBool = False
    """Whether clients share no training image."""

    def splits(
        self, labels: Indices, pools: Pools, clients: int, rng: np.random.Generator
    ) -> ClientSplits:
        result = ClientSplits([], [], [])
        unused: list[list[Indices]] = []
        streams = rng.spawn(clients)
        shares = [pools.train] * clients
        if self.disjoint:
            shares = _disjoint_shares(labels, pools.train, clients, rng)
        for share, stream in zip(shares, streams, strict=True):
            client_pools = pools._replace(train=share)
            train, remaining = _draw_client(labels, client_pools, self, stream)
            result.train.append(train)
            unused.append(remaining)
            result.test.append(proportional(labels, train, pools.test, stream))
        trained = np.zeros(len(labels), np.bool_)
        trained[np.concatenate([*result.train, pools.seen])] = True
        for remaining in unused:
            result.validation.append(_validation(labels, remaining, trained, self))
        return result


def _disjoint_shares(
    labels: Indices, train: Indices, clients: int, rng: np.random.Generator
) -> list[Indices]:
    """Draw an equal part of every class for every client."""
    shares: list[list[Indices]] = [[] for _ in range(clients)]
    for c in np.unique(labels[train]):
        parts = np.array_split(rng.permutation(train[labels[train] == c]), clients)
        for share, part in zip(shares, parts, strict=True):
            share.append(part)
    return [np.concatenate(share) for share in shares]


def _draw_client(
    labels: Indices, pools: Pools, params: DominantClass, rng: np.random.Generator
) -> tuple[Indices, list[Indices]]:
    """Draw one client's training images.

    Returns:
        The training images, and the remaining shuffled images of each of the client's classes, the
        dominant class first.
    """
    classes = np.unique(labels[pools.train])
    count = len(classes) - round(params.excluded * len(classes))
    kept_classes = np.sort(rng.permutation(classes)[: max(1, count)])
    dominant = rng.choice(kept_classes)
    train: list[Indices] = []
    remaining: list[Indices] = []
    for c in kept_classes:
        for_validation = _validation_count(c == dominant, params)
        images = _class_pool(labels, pools, c, for_validation, params, rng)
        pool = min(params.shots, len(images) - for_validation)
        shots = pool if c == dominant else max(1, round(params.kept_share * pool))
        train.append(images[:shots])
        remaining.insert(0 if c == dominant else len(remaining), images[shots:])
    return np.sort(np.concatenate(train)), remaining


def _validation_count(is_dominant: bool, params: DominantClass) -> int:
    """Return the number of images of a class that a client validates on."""
    return max(1, round(1 / params.kept_share)) if is_dominant else 1


def _validation(
    labels: Indices,
    remaining: Sequence[Indices],
    trained: NDArray[np.bool_],
    params: DominantClass,
) -> Indices:
    """Return a client's validation images: the last ones of each class that no client trains on.

    Args:
        labels: int64 [n], class of each image of the source.
        remaining: the remaining images that `_draw_client` returns.
        trained: bool [n], whether any client trains on an image.
        params: the partition's parameters.

    Raises:
        UserError: if the clients train on too many images of a class.
    """
    parts = []
    for number, images in enumerate(remaining):
        needed, free = _validation_count(number == 0, params), images[~trained[images]]
        if len(free) < needed:
            raise UserError(
                f"data.partition=dominant_class leaves {len(free)} image(s) of class "
                f"{labels[images[0]]} that no client trains on, but a client validates on "
                f"{needed}; use more images, fewer clients or a smaller data.partition.shots"
            )
        parts.append(free[len(free) - needed :])
    return np.sort(np.concatenate(parts))


def _class_pool(
    labels: Indices,
    pools: Pools,
    c: int,
    needed: int,
    params: DominantClass,
    rng: np.random.Generator,
) -> Indices:
    """Return a client's shuffled images of class c; the last `needed` are for validation.

    Raises:
        UserError: if there are too few of them.
    """
    images = rng.permutation(pools.train[labels[pools.train] == c])
    if len(pools.validation):
        official = rng.permutation(pools.validation[labels[pools.validation] == c])
        if len(official) < needed:
            raise UserError(
                f"data.partition=dominant_class needs {needed} of the source's validation images "
                f"of class {c} for a client, but there are {len(official)}; raise "
                "data.partition.kept_share"
            )
        images = np.concatenate([images, official[:needed]])
    if len(images) <= needed:
        alternative = " or set data.partition.disjoint=false" if params.disjoint else ""
        raise UserError(
            f"data.partition=dominant_class finds {len(images)} training images of class {c} "
            f"for a client, which needs {needed} to validate on and more to train on; use more "
            f"images{alternative}"
        )
    return images


def proportional(
    labels: Indices, train: Indices, test: Indices, rng: np.random.Generator
) -> Indices:
    """Draw the largest part of `test` with the class proportions p_c of `train`.

    n_c = floor(t p_c) with t = min_c N_c / p_c over the classes that `test` has any image of.

    Args:
        labels: int64 [n], class of each image of the source.
        train: positions of a client's training images.
        test: positions of the images that may be drawn.
        rng: random stream.

    Returns:
        Sorted positions.

    Raises:
        UserError: if `test` has no image of any class of `train`.
    """
    classes, counts = np.unique(labels[train], return_counts=True)
    available = np.array([(labels[test] == c).sum() for c in classes])
    if not available.any():
        raise UserError(
            f"there is no test image of any of a client's {len(classes)} classes; use more test "
            "images or set data.test=local"
        )
    tested = available > 0
    factor = (available[tested] / counts[tested]).min()
    parts = [
        rng.permutation(test[labels[test] == c])[: int(factor * count + 1e-9)]
        for c, count in zip(classes[tested], counts[tested], strict=True)
    ]
    return np.sort(np.concatenate(parts))
