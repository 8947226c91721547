"""Accuracy of models besides the participants' own: the global one, newcomers', a method's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedray.core import Algorithm
from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.evaluation.protocols import CrossEvaluated, HasGlobalModel
from fedray.evaluation.score import Score, pooled
from fedray.records import Metric


@metrics.add
class GlobalModel(Measure):
    """Accuracy of the one global model over all clients' test images."""

    name = "global_model"
    metrics = (Metric("global_accuracy"),)

    @classmethod
    def applies_to(cls, method: type[Algorithm]) -> bool:
        """Those that may come to one model; `one_model` = False says that a method never does."""
        return issubclass(method, HasGlobalModel) and getattr(method, "one_model", True)

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """Where all clients predict with one model."""
        if not evaluated.has_global_model or not evaluated.tested:
            return {}
        return {"global_accuracy": pooled(list(evaluated.tested.values()))}


@metrics.add
class Newcomers(Measure):
    """Accuracy of the clients that join late, on their own test splits, also before they join."""

    name = "newcomers"
    metrics = (Metric("new_accuracy"),)

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """The mean over these clients."""
        return mean_over_models("new", [[score] for score in evaluated.newcomers.values()])


@metrics.add
class EarlierClients(Measure):
    """Accuracy of the clients that were there before others joined, on their own test splits.

    Where clients come late: local_accuracy is the mean over all that have joined, so it changes
    with who is in it; this one is of the same clients in every round (FedTSP supplementary H.2).
    """

    name = "earlier_clients"
    metrics = (Metric("earlier_accuracy"),)

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """The mean over these clients."""
        if not evaluated.newcomers:
            return {}
        found = {c: score for c, score in evaluated.tested.items() if c not in evaluated.newcomers}
        return mean_over_models("earlier", [[score] for score in found.values()])


@metrics.add
class CrossEvaluations(Measure):
    """Models that a method asks to be tested elsewhere than where they were trained.

    <name>_accuracy: mean over these models of the accuracy on all images that each was tested on
    (DP2FL Tables 2 to 4: global, others, union).
    """

    name = "cross_evaluations"
    metrics = (Metric("{model}_accuracy"),)

    @classmethod
    def applies_to(cls, method: type[Algorithm]) -> bool:
        """Those that ask for it."""
        return issubclass(method, CrossEvaluated)

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """By the names that the method gives."""
        found: dict[str, float] = {}
        for name, models in evaluated.cross_evaluations.items():
            found |= mean_over_models(name, models)
        return found


def mean_over_models(name: str, models: Sequence[Sequence[Score]]) -> dict[str, float]:
    """<name>_accuracy: the mean over models of the accuracy on all images of each.

    Args:
        name: of the metric.
        models: for each model its scores on one or several clients' test splits.

    Returns:
        Empty where no model was tested on an image.
    """
    tested = [scores for scores in models if any(score.total for score in scores)]
    if not tested:
        return {}
    return {f"{name}_accuracy": float(np.mean([pooled(scores) for scores in tested]))}
