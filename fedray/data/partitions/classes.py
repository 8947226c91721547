"""Partitions without skew, and with label skew by whole classes."""

from __future__ import annotations

import logging
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictBool

from fedray.base.errors import UserError
from fedray.config import Chosen, Component, Seed, default_entry
from fedray.data.partitions import (
    Annotations,
    Indices,
    Partition,
    assign_images,
    class_totals,
    collect,
    partitions,
    require_samples,
)

_log = logging.getLogger(__name__)


@partitions.add
class Iid(Partition):
    """No skew: every client gets n//N or n//N + 1 images drawn uniformly.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017, Section 3 (IID).
    """

    name = "iid"
    paper = "McMahan et al., AISTATS 2017"

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        n = len(annotations.labels)
        require_samples(n, clients)
        owner = np.empty(n, np.int64)
        owner[rng.permutation(n)] = np.arange(n) % clients
        return collect(owner, clients)


@partitions.add
class ClassesPerClient(Partition):
    """Label skew: every client holds k classes; each class is divided equally among its holders.

    Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022, Section IV-A, `#C=k`, as in
    their code: client i holds class i mod C and k - 1 others at random. The holders of a class
    get equal shares; the first ones get one image more if the class does not divide evenly.
    Clients' sizes therefore depend on how many clients share their classes.

    The code may leave a class without a holder (N < C), and lose its images. Here such classes are
    first assigned at random to clients that hold fewer than k; this needs N k >= C.

    With `equal_sizes`, clients with more images leave some of their largest classes unused.
    """

    name = "classes"
    paper = "Li et al., ICDE 2022"

    classes_per_client: int = Field(2, ge=1, le=10**6)
    """k: the number of classes that every client holds."""
    equal_sizes: StrictBool = False
    """Whether all clients hold equally many images, and all classes are drawn at random, with as
    equal numbers of holders as possible. FedGLCL, appendix C.1: true."""

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        classes, totals = class_totals(annotations.labels)
        k, every = self.classes_per_client, len(totals)
        if not k <= every <= clients * k:
            raise UserError(
                f"data.partition.classes_per_client={k}: {clients} clients cannot hold {k} of "
                f"{every} classes each and all classes together; change it or data.clients"
            )
        draw = _even_holders if self.equal_sizes else _holders
        holds = draw(every, clients, k, rng)
        holders = holds.sum(0)
        if (totals < holders).any():
            raise UserError(
                f"data.partition.classes_per_client={k}: more clients share a class than it has "
                "images; lower it or data.clients, or use more images"
            )
        is_first = holds.cumsum(0) <= totals % holders
        counts: Indices = holds * (totals // holders + is_first)
        if self.equal_sizes:
            _equalise(counts)
            if unused := len(classes) - counts.sum():
                _log.warning("data.partition: %d of %d images are not used", unused, len(classes))
        return assign_images(classes, counts, rng)


def _even_holders(
    classes: int, clients: int, per_client: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw each client's classes: bool [N, C], with k per row; columns differ by at most one."""
    left = np.full(classes, clients * per_client // classes)
    left[rng.permutation(classes)[: clients * per_client % classes]] += 1
    holds = np.zeros((clients, classes), np.bool_)
    for row in rng.permutation(clients):  # the classes with most places left, so that none remains
        drawn = np.lexsort((rng.random(classes), -left))[:per_client]
        holds[row, drawn] = True
        left[drawn] -= 1
    return holds


def _equalise(counts: Indices) -> None:
    """Reduce the largest entries of rows, in place, until all rows have the smallest sum."""
    sizes = counts.sum(1)
    for row, excess in zip(counts, sizes - sizes.min(), strict=True):
        for _ in range(excess):
            row[row.argmax()] -= 1


def _holders(
    classes: int, clients: int, per_client: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw each client's classes: bool [N, C], with k per row and at least one per column."""
    holds = np.zeros((clients, classes), np.bool_)
    everyone = np.arange(clients)
    holds[everyone, everyone % classes] = True
    orphans = np.arange(clients, classes)
    slots = rng.permutation(np.repeat(everyone, per_client - 1))
    holds[slots[: len(orphans)], orphans] = True
    for row in holds:
        missing = per_client - row.sum()
        row[rng.choice(np.flatnonzero(~row), missing, replace=False)] = True
    return holds


@partitions.add
class ClassChunks(Partition):
    """Label skew: shuffled classes are cut into chunks of round(m/N); the last client has the rest.

    FedMGP's base-to-novel protocol for m classes and N clients. Rounding is Python's, as in the
    official code: of 25 classes, nine of 10 clients get 2 each and the last one gets 7.
    """

    name = "class_chunks"
    paper = "Bo et al., FedMGP, NeurIPS 2025"

    class_seed: Seed = 2023
    """Seed of the shuffled class order; independent of the experiment's seed, as in the official
    code (with another generator), so that all seeds share one assignment."""

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        labels = annotations.labels
        classes = np.unique(labels)
        chunk_size = round(len(classes) / clients)
        if chunk_size < 1 or chunk_size * (clients - 1) >= len(classes):
            raise UserError(
                f"data.partition=class_chunks: {len(classes)} classes cannot be cut into chunks of "
                f"{max(chunk_size, 1)} for {clients} clients; change data.clients"
            )
        holder = np.empty(int(classes[-1]) + 1, np.int64)
        shuffled = np.random.default_rng(self.class_seed).permutation(classes)
        holder[shuffled] = np.minimum(np.arange(len(classes)) // chunk_size, clients - 1)
        return collect(holder[labels], clients)


_Counts = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1, max_length=1000)]


@partitions.add
class ClassGroups(Partition):
    """The first clients share the first classes, the next clients the next classes, and so on.

    FedTSP's new classes (supplementary H.2): of 100 classes, 80 for 16 clients and 20 for four
    clients that join later (`join.clients=4 join.round=51`), with a Dirichlet partition inside each
    group. Groups are partitioned one after the other.
    """

    name = "class_groups"
    paper = "Wu et al., FedTSP, CVPR 2026, supplementary H.2"

    classes: _Counts = (80, 20)
    """Number of classes of each group, in the order of the labels."""
    clients: _Counts = (16, 4)
    """Number of clients of each group, in the order of their ids."""
    within: Annotated[Component, Chosen("partition", "fedtsp_dirichlet")] = default_entry(
        "fedtsp_dirichlet"
    )
    """Partition of a group's images among its clients: name and parameters."""

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        within, most = self.within.build(), int(annotations.labels.max()) + 1
        if not isinstance(within, Partition):
            raise UserError(
                f"data.partition.within={within.name} does not assign every image to a client; "
                "choose a partition, for example fedtsp_dirichlet"
            )
        is_paired = len(self.classes) == len(self.clients)
        if not is_paired or sum(self.clients) != clients or sum(self.classes) < most:
            raise UserError(
                f"data.partition: the groups classes={list(self.classes)} and "
                f"clients={list(self.clients)} must be as many, with {clients} clients "
                f"(data.clients) and at least {most} classes together"
            )
        parts: list[Indices] = []
        first = 0
        for classes, members in zip(self.classes, self.clients, strict=True):
            labels = annotations.labels - first
            group = np.flatnonzero((labels >= 0) & (labels < classes))
            require_samples(len(group), members)
            inside = within.split(Annotations(labels, annotations.domains).at(group), members, rng)
            parts += [group[part] for part in inside]
            first += classes
        return parts
