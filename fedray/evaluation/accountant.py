"""Epsilon of a run: what its releases come to, by Google's dp-accounting.

Two runs are neighbours when one client's data is replaced by any other data (its sample counts and
whatever else is exempt unchanged). A replaced client moves a sum of updates of norm S by up to 2 S,
so noise of deviation sigma S has a noise multiplier of sigma / 2 in the library's terms.

    one Gaussian mechanism, and k of them -> gaussian_epsilon (Balle and Wang, ICML 2018, Thm. 8)
    m of N clients without replacement -> sampled_epsilon (Wang et al., AISTATS 2019, Thm. 27)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from fedray.core import PrivacyMode
from fedray.records import Release, without_void

ORDERS = (1.25, 1.5, 1.75, *range(2, 33), 40, 48, 64, 96, 128)
"""Rényi orders that are tried; the best is taken, so any of them is right."""


class Spent(NamedTuple):
    """Epsilon after a round.

    Attributes:
        total: of the run so far.
        of_round: of this round alone.
        known: the total against an attacker who knows which clients took part.
    """

    total: float
    of_round: float
    known: float


class Accountant:
    """Adds up the releases of clients and computes epsilon.

    Args:
        mode: central or local.
        noise_multiplier: sigma, above 0.
        delta: what epsilon is reported at.
        repeatable: that a step done again has the same noise, so that it tells nothing new.
        earlier: releases of the run before it was resumed.
        note: called with every release before it happens.
    """

    def __init__(
        self,
        mode: PrivacyMode,
        noise_multiplier: float,
        delta: float,
        *,
        repeatable: bool = False,
        earlier: Iterable[Release] = (),
        note: Callable[[Release], None] = lambda release: None,
    ) -> None:
        self.mode = mode
        self.sigma = noise_multiplier
        self.delta = delta
        self._repeatable = repeatable
        self._releases = list(earlier)
        self._note = note

    def add(self, release: Release) -> None:
        """Count a release, or take back one that is void."""
        self._note(release)
        self._releases.append(release)

    def spent(self, round_: int) -> Spent:
        """Return what has been spent by now, and in this round; of a mean by means of sampling."""
        releases = self._distinct()
        now = [release for release in releases if release.round == round_]
        return Spent(self._best(releases), self._best(now), self._known(releases))

    def _best(self, releases: Sequence[Release]) -> float:
        """Return the smaller of two bounds; with local privacy each upload names its client."""
        known = self._known(releases)
        return min(known, self._sampled(releases)) if self.mode == "central" else known

    def _distinct(self) -> Sequence[Release]:
        happened = without_void(self._releases)
        return list(dict.fromkeys(happened)) if self._repeatable else happened

    def _known(self, releases: Iterable[Release]) -> float:
        """Return the epsilon of the client that was asked most often."""
        times = Counter(client for release in releases for client in release.clients)
        return gaussian_epsilon(self.sigma, max(times.values(), default=0), self.delta)

    def _sampled(self, releases: Iterable[Release]) -> float:
        """Return the epsilon amplified by sampling; a round's steps have the same sample."""
        steps = Counter((r.round, r.sample, r.of) for r in releases)
        rounds = Counter((m, n, k) for (_, m, n), k in steps.items())
        if all(m == n for m, n, _ in rounds):
            times = sum(k * count for (_, _, k), count in rounds.items())
            return gaussian_epsilon(self.sigma, times, self.delta)
        return sampled_epsilon(self.sigma, tuple(sorted(rounds.items())), self.delta)


def gaussian_epsilon(sigma: float, times: int, delta: float) -> float:
    """Epsilon of `times` Gaussian mechanisms on updates of norm S with noise sigma S, exactly."""
    import dp_accounting

    if times == 0:
        return 0.0
    epsilon: float = dp_accounting.get_epsilon_gaussian(sigma / 2 / math.sqrt(times), delta)
    return epsilon


@lru_cache(maxsize=64)
def sampled_epsilon(
    sigma: float, rounds: tuple[tuple[tuple[int, int, int], int], ...], delta: float
) -> float:
    """Epsilon of rounds that each draw m of N clients and add noise sigma S to k sums of them.

    Args:
        sigma: noise over clip norm.
        rounds: how many rounds there are of each (m, N, k).
        delta: the delta.
    """
    import dp_accounting as dp

    events = []
    for (sample, of, times), count in rounds:
        one = dp.SelfComposedDpEvent(dp.GaussianDpEvent(sigma / 2), times)
        drawn = dp.SampledWithoutReplacementDpEvent(of, sample, one) if sample < of else one
        events.append(dp.SelfComposedDpEvent(drawn, count))
    return renyi_epsilon(dp.ComposedDpEvent(events), delta, dp.NeighboringRelation.REPLACE_ONE)


def renyi_epsilon(event: Any, delta: float, neighbours: Any) -> float:
    """Epsilon of an event of dp-accounting at `delta`, by its Rényi accountant."""
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(ORDERS, neighbours)
    accountant.compose(event)
    return float(accountant.get_epsilon(delta))
