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
from fedray.config import Entry
from fedray.data.partitions import Indices, partitions


@partitions.add
class DominantClass(Entry):
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
        self,
        labels: Indices,
        train: Indices,
        test: Indices,
        validation: Indices,
        clients: int,
        rng: np.random.Generator,
    ) -> tuple[list[Indices], list[Indices], list[Indices]]:
        """Draw every client's images; a client's three splits share none.

        Args:
            labels: int64 [n], class of each image of the source.
            train: positions of the images to train on; also to validate on, if there are no
                official validation images.
            test: positions of the images to test on.
            validation: positions of the official validation images; often none.
            clients: N.
            rng: the only source of randomness.

        Returns:
            N sorted arrays of positions to train on, to validate on, and to test on.

        Raises:
            UserError: if there are too few images.
        """
        trained, tested, unused = list[Indices](), list[Indices](), list[list[Indices]]()
        streams, shares = rng.spawn(clients), [train] * clients
        if self.disjoint:
            shares = _disjoint_shares(labels, train, clients, rng)
        for share, stream in zip(shares, streams, strict=True):
            drawn, remaining = self._draw(labels, share, validation, stream)
            trained.append(drawn)
            unused.append(remaining)
            tested.append(proportional(labels, drawn, test, stream))
        is_trained = np.zeros(len(labels), np.bool_)
        is_trained[np.concatenate(trained)] = True
        return trained, [self._validation(labels, some, is_trained) for some in unused], tested

    def _draw(
        self, labels: Indices, share: Indices, validation: Indices, rng: np.random.Generator
    ) -> tuple[Indices, list[Indices]]:
        """Draw one client's training images.

        Return also the rest of each of the client's classes, shuffled, the dominant class first.
        """
        classes = np.unique(labels[share])
        count = len(classes) - round(self.excluded * len(classes))
        kept_classes = np.sort(rng.permutation(classes)[: max(1, count)])
        dominant = rng.choice(kept_classes)
        train: list[Indices] = []
        remaining: list[Indices] = []
        for c in kept_classes:
            validated = self._validated(c == dominant)
            images = _class_pool(labels, share, validation, c, validated, rng)
            pool = min(self.shots, len(images) - validated)
            shots = pool if c == dominant else max(1, round(self.kept_share * pool))
            train.append(images[:shots])
            remaining.insert(0 if c == dominant else len(remaining), images[shots:])
        return np.sort(np.concatenate(train)), remaining

    def _validated(self, is_dominant: bool) -> int:
        """Return the number of images of a class that a client validates on."""
        return max(1, round(1 / self.kept_share)) if is_dominant else 1

    def _validation(
        self, labels: Indices, remaining: Sequence[Indices], trained: NDArray[np.bool_]
    ) -> Indices:
        """Return the last remaining images of each class that are not `trained`, bool [n]."""
        parts = []
        for number, images in enumerate(remaining):
            needed, free = self._validated(number == 0), images[~trained[images]]
            if len(free) < needed:
                raise _too_few(labels[images[0]], needed)
            parts.append(free[len(free) - needed :])
        return np.sort(np.concatenate(parts))


def _disjoint_shares(
    labels: Indices, train: Indices, clients: int, rng: np.random.Generator
) -> list[Indices]:
    """Draw an equal part of every class for every client."""
    by_class = [
        np.array_split(rng.permutation(train[labels[train] == c]), clients)
        for c in np.unique(labels[train])
    ]
    return [np.concatenate(parts) for parts in zip(*by_class, strict=True)]


def _class_pool(
    labels: Indices,
    train: Indices,
    validation: Indices,
    c: int,
    needed: int,
    rng: np.random.Generator,
) -> Indices:
    """Return a client's shuffled images of class c; the last `needed` are for validation."""
    images = rng.permutation(train[labels[train] == c])
    if len(validation):
        official = rng.permutation(validation[labels[validation] == c])
        if len(official) < needed:
            raise _too_few(c, needed)
        images = np.concatenate([images, official[:needed]])
    if len(images) <= needed:
        raise _too_few(c, needed)
    return images


def _too_few(c: int, needed: int) -> UserError:
    return UserError(
        f"data.partition=dominant_class: class {c} has too few images for a client to train on, "
        f"and {needed} that no client trains on to validate; use more images, fewer clients, a "
        "smaller data.partition.shots, or data.partition.disjoint=false"
    )


def proportional(
    labels: Indices, train: Indices, test: Indices, rng: np.random.Generator
) -> Indices:
    """Draw the largest part of `test` with the class proportions p_c of `train`.

    n_c = floor(t p_c) with t = min_c N_c / p_c over the classes that `test` has any image of. All
    are sorted positions of images; `labels` are those of all images of the source, int64 [n].

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
