"""Epsilon of differential privacy."""

from __future__ import annotations

from fedray.evaluation.metrics import Evaluated, Measure, metrics
from fedray.records import Metric


@metrics.add
class Epsilon(Measure):
    """Epsilon at `privacy.delta`, of the run so far and of the round (docs/privacy.md).

    Against whoever does not know which clients took part, and against whoever does.
    """

    name = "epsilon"
    metrics = tuple(
        Metric(name, "number", "min", None)
        for name in ("epsilon", "epsilon_round", "epsilon_known_participants")
    )

    def compute(self, evaluated: Evaluated) -> dict[str, float]:
        """Nothing where privacy was not asked for, or has no noise."""
        if evaluated.spent is None:
            return {}
        total, of_round, known = evaluated.spent
        return {
            "epsilon": total,
            "epsilon_round": of_round,
            "epsilon_known_participants": known,
        }
