"""FedTSP's Dirichlet partition, as the paper states it and as the official code draws it."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from fedray.config import Frozen
from fedray.data.partitions import Annotations, Indices, Partition, partitions, require_samples
from fedray.data.partitions._per_class import partition_evenly, redraw_until


class FedTSPDirichletParams(Frozen):
    """Parameters of `fedtsp_dirichlet`."""

    alpha: float = Field(0.1, gt=0, le=1e6)
    """Concentration (FedTSP: 0.1): large values are near uniform, small ones give few classes."""
    variant: Literal["exact", "official"] = "exact"
    """exact: "evenly distributed", as in the paper; official: as in the official code."""
    min_samples: int | None = Field(None, ge=1, le=10**9)
    """Minimum number of images of every client. None: with official, 40 or n/N/2 if less."""
    max_draws: int | None = Field(None, ge=1, le=10**6)
    """Maximum number of draws of `official` to reach `min_samples`. None: 10,000."""

    @model_validator(mode="after")
    def _exact_draws_once(self) -> FedTSPDirichletParams:
        if self.variant == "exact" and self.max_draws is not None:
            raise ValueError("max_draws has no effect with variant=exact; remove it")
        return self


@partitions.add
class FedTSPDirichlet(Partition):
    """Label skew: each class is divided by shares p ~ Dir(alpha 1_N); sizes are about equal.

    Both variants draw p ~ Dir(alpha 1_N) for each class and cut its shuffled images at the
    cumulated shares. They differ in what bounds a client's size:

    - `official` (HtFLlib dataset_utils, used by FedTSP's code): a client that already holds n/N
      images gets no share of the next class, but may overshoot by one class's share. All is
      redrawn until every client has `min_samples` images, by default int(min(10 / (1 - 0.75),
      n/N/2)). Sizes are not equal. Cuts are rounded down, so that the last client gets the rest
      of every class. With `min_samples: 10` it is NIID-Bench's routine.
    - `exact`: the same with a hard cap. Clients have n//N images, the first n mod N one more;
      images beyond a client's capacity go to the others in proportion to their shares. The class
      order is random, so that no class always comes last, when little capacity remains. Nothing
      is redrawn, so it never fails if n >= N.
    """

    name = "fedtsp_dirichlet"
    paper = "Wu et al., FedTSP, CVPR 2026"
    Params = FedTSPDirichletParams
    params: FedTSPDirichletParams

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        labels, params = annotations.labels, self.params
        if params.variant == "exact":
            require_samples(
                len(labels), clients, params.min_samples or 1, key="data.partition.min_samples"
            )
            return partition_evenly(labels, clients, params.alpha, rng)
        least = params.min_samples
        if least is None:
            least = max(1, int(min(10 / (1 - 0.75), len(labels) / clients / 2)))
        return redraw_until(
            labels,
            clients,
            params.alpha,
            rng,
            min_samples=least,
            max_draws=params.max_draws or 10_000,
            official=True,
            name=f"{self.name} official",
        )
