"""Accuracy by domain."""

from __future__ import annotations

import numpy as np

from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.evaluation.score import pooled
from fedray.records import Metric


@metrics.add
class Domains(Measure):
    """Accuracy over all images of each domain's clients, and the mean over domains."""

    name = "domains"
    metrics = (Metric("accuracy_{domain}"), Metric("accuracy_domains"))

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """A domain without test images is left out."""
        scores = evaluated.tested
        by_domain = {}
        for name, clients in evaluated.facts.domains.items():
            tested = [scores[client] for client in clients if client in scores]
            if tested:
                by_domain[f"accuracy_{name}"] = pooled(tested)
        if by_domain:
            by_domain["accuracy_domains"] = float(np.mean(list(by_domain.values())))
        return by_domain
