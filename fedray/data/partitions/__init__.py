"""Partitions of images over clients: one module each.

A partition is a pure function of (annotations, clients, parameters, random stream). It gives every
image to exactly one client. A few-shot protocol defines what clients train, validate and test on;
it may leave images out and give one to several clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedray.config import Component
from fedray.data.configurable import Configurable, build
from fedray.data.imageset import Domains
from fedray.errors import UserError
from fedray.registry import Registry

Indices = NDArray[np.int64]


class Annotations(NamedTuple):
    """What is known of n images that are to be partitioned.

    Attributes:
        labels: int64 [n], each image's class.
        domains: of the same images, where the source knows any.
    """

    labels: Indices
    domains: Domains | None = None


class Partition(Configurable, ABC):
    """Gives every image to one client; a subclass has a `name`, a `paper` and `split`.

    Made from its typed parameters (`Params`), which are `data.partition.*`.
    """

    paper: ClassVar[str]
    """Where it is from, in a few words; "-" for what has no source."""

    @abstractmethod
    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        """Partition n images over N clients.

        Args:
            annotations: of the n images.
            clients: N.
            rng: the only source of randomness.

        Returns:
            N sorted int64 arrays, a partition of 0..n-1.

        Raises:
            UserError: when n images cannot serve N clients so.
        """


class Pools(NamedTuple):
    """The images that a few-shot protocol draws from: disjoint positions in the source.

    Attributes:
        train: images to train on, or to validate on where `validation` is empty.
        test: images to test on.
        validation: the source's own validation images; often none.
    """

    train: Indices
    test: Indices
    validation: Indices


class ClientSplits(NamedTuple):
    """What each of N clients trains, validates and tests on: sorted int64 arrays."""

    train: list[Indices]
    validation: list[Indices]
    test: list[Indices]


class FewShotProtocol(Configurable, ABC):
    """Draws few images for each client; a subclass has a `name`, a `paper` and `splits`.

    Made from its typed parameters (`Params`), which are `data.partition.*`. Inside a client the
    three splits share no image; two clients may have the same.
    """

    paper: ClassVar[str]
    """Where it is from, in a few words."""

    @abstractmethod
    def splits(
        self, labels: Indices, pools: Pools, clients: int, rng: np.random.Generator
    ) -> ClientSplits:
        """Draw every client's images.

        Args:
            labels: int64 [n], class of each image of the source.
            pools: positions of the images that may be drawn.
            clients: N.
            rng: the only source of randomness.

        Raises:
            UserError: when there are too few images.
        """


AnyPartition: TypeAlias = Partition | FewShotProtocol
"""What `data.partition` may name."""

partitions: Registry[type[AnyPartition]] = Registry("partition", "fedray.data.partitions")


def build_partition(component: Component) -> AnyPartition:
    """Make the partition or few-shot protocol that `data.partition` names.

    Raises:
        UserError: when there is none of this name, or a parameter is unknown or out of bounds.
    """
    partition: AnyPartition = build(component, "partition", "data.partition")
    return partition


def collect(owner: Indices, clients: int) -> list[Indices]:
    """Turn each image's owner [n] into N sorted arrays of image indices."""
    order = np.argsort(owner, kind="stable").astype(np.int64, copy=False)
    sizes = np.bincount(owner, minlength=clients)
    return np.split(order, np.cumsum(sizes)[:-1])


def require_samples(n: int, clients: int, each: int = 1, *, key: str | None = None) -> None:
    """Check that n images can give `each` images to every one of N clients.

    Args:
        n: images.
        clients: N.
        each: images that every client needs.
        key: the key that asks for `each`, if one does.

    Raises:
        UserError: with the numbers and the keys to change.
    """
    if clients * each <= n:
        return
    most = n // each
    lower = f"lower data.clients to {most}" if most else "use more images"
    raise UserError(
        f"data.partition: {clients} clients with at least {each} image{'s' * (each > 1)} each need "
        f"{clients * each} images, found {n}; {lower}" + (f" or lower {key}" if key else "")
    )
