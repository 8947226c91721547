"""Macro-averaged F1 of the clients' own tests."""

from __future__ import annotations

import numpy as np

from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.records import Metric


@metrics.add
class MacroF1(Measure):
    """Mean over clients of the F1 averaged over classes (DP2FL Table 1)."""

    name = "macro_f1"
    metrics = (Metric("local_macro_f1", "index"),)

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """Where predictions are counted."""
        scores = evaluated.tested.values()
        if not scores or not all(score.predicted for score in scores):
            return {}
        return {"local_macro_f1": float(np.mean([score.macro_f1 for score in scores]))}
