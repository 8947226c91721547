"""Label skew by the number of classes: every client holds k classes (NIID-Bench's `#C=k`)."""

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
    """Label skew: every client holds k classes; each class is divided equally among its holders.

    Li et al., "Federated Learning on Non-IID Data Silos", ICDE 2022, Section IV-A, `#C=k`, as in
    their code: client i holds class i mod C and k - 1 others at random. The holders of a class
    get equal shares; the first ones get one image more if the class does not divide evenly.
    Clients' sizes therefore depend on how many clients share their classes.

    The code may leave a class without a holder (N < C), and lose its images. Here such classes are
    first assigned at random to clients that hold fewer than k; this needs N k >= C.
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


def _holders(
    classes: int, clients: int, per_client: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Draw each client's classes: bool [N, C], with k per row and at least one per column."""
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
