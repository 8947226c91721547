"""Label skew by the number of classes: every client holds k classes (NIID-Bench's `#C=k`)."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictBool

from fedray.base.errors import UserError
from fedray.config import Frozen
from fedray.data.partitions import Annotations, Indices, Partition, partitions
from fedray.data.partitions._per_class import assign_images, class_totals

_log = logging.getLogger(__name__)


class ClassesParams(Frozen):
    """Parameters of `classes`."""

    classes_per_client: int = Field(2, ge=1, le=10**6)
    """k: the number of classes that every client holds."""
    equal_sizes: StrictBool = False
    """Whether all clients hold equally many images, and all classes are drawn at random, with as
    equal numbers of holders as possible. FedGLCL, appendix C.1: true."""


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
    Params = ClassesParams
    params: ClassesParams

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        labels = annotations.labels
        classes, totals = class_totals(labels)
        draw = _even_holders if self.params.equal_sizes else _holders
        _check_enough(len(totals), clients, self.params.classes_per_client)
        holds = draw(len(totals), clients, self.params.classes_per_client, rng)
        _check_totals(np.unique(labels), totals, holds.sum(0))
        counts = np.zeros(holds.shape, np.int64)
        for c, total in enumerate(totals):
            holders = np.flatnonzero(holds[:, c])
            counts[holders, c] = total // len(holders)
            counts[holders[: total % len(holders)], c] += 1
        if self.params.equal_sizes:
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
