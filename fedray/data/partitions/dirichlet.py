"""Label skew by one Dirichlet draw per class: freely, as FedTSP, or as its official code."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from fedray.base.errors import UserError
from fedray.data.partitions import (
    Annotations,
    Indices,
    Partition,
    assign_images,
    class_totals,
    partitions,
    require_samples,
)

Floats = NDArray[np.float64]


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

    alpha: float = Field(0.5, gt=0, le=1e6)
    """Concentration: large values are near uniform, small ones give each class to few clients."""
    min_samples: int = Field(10, ge=1, le=10**9)
    """Minimum number of images of every client, training and test together."""
    max_draws: int = Field(10_000, ge=1, le=10**6)
    """Maximum number of draws of the whole partition to reach `min_samples`."""

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        return redraw_until(annotations.labels, clients, self, rng, self.name)


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

    alpha: float = Field(0.1, gt=0, le=1e6)
    """Concentration (FedTSP: 0.1): large is near uniform; small gives each client few classes."""
    variant: Literal["exact", "official"] = "exact"
    """exact: "evenly distributed", as in the paper; official: as in the official code."""
    min_samples: int | None = Field(None, ge=1, le=10**9)
    """Minimum number of images of every client. None: with official, 40 or n/N/2 if less."""
    max_draws: int | None = Field(None, ge=1, le=10**6)
    """Maximum number of draws of `official` to reach `min_samples`. None: 10,000."""

    @model_validator(mode="after")
    def _exact_draws_once(self) -> FedTSPDirichlet:
        if self.variant == "exact" and self.max_draws is not None:
            raise ValueError("max_draws has no effect with variant=exact; remove it")
        return self

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        labels, params = annotations.labels, self
        if params.variant == "exact":
            least, key = params.min_samples or 1, "data.partition.min_samples"
            require_samples(len(labels), clients, least, key=key)
            return partition_evenly(labels, clients, params.alpha, rng)
        usual = max(1, int(min(10 / (1 - 0.75), len(labels) / clients / 2)))
        bounds = {
            "min_samples": params.min_samples or usual,
            "max_draws": params.max_draws or 10_000,
        }
        bounded = params.model_copy(update=bounds)
        return redraw_until(labels, clients, bounded, rng, f"{self.name} official")


def redraw_until(
    labels: Indices, clients: int, params: Any, rng: np.random.Generator, name: str
) -> list[Indices]:
    """Draw whole partitions until every client has at least `min_samples` images.

    Only the counts are redrawn. This does not change the distribution, because images of a class
    are exchangeable.

    Args:
        labels: int64 [n].
        clients: N.
        params: alpha, min_samples and max_draws of `dirichlet`; with variant "official", clients
            that hold n/N images get no more and cuts are rounded down, as in HtFLlib.
        rng: random stream.
        name: the partition's name, for the message.

    Raises:
        UserError: if no draw succeeds; states the numbers and the remedies.
    """
    n, least = len(labels), params.min_samples
    require_samples(n, clients, least, key="data.partition.min_samples")
    classes, totals = class_totals(labels)
    is_official, fewest = getattr(params, "variant", "") == "official", clients
    for _ in range(params.max_draws):
        counts = _draw(totals, clients, params.alpha, rng, official=is_official)
        short = int((counts.sum(1) < least).sum())
        if not short:
            return assign_images(classes, counts, rng)
        fewest = min(fewest, short)
    raise UserError(
        f"data.partition: at least {fewest} of {clients} clients got fewer than {least} images in "
        f"each of {params.max_draws} draws ({name}, alpha={params.alpha:g}, n={n}); raise "
        "data.partition.alpha, lower data.clients or lower data.partition.min_samples"
    )


def partition_evenly(
    labels: Indices, clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Partition so that every client gets n//N or n//N + 1 images (see `fedtsp_dirichlet`)."""
    n = len(labels)
    require_samples(n, clients)
    classes, totals = class_totals(labels)
    capacity = np.full(clients, n // clients, np.int64)
    capacity[: n % clients] += 1
    counts = np.zeros((clients, len(totals)), np.int64)
    for c in rng.permutation(len(totals)):
        counts[:, c] = _fill(int(totals[c]), _dirichlet(clients, alpha, rng), capacity, rng)
        capacity -= counts[:, c]
    return assign_images(classes, counts, rng)


def _dirichlet(clients: int, alpha: float, rng: np.random.Generator) -> Floats:
    return rng.dirichlet(np.full(clients, alpha))


def _draw(
    totals: Indices, clients: int, alpha: float, rng: np.random.Generator, *, official: bool
) -> Indices:
    """Draw counts [N, C], one Dirichlet draw per class; `official` skips clients that are full."""
    full = totals.sum() / clients if official else np.inf
    counts = np.zeros((clients, len(totals)), np.int64)
    sizes = np.zeros(clients, np.int64)
    for c, total in enumerate(totals):
        shares = _restricted(sizes < full, _dirichlet(clients, alpha, rng), rng)
        counts[:, c] = _cut(int(total), shares, 0.0 if official else rng.random())
        sizes += counts[:, c]
    return counts


def _restricted(allowed: NDArray[np.bool_], shares: Floats, rng: np.random.Generator) -> Floats:
    """Return the shares with those of clients that are not allowed set to 0, not normalised.

    If all remaining shares are zero in floating point (tiny alpha), one random allowed client gets
    everything, the limit of the Dirichlet distribution at alpha -> 0.
    """
    remaining = np.where(allowed, shares, 0.0)
    if remaining.sum() > 0:
        return remaining
    single = np.zeros_like(shares)
    single[rng.choice(np.flatnonzero(allowed))] = 1.0
    return single


def _cut(total: int, shares: Floats, offset: float) -> Indices:
    """Cut `total` images at the cumulated shares; return counts [N] that sum to `total`.

    Cuts lie at floor(cumulated * total + offset). A uniform offset in [0, 1) rounds without bias.
    With offset 0, as in HtFLlib, the last client gets the rounding remainder of every class, so
    that it holds images of nearly every class.
    """
    cumulated = np.cumsum(shares)
    ends = np.floor(cumulated / cumulated[-1] * total + offset).astype(np.int64)
    counts: Indices = np.diff(np.minimum(ends, total), prepend=0)
    return counts


def _fill(total: int, shares: Floats, capacity: Indices, rng: np.random.Generator) -> Indices:
    """Divide `total` images by shares; images beyond a client's capacity go to the others.

    Each pass places all images or fills a client, so there are at most N passes.
    """
    assigned = np.zeros_like(capacity)
    while total:
        requested = _cut(total, _restricted(assigned < capacity, shares, rng), rng.random())
        added = np.minimum(requested, capacity - assigned)
        assigned += added
        total -= int(added.sum())
    return assigned
