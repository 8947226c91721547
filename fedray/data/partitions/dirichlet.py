"""Label skew by one Dirichlet draw per class; client sizes are random."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from fedray.config import Frozen
from fedray.data.partitions import Annotations, Indices, Partition, partitions
from fedray.data.partitions._per_class import redraw_until


class DirichletParams(Frozen):
    """Parameters of `dirichlet`."""

    alpha: float = Field(0.5, gt=0, le=1e6)
    """Concentration: large values are near uniform, small ones give each class to few clients."""
    min_samples: int = Field(10, ge=1, le=10**9)
    """Minimum number of images of every client, training and test together."""
    max_draws: int = Field(10_000, ge=1, le=10**6)
    """Maximum number of draws of the whole partition to reach `min_samples`."""


@partitions.add
class Dirichlet(Partition):
    """Label skew: each class is divided by shares p ~ Dir(alpha 1_N); sizes vary freely.

    Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural Networks", ICML 2019; Hsu
    et al., "Measuring the Effects of Non-Identical Data Distribution", 2019, per class.
    `fedtsp_dirichlet` with `variant: official` is the same with a soft cap on the sizes, as in
    NIID-Bench and HtFLlib.
    """

    name = "dirichlet"
    paper = "Yurochkin et al., ICML 2019"
    Params = DirichletParams
    params: DirichletParams

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        return redraw_until(
            annotations.labels,
            clients,
            self.params.alpha,
            rng,
            min_samples=self.params.min_samples,
            max_draws=self.params.max_draws,
            official=False,
            name=self.name,
        )
