"""Label skew by shards: images are sorted by label, cut into shards, and assigned at random."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from fedray.base.errors import UserError
from fedray.config import Frozen
from fedray.data.partitions import Annotations, Indices, Partition, collect, partitions


class ShardsParams(Frozen):
    """Parameters of `shards`."""

    shards_per_client: int = Field(2, ge=1, le=10**6)
    """S: number of shards per client; a shard usually has one or two classes."""


@partitions.add
class Shards(Partition):
    """Label skew: images sorted by label are cut into N*S shards; each client gets S at random.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
    AISTATS 2017, Section 3 (pathological non-IID). Shards have n//(N*S) images, the first n mod
    (N*S) one more, so that no image remains.
    """

    name = "shards"
    paper = "McMahan et al., AISTATS 2017"
    Params = ShardsParams
    params: ShardsParams

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        labels, params = annotations.labels, self.params
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
