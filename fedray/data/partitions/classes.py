"""Label skew by the number of classes: every client holds k of them (NIID-Bench's `#C=k`)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedray.config import Frozen
from fedray.data.partitions import Annotations, Indices, Partition, partitions
from fedray.data.partitions._per_class import assign_images, class_totals
from fedray.errors import UserError


class ClassesParams(Frozen):
    """Parameters of `classes`."""

    classes_per_client: int = Field(2, ge=1, le=10**6)
    """k: the number of classes that every client holds."""


@partitions.add
class ClassesPerClient(Partition):
    """Label skew: every client holds k classes, each divided equally among its holders.

    Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022, Section IV-A, `#C=k`, as its
    code draws it: client i holds class i mod C and k - 1 others at random. The holders of a class
    get equal shares, the first ones an image more where it does not divide, so clients' sizes
    differ by how many share their classes.

    Where the code would leave a class without a holder (N < C) and lose its images, the classes
    left over are first assigned at random to clients that hold fewer than k; so N k >= C is needed.
    """

    name = "classes"
    paper = "Li et al., ICDE 2022"
    Params = ClassesParams
    params: ClassesParams

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        labels = annotations.labels
        classes, totals = class_totals(labels)
        holds = _holders(len(totals), clients, self.params.classes_per_client, rng)
        _check_totals(np.unique(labels), totals, holds.sum(0))
        counts = np.zeros(holds.shape, np.int64)
        for c, total in enumerate(totals):
            holders = np.flatnonzero(holds[:, c])
            counts[holders, c] = total // len(holders)
            counts[holders[: total % len(holders)], c] += 1
        return assign_images(classes, counts, rng)


def _holders(classes: int, clients: int, each: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Draw the classes of each client: bool [N, C] with k a row and at least one a column."""
    if each > classes:
        raise UserError(
            f"data.partition.classes_per_client={each}, but the images that are partitioned have "
            f"{classes} classes; lower data.partition.classes_per_client"
        )
    if clients * each < classes:
        raise UserError(
            f"data.partition: {clients} clients with {each} class{'es' * (each > 1)} each hold at "
            f"most {clients * each} of the {classes} classes, and every image needs a holder; "
            "raise data.clients or data.partition.classes_per_client"
        )
    holds = np.zeros((clients, classes), np.bool_)
    everyone = np.arange(clients)
    holds[everyone, everyone % classes] = True
    orphans = np.arange(clients, classes)
    slots = rng.permutation(np.repeat(everyone, each - 1))
    holds[slots[: len(orphans)], orphans] = True
    for held in holds:
        missing = each - held.sum()
        held[rng.choice(np.flatnonzero(~held), missing, replace=False)] = True
    return holds


def _check_totals(labels: Indices, totals: Indices, holders: Indices) -> None:
    """Check that every holder of a class gets an image of it."""
    for label, total, sharing in zip(labels, totals, holders, strict=True):
        if total < sharing:
            raise UserError(
                f"data.partition: {sharing} clients share class {label}, which has "
                f"{total} image{'s' * (int(total) > 1)}; lower data.clients or "
                "data.partition.classes_per_client, or use more images"
            )
