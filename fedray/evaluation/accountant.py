"""Epsilon of a run's releases, computed by Google's dp-accounting.

Two runs are neighbours if one client's data is replaced by any other data, with its sample counts
and other exempt information unchanged. Replacing a client moves a sum of updates of norm S by up to
2 S, so noise of deviation sigma S has a noise multiplier of sigma / 2 in the library's terms.

    one Gaussian mechanism, and k of them -> gaussian_epsilon (Balle and Wang, ICML 2018, Thm. 8)
    m of N clients without replacement -> sampled_epsilon (Wang et al., AISTATS 2019, Thm. 27)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from fedray.core import PrivacyMode

ORDERS = (1.25, 1.5, 1.75, *range(2, 33), 40, 48, 64, 96, 128)
"""Rényi orders to try. Each gives a valid bound, and the smallest bound is used."""


class Spent(NamedTuple):
    """Epsilon after a round.

    Attributes:
        total: epsilon of the run so far.
        of_round: epsilon of this round alone.
        if_known: the total against an attacker who knows which clients took part.
    """

    total: float
    of_round: float
    if_known: float


class Release(NamedTuple):
    """One step of a round in which clients uploaded values with noise.

    Attributes:
        round: the round.
        clients: ids of the clients that uploaded.
        sample: number of clients that the round drew.
        of: number of clients that it drew from; equal to `sample` if the step called others.
    """

    round: int
    clients: Sequence[int]
    sample: int
    of: int


class Accountant:
    """Collects the releases of clients, and computes their epsilon.

    Args:
        mode: central or local.
        noise_multiplier: sigma, above 0.
        delta: the delta at which epsilon is reported.
    """

    def __init__(self, mode: PrivacyMode, noise_multiplier: float, delta: float) -> None:
        self.mode = mode
        self.sigma = noise_multiplier
        self.delta = delta
        self._releases: list[Release] = []

    def add(
        self, round_: int, noised: Iterable[Sequence[int]], participants: Iterable[int], joined: int
    ) -> None:
        """Count a round.

        Args:
            round_: the round.
            noised: the clients of each step whose uploads had noise (`Round.noised`).
            participants: the clients that the round drew.
            joined: number of clients that it drew from.
        """
        drawn = set(participants)
        for clients in noised:
            sample = len(drawn) if drawn.issuperset(clients) else joined
            self._releases.append(Release(round_, clients, sample, joined))

    def spent(self, round_: int) -> Spent:
        """Return epsilon so far and of this round; in central mode, amplified by sampling."""
        in_round = [release for release in self._releases if release.round == round_]
        total, known = self._bound(self._releases), self._without_sampling(self._releases)
        return Spent(total, self._bound(in_round), known)

    def _bound(self, releases: Sequence[Release]) -> float:
        """Return the smaller of two bounds; in local mode, each upload identifies its client."""
        unamplified = self._without_sampling(releases)
        return min(unamplified, self._sampled(releases)) if self.mode == "central" else unamplified

    def _without_sampling(self, releases: Iterable[Release]) -> float:
        """Return epsilon of the client with the most releases."""
        times = Counter(client for release in releases for client in release.clients)
        return gaussian_epsilon(self.sigma, max(times.values(), default=0), self.delta)

    def _sampled(self, releases: Iterable[Release]) -> float:
        """Return epsilon amplified by sampling; all steps of a round share one sample."""
        steps = Counter((r.round, r.sample, r.of) for r in releases)
        rounds = Counter((m, n, k) for (_, m, n), k in steps.items())
        if all(m == n for m, n, _ in rounds):
            times = sum(k * count for (_, _, k), count in rounds.items())
            return gaussian_epsilon(self.sigma, times, self.delta)
        return sampled_epsilon(self.sigma, tuple(sorted(rounds.items())), self.delta)


def gaussian_epsilon(sigma: float, times: int, delta: float) -> float:
    """Return the exact epsilon of `times` Gaussian mechanisms with clip norm S, noise sigma S."""
    import dp_accounting

    if times == 0:
        return 0.0
    epsilon: float = dp_accounting.get_epsilon_gaussian(sigma / 2 / math.sqrt(times), delta)
    return epsilon


@lru_cache(maxsize=64)
def sampled_epsilon(
    sigma: float, rounds: tuple[tuple[tuple[int, int, int], int], ...], delta: float
) -> float:
    """Return epsilon of rounds that draw m of N clients and add noise sigma S to k sums of them.

    Args:
        sigma: noise over clip norm.
        rounds: the number of rounds for each (m, N, k).
        delta: the delta.
    """
    import dp_accounting as dp

    events = []
    for (sample, of, times), count in rounds:
        mechanism = dp.SelfComposedDpEvent(dp.GaussianDpEvent(sigma / 2), times)
        sampled = (
            dp.SampledWithoutReplacementDpEvent(of, sample, mechanism) if sample < of else mechanism
        )
        events.append(dp.SelfComposedDpEvent(sampled, count))
    return renyi_epsilon(dp.ComposedDpEvent(events), delta, dp.NeighboringRelation.REPLACE_ONE)


def renyi_epsilon(event: Any, delta: float, neighbours: Any) -> float:
    """Return epsilon of a dp-accounting event at `delta`, by the Rényi accountant."""
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(ORDERS, neighbours)
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))
