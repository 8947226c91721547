"""DP2FL's few-shot clients: some classes are missing, one is dominant.

arXiv:2504.16357, Section "Datasets". Per client: at most 16 images of each class are its pool; a
fifth of the classes is dropped; a quarter of the pool of every other class is kept, and one of
these classes, the dominant one, gets the other three quarters too.

Our reading, where the paper is silent: every client draws its pools from the whole training split;
counts are rounded, at least 1; the dominant class is drawn from the kept ones; the validation
images come from the source's own (CoOp's val), or else from training images that no client trains
on, one for a class and more for the dominant one, in proportion; the test is the largest subset of
the official one with the proportions of the training images.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictBool

from fedray.config import Frozen
from fedray.data.partitions import ClientSplits, FewShotProtocol, Indices, Pools, partitions
from fedray.errors import UserError


class DominantClassParams(Frozen):
    """Parameters of `dominant_class`."""

    shots: int = Field(16, ge=1, le=10**6)
    """Images of a class in a client's pool, at most; what the dominant class keeps."""
    excluded: float = Field(0.2, ge=0, lt=1)
    """Share of the classes that a client has no image of."""
    kept_share: float = Field(0.25, gt=0, le=1)
    """Share of its pool that a class keeps which is not dominant; 1: no class is dominant."""
    disjoint: StrictBool = False
    """Whether no training image belongs to two clients."""


@partitions.add
class DominantClass(FewShotProtocol):
    """Few-shot label skew: some classes are missing, one is dominant (DP2FL).

    Client i draws from its own stream. Its training and test images do not depend on how many
    clients there are; its validation images are such that none of the clients trains on them.
    """

    name = "dominant_class"
    paper = "DP2FL, arXiv:2504.16357"
    Params = DominantClassParams
    params: DominantClassParams

    def splits(
        self, labels: Indices, pools: Pools, clients: int, rng: np.random.Generator
    ) -> ClientSplits:
        result = ClientSplits([], [], [])
        unused: list[list[Indices]] = []
        streams = rng.spawn(clients)
        shares = [pools.train] * clients
        if self.params.disjoint:
            shares = _disjoint_shares(labels, pools.train, clients, rng)
        for share, stream in zip(shares, streams, strict=True):
            mine = pools._replace(train=share)
            train, rest = _draw_client(labels, mine, self.params, stream)
            result.train.append(train)
            unused.append(rest)
            result.test.append(proportional(labels, train, pools.test, stream))
        trained = np.zeros(len(labels), np.bool_)
        trained[np.concatenate(result.train)] = True
        for rest in unused:
            result.validation.append(_validation(labels, rest, trained, self.params))
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
    labels: Indices, pools: Pools, params: DominantClassParams, rng: np.random.Generator
) -> tuple[Indices, list[Indices]]:
    """Draw one client's training images.

    Returns:
        The training images, and for each of the client's classes the other images, shuffled: the
        dominant class first.
    """
    classes = np.unique(labels[pools.train])
    count = len(classes) - round(params.excluded * len(classes))
    kept = np.sort(rng.permutation(classes)[: max(1, count)])
    dominant = rng.choice(kept)
    train: list[Indices] = []
    rest: list[Indices] = []
    for c in kept:
        held = _held_out(c == dominant, params)
        images = _class_pool(labels, pools, c, held, params, rng)
        pool = min(params.shots, len(images) - held)
        shots = pool if c == dominant else max(1, round(params.kept_share * pool))
        train.append(images[:shots])
        rest.insert(0 if c == dominant else len(rest), images[shots:])
    return np.sort(np.concatenate(train)), rest


def _held_out(is_dominant: bool, params: DominantClassParams) -> int:
    """Return how many images of a class a client validates on."""
    return max(1, round(1 / params.kept_share)) if is_dominant else 1


def _validation(
    labels: Indices,
    rest: Sequence[Indices],
    trained: NDArray[np.bool_],
    params: DominantClassParams,
) -> Indices:
    """Return a client's validation images: of each class the last that no client trains on.

    Args:
        labels: int64 [n], class of each image of the source.
        rest: as `_draw_client` returns it.
        trained: bool [n], whether a client trains on an image.
        params: the partition's.

    Raises:
        UserError: when the clients train on too many images of a class.
    """
    chosen = []
    for number, images in enumerate(rest):
        held, free = _held_out(number == 0, params), images[~trained[images]]
        if len(free) < held:
            raise UserError(
                f"data.partition=dominant_class leaves {len(free)} image(s) of class "
                f"{labels[images[0]]} that no client trains on, and a client validates on {held}; "
                "use more images, fewer clients or a smaller data.partition.shots"
            )
        chosen.append(free[len(free) - held :])
    return np.sort(np.concatenate(chosen))


def _class_pool(
    labels: Indices,
    pools: Pools,
    c: int,
    held: int,
    params: DominantClassParams,
    rng: np.random.Generator,
) -> Indices:
    """Return a client's shuffled images of class c; the last `held` are for validation.

    Raises:
        UserError: when there are not enough of them.
    """
    images = rng.permutation(pools.train[labels[pools.train] == c])
    if len(pools.validation):
        official = rng.permutation(pools.validation[labels[pools.validation] == c])
        if len(official) < held:
            raise UserError(
                f"data.partition=dominant_class finds {len(official)} of the source's validation "
                f"images of class {c} for a client, which validates on {held} of them; "
                "raise data.partition.kept_share"
            )
        images = np.concatenate([images, official[:held]])
    if len(images) <= held:
        instead = " or set data.partition.disjoint=false" if params.disjoint else ""
        raise UserError(
            f"data.partition=dominant_class finds {len(images)} training images of class {c} "
            f"for a client, which validates on {held} of them and needs more to train on; use "
            f"more images{instead}"
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
        test: positions of the images that may be tested on.
        rng: random stream.

    Returns:
        Sorted positions.

    Raises:
        UserError: when `test` has no image of any class of `train`.
    """
    classes, counts = np.unique(labels[train], return_counts=True)
    available = np.array([(labels[test] == c).sum() for c in classes])
    if not available.any():
        raise UserError(
            f"there is no test image of any of a client's {len(classes)} classes; use more test "
            "images or set data.test=local"
        )
    tested = available > 0
    times = (available[tested] / counts[tested]).min()
    drawn = [
        rng.permutation(test[labels[test] == c])[: int(times * count + 1e-9)]
        for c, count in zip(classes[tested], counts[tested], strict=True)
    ]
    return np.sort(np.concatenate(drawn))
