"""Accuracy of the clients' models on their own test splits, and how it spreads over clients."""

from __future__ import annotations

import numpy as np

from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.evaluation.score import pooled
from fedray.records import Metric


@metrics.add
class OwnTest(Measure):
    """Accuracy on the clients' own test splits.

    local_accuracy: mean over clients. local_accuracy_weighted: correct of all / images of all (the
    official FedTSP code's). std, worst and best: over clients; worst10 and best10: means of the
    lowest and highest tenth; jain: Jain's fairness index.
    """

    name = "own_test"
    metrics = (
        Metric("local_accuracy"),
        Metric("local_accuracy_weighted"),
        Metric("local_accuracy_std", direction=None),
        Metric("local_accuracy_worst10"),
        Metric("local_accuracy_best10"),
        Metric("local_accuracy_jain", "index"),
    )

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """Over the clients that have test images."""
        scores = evaluated.tested
        if not scores:
            return {}
        accuracy = np.array([score.accuracy for score in scores.values()])
        tenth = max(1, round(len(accuracy) / 10))
        ordered = np.sort(accuracy)
        squares = float((accuracy**2).sum())
        jain = float(accuracy.sum() ** 2 / (len(accuracy) * squares)) if squares else 1.0
        return {
            "local_accuracy": float(accuracy.mean()),
            "local_accuracy_weighted": pooled(list(scores.values())),
            "local_accuracy_std": float(accuracy.std()),
            "local_accuracy_worst10": float(ordered[:tenth].mean()),
            "local_accuracy_best10": float(ordered[-tenth:].mean()),
            "local_accuracy_jain": jain,
        }
