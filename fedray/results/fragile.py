"""Find fragile verdicts: decided claims that a single seed or another test would undo."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from fedray.results.paired import Comparison, Verdict, compare, holm, verdict_of

FLIPPED = range(8, 21)
"""Numbers of seeds for which the sign-flip test is run: fewer seeds cannot disagree by much, and
more have too many flips to enumerate."""
MEDIAN = "the median difference is not on the side of the mean"


def fragility(family: Sequence[Comparison]) -> list[list[str]]:
    """Return, for each comparison, the reasons why its verdict is fragile.

    A decided comparison is fragile if

    - leaving one seed out of all comparisons undoes the verdict,
    - the median difference is 0 or has another sign than the mean, or
    - the exact sign-flip test of 8 to 20 differences does not reject, even without a correction for
      the number of comparisons: its smallest p for n seeds is 2^(1 - n), too large for Holm's.

    Args:
        family: all comparisons that are corrected together.
    """
    verdicts = _verdicts(family)
    seeds = sorted({seed for comparison in family for seed in comparison.differences})
    without = {
        seed: _verdicts([_without(comparison, seed) for comparison in family]) for seed in seeds
    }
    return [
        _reasons(comparison, [seed for seed in seeds if without[seed][number] != verdict])
        if verdict in ("holds", "refuted")
        else []
        for number, (comparison, verdict) in enumerate(zip(family, verdicts, strict=True))
    ]


def _verdicts(family: Sequence[Comparison]) -> list[Verdict]:
    corrected = holm([comparison.p for comparison in family])
    return [verdict_of(comparison, p) for comparison, p in zip(family, corrected, strict=True)]


def _without(comparison: Comparison, seed: int) -> Comparison:
    remaining = {
        other: difference for other, difference in comparison.differences.items() if other != seed
    }
    sides = comparison.better, comparison.worse
    return compare(*sides, remaining, comparison.test, comparison.size)


def _reasons(comparison: Comparison, undone_by: Sequence[int]) -> list[str]:
    differences, reasons = list(comparison.differences.values()), list[str]()
    if undone_by:
        *most, last = map(str, undone_by)
        reasons.append(f"undecided without seed {', '.join(most)}{' or ' * bool(most)}{last}")
    if median(differences) * sum(differences) <= 0:
        reasons.append(MEDIAN)
    if len(differences) in FLIPPED and (p := sign_flip_p(differences)) > comparison.test.alpha:
        reasons.append(f"sign flips alone give p = {p:.2g}")
    return reasons


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return p of the exact sign-flip test: the share of sign vectors with at least this |sum|."""
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    return float(np.mean(np.abs(sums) >= abs(sum(differences)) * (1 - 1e-12)))
