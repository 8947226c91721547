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
from itertools import chain
from typing import NamedTuple

ORDERS = (1.25, 1.5, 1.75, *range(2, 33), 40, 48, 64, 96, 128)
"""Rényi orders to try. Each gives a valid bound, and the smallest bound is used."""


class Releases(NamedTuple):
    """Uploads with noise.

    Attributes:
        of_client: the number of uploads of each client.
        rounds: the number of rounds that drew m of N clients, and added noise to k sums of them, by
            (m, N, k).
    """

    of_client: Counter[int]
    rounds: Counter[tuple[int, int, int]]


class Accountant:
    """Counts the uploads with noise of a run, and computes their epsilon.

    Args:
        mode: central or local.
        noise_multiplier: sigma, above 0.
        delta: the delta at which epsilon is reported.
    """

    def __init__(self, mode: str, noise_multiplier: float, delta: float) -> None:
        self.mode = mode
        self.sigma = noise_multiplier
        self.delta = delta
        self._run, self._round = (Releases(Counter(), Counter()) for _ in range(2))

    def add(
        self, noised: Sequence[Sequence[int]], participants: Iterable[int], joined: int
    ) -> None:
        """Count a round.

        Args:
            noised: the clients of each step whose uploads had noise (`Round.noised`).
            participants: the clients that the round drew.
            joined: number of clients that it drew from.
        """
        drawn = set(participants)  # a step that calls others is no sample
        steps = Counter(len(drawn) if drawn.issuperset(clients) else joined for clients in noised)
        rounds = Counter((sample, joined, times) for sample, times in steps.items())
        self._round = Releases(Counter(chain.from_iterable(noised)), rounds)
        self._run.of_client.update(self._round.of_client)
        self._run.rounds.update(rounds)

    def spent(self) -> dict[str, float]:
        """Return epsilon so far and of the last round, as metrics."""
        return {
            "epsilon": self._bound(self._run),
            "epsilon_round": self._bound(self._round),
            "epsilon_known_participants": self._without_sampling(self._run),
        }

    def _bound(self, releases: Releases) -> float:
        """Return the smaller of two bounds; in local mode, each upload identifies its client."""
        known, rounds = self._without_sampling(releases), releases.rounds
        if self.mode != "central" or all(sample == of for sample, of, _ in rounds):
            return known
        return min(known, sampled_epsilon(self.sigma, tuple(sorted(rounds.items())), self.delta))

    def _without_sampling(self, releases: Releases) -> float:
        """Return epsilon of the client with the most uploads."""
        times = max(releases.of_client.values(), default=0)
        return gaussian_epsilon(self.sigma, times, self.delta)


def gaussian_epsilon(sigma: float, times: int, delta: float) -> float:
    """Return the exact epsilon of `times` Gaussian mechanisms with clip norm S, noise sigma S."""
    import dp_accounting

    if times == 0:
        return 0.0
    return float(dp_accounting.get_epsilon_gaussian(sigma / 2 / math.sqrt(times), delta))


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

    accountant = dp.rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    for (sample, of, times), count in rounds:
        event: dp.DpEvent = dp.SelfComposedDpEvent(dp.GaussianDpEvent(sigma / 2), times)
        if sample < of:
            event = dp.SampledWithoutReplacementDpEvent(of, sample, event)
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))
