"""Images dealt at random, without skew."""

from __future__ import annotations

import numpy as np

from fedray.config import Frozen
from fedray.data.partitions import Indices, Partition, collect, partitions, require_samples


class IidParams(Frozen):
    """There is nothing to choose."""


@partitions.add
class Iid(Partition[IidParams]):
    """Every client gets n//N or n//N + 1 images drawn uniformly."""

    name = "iid"
    Params = IidParams

    def split(
        self, labels: Indices, clients: int, params: IidParams, rng: np.random.Generator
    ) -> list[Indices]:
        """Deal a shuffled pack one by one; see `Partition.split`."""
        del params
        n = len(labels)
        require_samples(n, clients)
        owner = np.empty(n, np.int64)
        owner[rng.permutation(n)] = np.arange(n) % clients
        return collect(owner, clients)
