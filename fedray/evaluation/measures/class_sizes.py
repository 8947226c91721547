"""Accuracy on the classes of which a client has many training images, and on the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.evaluation.score import Score, pooled
from fedray.records import Metric


@metrics.add
class ClassSizes(Measure):
    """Accuracy on each client's majority and minority classes, of the model that it is tested with.

    Over the own tests of all clients in sum, since a client may have few images of its minority
    classes. FedGLCL's Fig. 1b asks this of local models, after local training and on everybody's
    test images: `fedray analyse local_models`. Where every pixel is a sample there are
    none: a background is no majority class.
    """

    name = "class_sizes"
    metrics = (Metric("accuracy_majority"), Metric("accuracy_minority"))

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """Each where there are such images."""
        majority = evaluated.facts.majority
        if not majority or evaluated.facts.dense_classes:
            return {}
        counted = {client: score for client, score in evaluated.tested.items() if score.classes}
        large = [score.within(majority[client]) for client, score in counted.items()]
        small = [
            score.within(set(range(len(score.classes))) - set(majority[client]))
            for client, score in counted.items()
        ]
        parts: dict[str, Sequence[Score]] = {
            "accuracy_majority": large,
            "accuracy_minority": small,
        }
        return {
            name: pooled(found)
            for name, found in parts.items()
            if any(score.total for score in found)
        }


def majority_classes(counts: np.ndarray) -> list[frozenset[int]]:
    """Each client's majority classes: those it has more images of than n_i / C, its mean.

    FedGLCL Fig. 1b splits classes by such a threshold and does not say which. A class that a
    client has no image of is a minority class; a client with equal counts has no majority.

    Args:
        counts: n_{i,c}, training images by client and class [N, C].
    """
    above = counts > counts.mean(axis=1, keepdims=True)
    return [frozenset(np.flatnonzero(row).tolist()) for row in above]
