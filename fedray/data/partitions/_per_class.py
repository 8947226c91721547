"""Functions of the Dirichlet partitions, which divide each class by one Dirichlet draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import UserError
from fedray.data.partitions import Indices, collect, require_samples

Floats = NDArray[np.float64]


def redraw_until(
    labels: Indices,
    clients: int,
    alpha: float,
    rng: np.random.Generator,
    *,
    min_samples: int,
    max_draws: int,
    official: bool,
    name: str,
) -> list[Indices]:
    """Draw whole partitions until every client has at least `min_samples` images.

    Only the counts are redrawn. This does not change the distribution, because images of a class
    are exchangeable.

    Args:
        labels: int64 [n].
        clients: N.
        alpha: concentration of the Dirichlet distribution.
        rng: random stream.
        min_samples: minimum number of images of every client.
        max_draws: maximum number of draws.
        official: whether to draw as HtFLlib does: clients that hold n/N images get no more, and
            cuts are rounded down.
        name: the partition's name, for the message.

    Raises:
        UserError: if no draw succeeds; states the numbers and the remedies.
    """
    n = len(labels)
    require_samples(n, clients, min_samples, key="data.partition.min_samples")
    classes, totals = class_totals(labels)
    fewest = clients
    for _ in range(max_draws):
        counts = _draw(totals, clients, alpha, rng, official=official)
        short = int((counts.sum(1) < min_samples).sum())
        if not short:
            return assign_images(classes, counts, rng)
        fewest = min(fewest, short)
    raise UserError(
        f"data.partition: at least {fewest} of {clients} clients got fewer than {min_samples} "
        f"images in each of {max_draws} draws ({name}, alpha={alpha:g}, n={n}); "
        "raise data.partition.alpha, lower data.clients or lower data.partition.min_samples"
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


def assign_images(classes: Indices, counts: Indices, rng: np.random.Generator) -> list[Indices]:
    """Assign random images of each class to the clients, as many as `counts` says.

    Args:
        classes: int64 [n], each image's class, 0..C-1.
        counts: int64 [N, C]; columns sum to at most the classes' totals.
        rng: random stream.
    """
    clients = len(counts)
    owner = np.full(len(classes), -1)
    for c in range(counts.shape[1]):
        members = rng.permutation(np.flatnonzero(classes == c))[: counts[:, c].sum()]
        owner[members] = np.repeat(np.arange(clients), counts[:, c])
    return collect(owner, clients)


def class_totals(labels: Indices) -> tuple[Indices, Indices]:
    """Return each image's index among the C classes present, int64 [n], and totals, int64 [C]."""
    _, classes, totals = np.unique(labels, return_inverse=True, return_counts=True)
    return classes.astype(np.int64), totals.astype(np.int64)


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
