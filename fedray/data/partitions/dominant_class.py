"""DP2FL's few-shot clients: some classes are missing, one is dominant.

arXiv:2504.16357, Section "Datasets". Per client: at most 16 images of each class are its pool; a
fifth of the classes is dropped; a quarter of the pool of every other class is kept, and one of
these classes, the dominant one, gets the other three quarters too.

Our reading, where the paper is silent: every client draws its pools from the whole training split;
counts are rounded, at least 1; the dominant class is drawn from the kept ones; the validation
images come from the source's own (CoOp's val), or else from training images that the client does
not use, one for a class and more for the dominant one, in proportion; the test is the largest
subset of the official one with the proportions of the training images.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field, StrictBool

from fedray.config import Frozen
from fedray.data.partitions import FewShotProtocol, Indices, Splits, partitions
from fedray.errors import UserError


class DominantClassParams(Frozen):
    """Knobs of `dominant_class`."""

    shots: int = Field(16, ge=1)
    """Images of a class in a client's pool, at most; what the dominant class keeps."""
    excluded: float = Field(0.2, ge=0, lt=1)
    """Share of the classes that a client has no image of."""
    kept_share: float = Field(0.25, gt=0, le=1)
    """Share of its pool that a class keeps which is not dominant; 1: no class is dominant."""
    disjoint: StrictBool = False
    """Whether no training image belongs to two clients."""


@partitions.add
class DominantClass(FewShotProtocol[DominantClassParams]):
    """Client i draws from a stream of its own, which does not depend on how many there are."""

    name = "dominant_class"
    Params = DominantClassParams

    def splits(
        self,
        labels: Indices,
        train: Indices,
        test: Indices,
        validation: Indices,
        clients: int,
        params: DominantClassParams,
        rng: np.random.Generator,
    ) -> Splits:
        """Draw client by client; see `FewShotProtocol.splits`."""
        learnt, validated, tested = [], [], []
        shares = [train] * clients
        streams = rng.spawn(clients)
        if params.disjoint:
            shares = _deal_evenly(labels, train, clients, rng)
        for share, stream in zip(shares, streams, strict=True):
            own, held = _draw(labels, share, validation, params, stream)
            learnt.append(own)
            validated.append(held)
            tested.append(proportional(labels, own, test, stream))
        return Splits(learnt, validated, tested)


def _deal_evenly(
    labels: Indices, train: Indices, clients: int, rng: np.random.Generator
) -> list[Indices]:
    """An equal part of every class for every client, drawn at random."""
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for c in np.unique(labels[train]):
        cut = np.array_split(rng.permutation(train[labels[train] == c]), clients)
        for own, part in zip(parts, cut, strict=True):
            own.append(part)
    return [np.concatenate(own) for own in parts]


def _draw(
    labels: Indices,
    share: Indices,
    official: Indices,
    params: DominantClassParams,
    rng: np.random.Generator,
) -> tuple[Indices, Indices]:
    """One client's training and validation images."""
    classes = np.unique(labels[share])
    count = len(classes) - round(params.excluded * len(classes))
    kept = np.sort(rng.permutation(classes)[: max(1, count)])
    dominant = rng.choice(kept)
    most = max(1, round(1 / params.kept_share))
    own: list[Indices] = []
    held: list[Indices] = []
    for c in kept:
        images = rng.permutation(share[labels[share] == c])
        validation = most if c == dominant else 1
        if len(official):
            apart = rng.permutation(official[labels[official] == c])
            if len(apart) < validation:
                raise UserError(
                    f"data.partition=dominant_class finds {len(apart)} of the source's validation "
                    f"images of class {c} for a client, which validates on {validation} of them; "
                    "raise data.partition.kept_share"
                )
            images = np.concatenate([images, apart[:validation]])
        if len(images) <= validation:
            instead = " or set data.partition.disjoint=false" if params.disjoint else ""
            raise UserError(
                f"data.partition=dominant_class finds {len(images)} training images of class {c} "
                f"for a client, which validates on {validation} of them and needs more to learn "
                f"from; use more images{instead}"
            )
        pool = min(params.shots, len(images) - validation)
        shots = pool if c == dominant else max(1, round(params.kept_share * pool))
        own.append(images[:shots])
        held.append(images[len(images) - validation :])
    return np.sort(np.concatenate(own)), np.sort(np.concatenate(held))


def proportional(labels: Indices, own: Indices, test: Indices, rng: np.random.Generator) -> Indices:
    """The largest random part of `test` with the class proportions p_c of `own`.

    n_c = floor(t p_c) with t = min_c N_c / p_c over the classes that `test` has any image of.

    Args:
        labels: int64 [n], class of each image of the source.
        own: positions of a client's training images.
        test: positions of the images that may be tested on.
        rng: random stream.

    Returns:
        Sorted positions.

    Raises:
        UserError: when `test` has no image of any class of `own`.
    """
    classes, counts = np.unique(labels[own], return_counts=True)
    there = np.array([(labels[test] == c).sum() for c in classes])
    if not there.any():
        raise UserError(
            f"there is no test image of any of a client's {len(classes)} classes; use more test "
            "images or set data.test=local"
        )
    seen = there > 0
    times = (there[seen] / counts[seen]).min()
    drawn = [
        rng.permutation(test[labels[test] == c])[: int(times * count + 1e-9)]
        for c, count in zip(classes[seen], counts[seen], strict=True)
    ]
    return np.sort(np.concatenate(drawn))
