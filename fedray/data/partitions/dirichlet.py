"""Label skew by one Dirichlet draw per class, of all images or inside each domain."""

from __future__ import annotations

import logging
from typing import Literal

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

_log = logging.getLogger(__name__)


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
        return redraw_until(
            annotations.labels, clients, self.alpha, self.min_samples, self.max_draws, rng
        )


@partitions.add
class DomainClients(Dirichlet):
    """Feature skew: client i holds images of domain i // (N/D); with N = D, all of them.

    Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR
    2021 (N = D); also FedGLCL. With several clients per domain, each class of the domain is divided
    among them by Dir(alpha), with the parameters of `dirichlet`.
    """

    name = "domains"
    paper = "Li et al., FedBN, ICLR 2021"

    def split(
        self, annotations: Annotations, clients: int, rng: np.random.Generator
    ) -> list[Indices]:
        if annotations.domains is None:
            raise UserError(
                "data.partition=domains, but the source has no domains; use data with a folder per "
                "domain or a column `domain`, or choose another partition"
            )
        ids = annotations.domains.ids
        present = np.unique(ids)
        if not clients or clients % len(present):
            raise UserError(
                f"data.clients={clients} cannot be divided evenly among {len(present)} domains; "
                f"set data.clients to a multiple of {len(present)}"
            )
        if clients == len(present) and self.model_fields_set:
            _log.warning(
                "data.partition=domains: each domain has one client, so that %s have no effect",
                ", ".join(sorted(self.model_fields_set)),
            )
        parts: list[Indices] = []
        for domain in present:
            members = np.flatnonzero(ids == domain).astype(np.int64)
            if clients == len(present):
                parts.append(members)
            else:
                inside = super().split(annotations.at(members), clients // len(present), rng)
                parts += [members[part] for part in inside]
        return parts


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
        labels, n = annotations.labels, len(annotations.labels)
        if self.variant == "exact":
            require_samples(n, clients, self.min_samples or 1)
            return partition_evenly(labels, clients, self.alpha, rng)
        least = self.min_samples or max(1, int(min(10 / (1 - 0.75), n / clients / 2)))
        draws = self.max_draws or 10_000
        return redraw_until(labels, clients, self.alpha, least, draws, rng, is_official=True)


def redraw_until(
    labels: Indices,
    clients: int,
    alpha: float,
    min_samples: int,
    max_draws: int,
    rng: np.random.Generator,
    *,
    is_official: bool = False,
) -> list[Indices]:
    """Draw whole partitions until every client has at least `min_samples` images.

    Only the counts are redrawn. This does not change the distribution, because images of a class
    are exchangeable. With `is_official`, clients that hold n/N images get no more and cuts are
    rounded down, as in HtFLlib.

    Raises:
        UserError: if no draw succeeds; states the numbers and the remedies.
    """
    require_samples(len(labels), clients, min_samples)
    classes, totals = class_totals(labels)
    for _ in range(max_draws):
        counts = _draw(totals, clients, alpha, rng, is_official=is_official)
        if counts.sum(1).min() >= min_samples:
            return assign_images(classes, counts, rng)
    raise UserError(
        f"data.partition: some of {clients} clients got fewer than {min_samples} of {len(labels)} "
        f"images in each of {max_draws} draws with alpha={alpha:g}; raise data.partition.alpha, or "
        "lower data.clients or data.partition.min_samples"
    )


def partition_evenly(
    labels: Indices, clients: int, alpha: float, rng: np.random.Generator
) -> list[Indices]:
    """Partition so that every client gets n//N or n//N + 1 images (see `fedtsp_dirichlet`)."""
    n = len(labels)
    classes, totals = class_totals(labels)
    capacity = np.full(clients, n // clients, np.int64)
    capacity[: n % clients] += 1
    counts = np.zeros((clients, len(totals)), np.int64)
    for c in rng.permutation(len(totals)):
        shares = rng.dirichlet(np.full(clients, alpha))
        counts[:, c] = _fill(int(totals[c]), shares, capacity, rng)
        capacity -= counts[:, c]
    return assign_images(classes, counts, rng)


def _draw(
    totals: Indices, clients: int, alpha: float, rng: np.random.Generator, *, is_official: bool
) -> Indices:
    """Draw counts [N, C], one Dirichlet draw per class; `is_official` skips clients when full."""
    full = totals.sum() / clients if is_official else np.inf
    counts = np.zeros((clients, len(totals)), np.int64)
    sizes = np.zeros(clients, np.int64)
    for c, total in enumerate(totals):
        shares = _restricted(sizes < full, rng.dirichlet(np.full(clients, alpha)), rng)
        counts[:, c] = _cut(int(total), shares, 0.0 if is_official else rng.random())
        sizes += counts[:, c]
    return counts


def _restricted(allowed: NDArray[np.bool_], shares: Floats, rng: np.random.Generator) -> Floats:
    """Return the shares with those of clients that are not allowed set to 0, not normalised.

    If all remaining shares are zero in floating point (tiny alpha), one random allowed client gets
    everything, the limit of the Dirichlet distribution at alpha -> 0.
    """
    remaining = np.where(allowed, shares, 0.0)
    if not remaining.sum() > 0:
        remaining[:] = 0.0
        remaining[rng.choice(np.flatnonzero(allowed))] = 1.0
    return remaining


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
