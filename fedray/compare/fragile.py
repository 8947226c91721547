"""Verdicts that rest on little: what a reader of a decided claim should know."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from fedray.compare.paired import Comparison, Verdict, compare, holm, verdict_of

FLIPPED = range(8, 21)
"""Numbers of seeds for which signs are flipped: fewer cannot disagree by much, and the flips of
more are too many to be listed."""
MEDIAN = "the median difference is not on the side of the mean"


def fragility(family: Sequence[Comparison], others: int = 0) -> list[list[str]]:
    """Return reasons why decided comparisons are fragile, one list for each; empty if none.

    - One seed left out of all comparisons undoes the verdict.
    - The median difference is 0 or has the other sign than the mean.
    - The exact sign-flip test of 8 to 20 differences does not reject, even without a correction for
      the number of comparisons: with n seeds its smallest p is 2^(1 - n), too large for Holm's.

    Args:
        family: all comparisons that are corrected together.
        others: how many comparisons without a p belong to the family besides.
    """
    verdicts = _verdicts(family, others)
    seeds = sorted({seed for each in family for seed in each.differences})
    without = {seed: _verdicts([_without(each, seed) for each in family], others) for seed in seeds}
    return [
        _reasons(each, [seed for seed in seeds if without[seed][number] != verdict])
        if verdict in ("holds", "refuted")
        else []
        for number, (each, verdict) in enumerate(zip(family, verdicts, strict=True))
    ]


def _verdicts(family: Sequence[Comparison], others: int) -> list[Verdict]:
    corrected = holm([*(one.p for one in family), *([None] * others)])
    return [verdict_of(each, p) for each, p in zip(family, corrected, strict=False)]


def _without(comparison: Comparison, seed: int) -> Comparison:
    rest = {each: one for each, one in comparison.differences.items() if each != seed}
    sides = comparison.better, comparison.worse
    return compare(*sides, rest, comparison.test, comparison.size)


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
    """Return p of the exact sign-flip test: the share of all signs with as large a |sum|."""
    sums = np.zeros(1)
    for one in differences:
        sums = np.concatenate([sums + one, sums - one])
    return float(np.mean(np.abs(sums) >= abs(sum(differences)) * (1 - 1e-12)))
