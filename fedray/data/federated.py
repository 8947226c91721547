"""A federation's data: one image set, and which of its images each client trains and tests on."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedray.config import validate
from fedray.data.imageset import ImageSet
from fedray.data.partitions import Indices, partitions
from fedray.errors import UserError


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Who owns what; nothing is copied out of the images.

    Attributes:
        images: all images; usually mapped from disk.
        train: N sorted int64 arrays of positions in `images`, what each client learns from.
        test: likewise, what each client keeps for its own test.
    """

    images: ImageSet
    train: tuple[Indices, ...]
    test: tuple[Indices, ...]

    @property
    def clients(self) -> int:
        """N."""
        return len(self.train)

    @property
    def class_names(self) -> tuple[str, ...]:
        """C names; their order is the labels'."""
        return self.images.class_names

    def histogram(self) -> Indices:
        """Images by client and class, training and test together: int64 [N, C]."""
        labels, classes = self.images.labels, len(self.class_names)
        counts = np.zeros((self.clients, classes), np.int64)
        for client, parts in enumerate(zip(self.train, self.test, strict=True)):
            for part in parts:
                counts[client] += np.bincount(labels[part], minlength=classes)
        return counts

    @cached_property
    def sha256(self) -> str:
        """What identifies the partition: every client's indices and labels, in client order."""
        digest = hashlib.sha256()
        for parts in zip(self.train, self.test, strict=True):
            for part in parts:
                digest.update(len(part).to_bytes(8, "little"))
                digest.update(part.astype("<i8").tobytes())
                digest.update(self.images.labels[part].astype("<i8").tobytes())
        return digest.hexdigest()

    def manifest(self) -> dict[str, Any]:
        """The partition as plain data, for `partition.json`."""
        histogram = self.histogram()
        clients = [
            {"client": i, "train": train.tolist(), "test": test.tolist()}
            for i, (train, test) in enumerate(zip(self.train, self.test, strict=True))
        ]
        return {
            "sha256": self.sha256,
            "source": self.images.source,
            "images_sha256": self.images.sha256,
            "images": len(self.images),
            "class_names": list(self.class_names),
            "sizes": histogram.sum(1).tolist(),
            "train_sizes": [len(part) for part in self.train],
            "test_sizes": [len(part) for part in self.test],
            "histogram": histogram.tolist(),
            "clients": clients,
        }


def local_split(
    indices: Indices,
    rng: np.random.Generator,
    *,
    test_fraction: float = 0.25,
    owner: str = "a client",
) -> tuple[Indices, Indices]:
    """Split one client's images at random, not stratified (FedTSP: 75 % and 25 %).

    Sizes are those of scikit-learn's `train_test_split`: the test part is rounded up.

    Args:
        indices: int64 [n].
        rng: random stream.
        test_fraction: share of the test part, between 0 and 1.
        owner: whose images they are, for the message.

    Returns:
        Training and test indices, both sorted.

    Raises:
        UserError: when either part would be empty.
    """
    n = len(indices)
    held = math.ceil(round(n * test_fraction, 6))
    if not 0 < held < n:
        raise UserError(
            f"{owner} has {n} image{'s' * (n != 1)}, of which data.test_fraction={test_fraction:g} "
            f"takes {held} for its test; both parts need one: lower data.clients, raise "
            "data.partition.min_samples or change data.test_fraction"
        )
    order = rng.permutation(indices)
    return np.sort(order[held:]), np.sort(order[:held])


def federate(
    images: ImageSet,
    partition_name: str,
    partition_params: Mapping[str, Any],
    clients: int,
    test_fraction: float,
    samples: int | None,
    rng_for: Callable[[str], np.random.Generator],
) -> FederatedData:
    """Deal images to clients and split each client's into training and test.

    The official training and test images are dealt together (FedTSP supplementary C.4; HtFLlib).

    Args:
        images: what is dealt.
        partition_name: a partition's name.
        partition_params: its knobs, checked here.
        clients: N.
        test_fraction: share of each client's images that it tests on.
        samples: deal only so many images, drawn at random; None deals all.
        rng_for: gives the stream for "subset", "partition" and "split".

    Raises:
        UserError: for an unknown partition or knob, or when the images cannot serve the clients.
    """
    partition = partitions.get(partition_name)
    params = validate(partition.Params, dict(partition_params), "data.partition")
    chosen = np.arange(len(images), dtype=np.int64)
    if samples is not None:
        if samples > len(images):
            raise UserError(
                f"data.samples={samples}, but {images.source} has {len(images)} images; "
                "lower data.samples or leave it out"
            )
        chosen = np.sort(rng_for("subset").permutation(chosen)[:samples])
    owned = partition().split(
        np.asarray(images.labels)[chosen], clients, params, rng_for("partition")
    )
    rng = rng_for("split")
    train, test = zip(
        *(
            local_split(chosen[own], rng, test_fraction=test_fraction, owner=f"client {client}")
            for client, own in enumerate(owned)
        ),
        strict=True,
    )
    return FederatedData(images, train, test)
