"""Images divided at random, without skew."""

from __future__ import annotations

import numpy as np

from fedray.data.partitions import (
    Annotations,
    Indices,
    Partition,
    collect,
    partitions,
    require_samples,
)


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
