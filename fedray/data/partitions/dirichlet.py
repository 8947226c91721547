"""Label skew by one Dirichlet draw per class, sizes left to chance."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from fedray.config import Frozen
from fedray.data.partitions import Indices, Partition, partitions
from fedray.data.partitions._per_class import redraw_until


class DirichletParams(Frozen):
    """Knobs of `dirichlet`."""

    alpha: float = Field(0.5, gt=0, le=1e6)
    """Concentration: large is near uniform, small gives each class to few clients."""
    min_samples: int = Field(10, ge=1)
    """Least images of every client, training and test together."""
    max_draws: int = Field(10_000, ge=1)
    """How often the whole partition is redrawn to reach `min_samples`."""


@partitions.add
class Dirichlet(Partition[DirichletParams]):
    """For each class k, p ~ Dir(alpha 1_N) says which share of its images each client gets.

    Sizes vary freely (Hsu et al. 2019 per class; Yurochkin et al. 2019). With a soft cap on the
    sizes, as in NIID-Bench and HtFLlib, it is `fedtsp_dirichlet` with `variant: official`.
    """

    name = "dirichlet"
    Params = DirichletParams

    def split(
        self, labels: Indices, clients: int, params: DirichletParams, rng: np.random.Generator
    ) -> list[Indices]:
        """Draw until everyone has `min_samples`; see `Partition.split`."""
        return redraw_until(
            labels,
            clients,
            params.alpha,
            rng,
            min_samples=params.min_samples,
            max_draws=params.max_draws,
            official=False,
            name=self.name,
        )
