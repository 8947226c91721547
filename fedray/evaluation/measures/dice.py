"""Dice coefficients of dense prediction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.evaluation.score import Score
from fedray.records import Metric

Floats = NDArray[np.float64]


@metrics.add
class Dice(Measure):
    """Dice 2 |predicted ∩ true| / (|predicted| + |true|) over each client's test pixels.

    dice_<class>: mean over the clients where the class is predicted or true anywhere; left out
    when there is none. dice: mean of these without the background's. dice_in_<domain>: the same
    mean over a domain's clients alone.
    """

    name = "dice"
    metrics = (
        Metric("dice", "index"),
        Metric("dice_{class}", "index"),
        Metric("dice_in_{domain}", "index"),
    )

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """Where every pixel is a sample; class 0 is the background."""
        names = evaluated.facts.dense_classes
        if not names or not evaluated.tested:
            return {}
        by_client = {client: _dice(score) for client, score in evaluated.tested.items()}
        means = _mean_over(list(by_client.values()))
        found = {f"dice_{name}": float(v) for name, v in zip(names, means, strict=True)}
        found["dice"] = _foreground(means)
        for domain, clients in evaluated.facts.domains.items():
            tested = [by_client[client] for client in clients if client in by_client]
            if tested:
                found[f"dice_in_{domain}"] = _foreground(_mean_over(tested))
        return {name: value for name, value in found.items() if not np.isnan(value)}


def _dice(score: Score) -> Floats:
    """By class [C]; NaN for a class that is nowhere."""
    right, true = np.array(score.classes).T
    guessed = np.array(score.predicted)
    with np.errstate(invalid="ignore"):
        return np.asarray(2 * right / (guessed + true))


def _mean_over(rows: Sequence[Floats]) -> Floats:
    """Mean of rows [C] without their NaN; NaN where every row has one."""
    return np.array([_mean(column) for column in np.stack(rows, 1)])


def _foreground(by_class: Floats) -> float:
    """Mean without class 0, the background."""
    return _mean(by_class[1:])


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
