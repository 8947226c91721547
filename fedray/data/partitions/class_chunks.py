"""Label skew without overlap: every class belongs to one client."""

from __future__ import annotations

import numpy as np

from fedray.base.errors import UserError
from fedray.config import Frozen, Seed
from fedray.data.partitions import Annotations, Indices, Partition, collect, partitions


class ClassChunksParams(Frozen):
    """Parameters of `class_chunks`."""

    class_seed: Seed = 2023
    """Seed of the shuffled class order; independent of the experiment's seed, as in the official
    code (with another generator), so that all seeds share one assignment."""


@partitions.add
class ClassChunks(Partition):
    """Label skew: shuffled classes are cut into chunks of round(m/N); the last client has the rest.

    FedMGP's base-to-novel protocol for m classes and N clients. Rounding is Python's, as in the
    official code: of 25 classes, nine of 10 clients get 2 each and the last one gets 7.
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
        chunk_size = round(len(classes) / clients)
        if chunk_size < 1 or chunk_size * (clients - 1) >= len(classes):
            raise UserError(
                f"data.partition=class_chunks: {len(classes)} classes cannot be cut into chunks of "
                f"{max(chunk_size, 1)} for {clients} clients; set data.clients to another number, "
                f"for example {max(1, len(classes) // max(chunk_size, 1))}"
            )
        shuffled = np.random.default_rng(self.params.class_seed).permutation(classes)
        chunk = np.minimum(np.arange(len(classes)) // chunk_size, clients - 1)
        holder = np.empty(int(classes[-1]) + 1, np.int64)
        holder[shuffled] = chunk
        return collect(holder[labels], clients)
