"""Groups of classes, each partitioned among a separate group of clients."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from fedray.base.errors import UserError
from fedray.config import Chosen, Component, Frozen, default_entry
from fedray.data.imageset import Domains
from fedray.data.partitions import (
    Annotations,
    Indices,
    Partition,
    partitions,
)


class ClassGroupsParams(Frozen):
    """Parameters of `class_groups`."""

    classes: tuple[int, ...] = Field((80, 20), min_length=1, max_length=1000)
    """Number of classes of each group, in the order of the labels."""
    clients: tuple[int, ...] = Field((16, 4), min_length=1, max_length=1000)
    """Number of clients of each group, in the order of their ids."""
    within: Annotated[Component, Chosen("partition", "fedtsp_dirichlet")] = default_entry(
        "fedtsp_dirichlet"
    )
    """Partition of a group's images among its clients: name and parameters."""

    @model_validator(mode="after")
    def _check_group_counts(self) -> ClassGroupsParams:
        if len(self.classes) != len(self.clients):
            raise ValueError(
                f"has {len(self.classes)} groups of classes and {len(self.clients)} of clients; "
                "give as many numbers in data.partition.classes as in data.partition.clients"
            )
        if min(*self.classes, *self.clients, 1) < 1:
            raise ValueError("every group needs at least one class and one client")
        return self


@partitions.add
class ClassGroups(Partition):
    """The first clients share the first classes, the next clients the next classes, and so on.

    FedTSP's new classes (supplementary H.2): of 100 classes, 80 for 16 clients and 20 for four
    clients that join later (`join.clients=4 join.round=51`), with a Dirichlet partition inside each
    group. Groups are partitioned one after the other.
    """

    name = "class_groups"
    paper = "Wu et al., FedTSP, CVPR 2026, supplementary H.2"
    Params = ClassGroupsParams
    params: ClassGroupsParams

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        within = self.params.within.build()
        if not isinstance(within, Partition):
            raise UserError(
                f"data.partition.within={within.name} does not assign every image to a client; "
                "choose a partition, for example fedtsp_dirichlet"
            )
        self._check_sums(annotations.labels, clients)
        parts: list[Indices] = []
        starts = np.cumsum((0, *self.params.classes))
        for number, count in enumerate(self.params.clients):
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
        total = sum(self.params.clients)
        if total != clients:
            raise UserError(
                f"data.partition.clients={list(self.params.clients)} sums to {total} clients, but "
                f"data.clients={clients}; make them equal"
            )
        classes, last = sum(self.params.classes), int(labels.max())
        if classes <= last:
            raise UserError(
                f"data.partition.classes={list(self.params.classes)} sums to {classes} classes, "
                f"but there is a class {last}; make the sum the number of classes"
            )


def _subset(annotations: Annotations, members: Indices, first: int) -> Annotations:
    """Return the annotations of some images; classes are counted from `first`."""
    domains = annotations.domains
    if domains is not None:
        domains = Domains(domains.names, domains.ids[members])
    return Annotations(annotations.labels[members] - first, domains)
