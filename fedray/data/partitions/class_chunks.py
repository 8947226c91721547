"""Label skew without overlap: every class belongs to one client."""

from __future__ import annotations

import numpy as np

from fedray.config import Frozen, Seed
from fedray.data.partitions import Annotations, Indices, Partition, collect, partitions
from fedray.errors import UserError


class ClassChunksParams(Frozen):
    """Parameters of `class_chunks`."""

    class_seed: Seed = 2023
    """What the classes are shuffled with; independent of the experiment's seed, as in the official
    code (with another generator), so that all seeds share one assignment."""


@partitions.add
class ClassChunks(Partition):
    """Label skew: shuffled classes are cut into chunks of round(m/N); the last client has the rest.

    FedMGP's base-to-novel protocol. Python's rounding, as in the official code: 25 classes give 10
    clients 2 each, the last 7.
    """

    name = "class_chunks"
    paper = "Bo et al., FedMGP, NeurIPS 2025"
    Params = ClassChunksParams
    params: ClassChunksParams

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        labels = annotations.labels
        classes = np.unique(labels)
        each = round(len(classes) / clients)
        if each < 1 or each * (clients - 1) >= len(classes):
            raise UserError(
                f"data.partition=class_chunks: {len(classes)} classes cannot be cut into chunks of "
                f"{max(each, 1)} for {clients} clients; set data.clients to another number, for "
                f"example {max(1, len(classes) // max(each, 1))}"
            )
        shuffled = np.random.default_rng(self.params.class_seed).permutation(classes)
        chunk = np.minimum(np.arange(len(classes)) // each, clients - 1)
        holder = np.empty(int(classes[-1]) + 1, np.int64)
        holder[shuffled] = chunk
        return collect(holder[labels], clients)
