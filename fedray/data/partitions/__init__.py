"""Partitions of images over clients: by classes, by Dirichlet draws, by domains, with few shots.

A partition is a pure function of (annotations, clients, parameters, random stream). It assigns an
image to at most one client; most partitions leave none out. The few-shot protocol `dominant_class`
draws the images that each client trains, validates and tests on; clients may share images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import UserError
from fedray.config import Entry
from fedray.config.registry import Registry
from fedray.data.imageset import Domains

Indices = NDArray[np.int64]


class Annotations(NamedTuple):
    """The labels and domains of n images that are to be partitioned.

    Attributes:
        labels: int64 [n], each image's class.
        domains: the domains of the same images; None if the source has none.
    """

    labels: Indices
    domains: Domains | None = None

    def at(self, positions: Indices) -> Annotations:
        """Return the annotations of some of the images."""
        domains = self.domains
        if domains is not None:
            domains = Domains(domains.names, domains.ids[positions])
        return Annotations(self.labels[positions], domains)


class Partition(Entry, ABC):
    """Assigns images to one client each; a subclass defines `name`, `paper` and `split`.

    Its typed parameters are the keys `data.partition.*`.
    """

    @abstractmethod
    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        """Partition n images over N clients.

        Args:
            annotations: labels and domains of the n images.
            clients: N.
            rng: the only source of randomness.

        Returns:
            N disjoint sorted int64 arrays of positions, 0 to n - 1; most partitions use all.

        Raises:
            UserError: if n images do not suffice for N clients.
        """


partitions: Registry[type[Entry]] = Registry("partition", "fedray.data.partitions")
"""Partitions, and `DominantClass`, which draws the images of each client instead."""


def collect(owner: Indices, clients: int) -> list[Indices]:
    """Turn each image's owner [n], or -1, into N sorted arrays of image indices."""
    order = np.argsort(owner, kind="stable").astype(np.int64, copy=False)
    sizes = np.bincount(owner[owner >= 0], minlength=clients)
    order = order[len(order) - sizes.sum() :]
    return np.split(order, np.cumsum(sizes)[:-1])


def require_samples(n: int, clients: int, per_client: int = 1) -> None:
    """Raise a UserError unless n images give each of N clients at least `per_client`."""
    if clients * per_client > n:
        raise UserError(
            f"data.partition: {clients} clients with {per_client} or more images each need "
            f"{clients * per_client} images, found {n}; lower data.clients"
            + (" or data.partition.min_samples" if per_client > 1 else "")
        )


def assign_images(classes: Indices, counts: Indices, rng: np.random.Generator) -> list[Indices]:
    """Assign random images of the classes [n] to clients, as many as `counts`, int64 [N, C]."""
    clients = len(counts)
    owner = np.full(len(classes), -1)
    for c in range(counts.shape[1]):
        members = rng.permutation(np.flatnonzero(classes == c))[: counts[:, c].sum()]
        owner[members] = np.repeat(np.arange(clients), counts[:, c])
    return collect(owner, clients)


def class_totals(labels: Indices) -> tuple[Indices, Indices]:
    """Return each image's index among the C classes present, int64 [n], and totals, int64 [C]."""
    _, classes, totals = np.unique(labels, return_inverse=True, return_counts=True)
    return classes.astype(np.int64), totals.astype(np.int64)
