"""Accuracy on classes that were trained on and on others, on images that all clients share."""

from __future__ import annotations

import numpy as np

from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.records import Metric


@metrics.add
class BaseToNovel(Measure):
    """Base and novel classes: means over clients, HM and CM (FedMGP section 5).

    accuracy_hm: their harmonic mean; accuracy_cm: the mean of local accuracy and HM. Nobody trains
    on novel classes, so nobody can hold out images of them to validate on.
    """

    name = "base_to_novel"
    metrics = (
        Metric("accuracy_base"),
        Metric("accuracy_novel"),
        Metric("accuracy_hm"),
        Metric("accuracy_cm"),
    )
    only_on_test = ("accuracy_novel", "accuracy_hm", "accuracy_cm")

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """Where there are shared evaluation sets of these names."""
        scores = list(evaluated.tested.values())
        if not scores:
            return {}
        found = {
            f"accuracy_{name}": float(np.mean([score.eval_sets[name].accuracy for score in scores]))
            for name in ("base", "novel")
            if name in scores[0].eval_sets
        }
        if {"accuracy_base", "accuracy_novel"} <= found.keys():
            local = float(np.array([score.accuracy for score in scores]).mean())
            found["accuracy_hm"] = harmonic_mean(found["accuracy_base"], found["accuracy_novel"])
            found["accuracy_cm"] = (local + found["accuracy_hm"]) / 2
        return found


def harmonic_mean(base: float, novel: float) -> float:
    """HM = 2 B N / (B + N) of the accuracies on base and novel classes; 0 where both are 0."""
    return 2 * base * novel / (base + novel) if base + novel else 0.0
