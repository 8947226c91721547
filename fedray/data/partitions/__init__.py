"""How images are dealt to clients: one module per partition.

A partition is a pure function of (labels, clients, parameters, random stream). It gives every image
to exactly one client. A few-shot protocol says what clients learn from, validate and test on; it
may leave images out and give one to several clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedray.config import Frozen
from fedray.data.imageset import Domains
from fedray.errors import UserError
from fedray.plugins import Registry

__all__ = [
    "FewShotProtocol",
    "Indices",
    "Partition",
    "Splits",
    "collect",
    "partitions",
    "require_samples",
]

Indices = NDArray[np.int64]
P = TypeVar("P", bound=Frozen)


class Partition(ABC, Generic[P]):
    """One way of dealing; a subclass has a `name`, `Params` and `split`.

    Args:
        domains: of the images that are dealt, where the source knows any.
    """

    def __init__(self, domains: Domains | None = None) -> None:
        self.domains = domains

    name: ClassVar[str]
    """What `data.partition.name` calls it."""
    Params: ClassVar[type[Frozen]]
    """Its knobs, `data.partition.*`."""

    @abstractmethod
    def split(
        self, labels: Indices, clients: int, params: P, rng: np.random.Generator
    ) -> list[Indices]:
        """Deal n images to N clients.

        Args:
            labels: int64 [n], class of each image.
            clients: N.
            params: the knobs.
            rng: the only source of randomness.

        Returns:
            N sorted int64 arrays; together they hold 0..n-1, each once.

        Raises:
            UserError: when n images cannot serve N clients so.
        """


class Splits(NamedTuple):
    """What each of N clients learns from, validates and tests on: sorted int64 arrays."""

    train: list[Indices]
    validation: list[Indices]
    test: list[Indices]


class FewShotProtocol(ABC, Generic[P]):
    """A few-shot way of dealing; a subclass has a `name`, `Params` and `splits`.

    Inside a client the three parts share no image; two clients may have the same.
    """

    name: ClassVar[str]
    """What `data.partition.name` calls it."""
    Params: ClassVar[type[Frozen]]
    """Its knobs, `data.partition.*`."""

    @abstractmethod
    def splits(
        self,
        labels: Indices,
        train: Indices,
        test: Indices,
        validation: Indices,
        clients: int,
        params: P,
        rng: np.random.Generator,
    ) -> Splits:
        """Draw every client's images.

        Args:
            labels: int64 [n], class of each image of the source.
            train: positions of the images that may be learnt from, or validated on where
                `validation` is empty.
            test: positions of those that may be tested on, none of them in `train`.
            validation: positions of the source's own validation images, in neither; often none.
            clients: N.
            params: the knobs.
            rng: the only source of randomness.

        Raises:
            UserError: when there are too few images.
        """


partitions: Registry[Partition[Any] | FewShotProtocol[Any]] = Registry(
    "partition", "fedray.data.partitions"
)


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
