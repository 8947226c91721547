"""Partitions without skew, and with label skew by whole classes or shards."""

from __future__ import annotations

import logging
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictBool, model_validator

from fedray.base.errors import UserError
from fedray.config import Chosen, Component, Seed, default_entry
from fedray.data.imageset import Domains
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
class Shards(Partition):
    """Label skew: images sorted by label are cut into N*S shards; each client gets S at random.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017, Section 3 (pathological non-IID). Shards have n//(N*S) images, the first n mod
    (N*S) one more, so that no image remains.
    """

    name = "shards"
    paper = "McMahan et al., AISTATS 2017"

    shards_per_client: int = Field(2, ge=1, le=10**6)
    """S: number of shards per client; a shard usually has one or two classes."""

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        labels, params = annotations.labels, self
        n, shards = len(labels), clients * params.shards_per_client
        if shards > n:
            raise UserError(
                f"data.partition: {clients} clients with {params.shards_per_client} shards each "
                f"need {shards} images, found {n}; lower data.clients or "
                "data.partition.shards_per_client"
            )
        order = rng.permutation(n)
        order = order[np.argsort(labels[order], kind="stable")]
        holder = rng.permutation(shards) % clients
        sizes = np.full(shards, n // shards)
        sizes[: n % shards] += 1
        owner = np.empty(n, np.int64)
        owner[order] = np.repeat(holder, sizes)
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
        labels = annotations.labels
        classes, totals = class_totals(labels)
        draw = _even_holders if self.equal_sizes else _holders
        _check_enough(len(totals), clients, self.classes_per_client)
        holds = draw(len(totals), clients, self.classes_per_client, rng)
        _check_totals(np.unique(labels), totals, holds.sum(0))
        counts = np.zeros(holds.shape, np.int64)
        for c, total in enumerate(totals):
            holders = np.flatnonzero(holds[:, c])
            counts[holders, c] = total // len(holders)
            counts[holders[: total % len(holders)], c] += 1
        if self.equal_sizes:
            _equalise(counts)
            used, size = int(counts.sum()), int(counts[0].sum())
            if used < len(labels):
                _log.warning(
                    "data.partition: every client has %d images; %d of %d images are not used",
                    *(size, len(labels) - used, len(labels)),
                )
        return assign_images(classes, counts, rng)


def _check_enough(classes: int, clients: int, per_client: int) -> None:
    """Check that clients can hold k classes each, and all classes together."""
    if per_client > classes:
        raise UserError(
            f"data.partition.classes_per_client={per_client}, but the partitioned images have "
            f"{classes} classes; lower data.partition.classes_per_client"
        )
    if clients * per_client < classes:
        raise UserError(
            f"data.partition: {clients} clients with {per_client} class{'es' * (per_client > 1)} "
            f"each hold at most {clients * per_client} of the {classes} classes, but every image "
            "needs a holder; raise data.clients or data.partition.classes_per_client"
        )


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


def _check_totals(labels: Indices, totals: Indices, holders: Indices) -> None:
    """Check that each class has at least one image per holder."""
    for label, total, sharing in zip(labels, totals, holders, strict=True):
        if total < sharing:
            raise UserError(
                f"data.partition: {sharing} clients share class {label}, which has "
                f"{total} image{'s' * (int(total) > 1)}; lower data.clients or "
                "data.partition.classes_per_client, or use more images"
            )


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
                f"{max(chunk_size, 1)} for {clients} clients; set data.clients to another number, "
                f"for example {max(1, len(classes) // max(chunk_size, 1))}"
            )
        shuffled = np.random.default_rng(self.class_seed).permutation(classes)
        chunk = np.minimum(np.arange(len(classes)) // chunk_size, clients - 1)
        holder = np.empty(int(classes[-1]) + 1, np.int64)
        holder[shuffled] = chunk
        return collect(holder[labels], clients)


@partitions.add
class ClassGroups(Partition):
    """The first clients share the first classes, the next clients the next classes, and so on.

    FedTSP's new classes (supplementary H.2): of 100 classes, 80 for 16 clients and 20 for four
    clients that join later (`join.clients=4 join.round=51`), with a Dirichlet partition inside each
    group. Groups are partitioned one after the other.
    """

    name = "class_groups"
    paper = "Wu et al., FedTSP, CVPR 2026, supplementary H.2"

    classes: tuple[int, ...] = Field((80, 20), min_length=1, max_length=1000)
    """Number of classes of each group, in the order of the labels."""
    clients: tuple[int, ...] = Field((16, 4), min_length=1, max_length=1000)
    """Number of clients of each group, in the order of their ids."""
    within: Annotated[Component, Chosen("partition", "fedtsp_dirichlet")] = default_entry(
        "fedtsp_dirichlet"
    )
    """Partition of a group's images among its clients: name and parameters."""

    @model_validator(mode="after")
    def _check_group_counts(self) -> ClassGroups:
        if len(self.classes) != len(self.clients):
            raise ValueError(
                f"has {len(self.classes)} groups of classes and {len(self.clients)} of clients; "
                "give as many numbers in data.partition.classes as in data.partition.clients"
            )
        if min(*self.classes, *self.clients, 1) < 1:
            raise ValueError("every group needs at least one class and one client")
        return self

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        within = self.within.build()
        if not isinstance(within, Partition):
            raise UserError(
                f"data.partition.within={within.name} does not assign every image to a client; "
                "choose a partition, for example fedtsp_dirichlet"
            )
        self._check_sums(annotations.labels, clients)
        parts: list[Indices] = []
        starts = np.cumsum((0, *self.classes))
        for number, count in enumerate(self.clients):
            first, end = int(starts[number]), int(starts[number + 1])
            members = np.flatnonzero((first <= annotations.labels) & (annotations.labels < end))
            if not len(members):
                raise UserError(
                    f"data.partition: there is no image of the classes {first} to {end - 1} of "
                    f"group {number}; change data.partition.classes or use more images"
                )
            group_parts = within.split(_subset(annotations, members, first), count, rng)
            parts += [members[part] for part in group_parts]
        return parts

    def _check_sums(self, labels: Indices, clients: int) -> None:
        total = sum(self.clients)
        if total != clients:
            raise UserError(
                f"data.partition.clients={list(self.clients)} sums to {total} clients, but "
                f"data.clients={clients}; make them equal"
            )
        classes, last = sum(self.classes), int(labels.max())
        if classes <= last:
            raise UserError(
                f"data.partition.classes={list(self.classes)} sums to {classes} classes, "
                f"but there is a class {last}; make the sum the number of classes"
            )


def _subset(annotations: Annotations, members: Indices, first: int) -> Annotations:
    """Return the annotations of some images; classes are counted from `first`."""
    domains = annotations.domains
    if domains is not None:
        domains = Domains(domains.names, domains.ids[members])
    return Annotations(annotations.labels[members] - first, domains)
