"""Which round is the best: chosen on validation images, or, as a switch, on the test."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from fedray.records.metric import HEADLINE, Direction, Metric

Select = Literal["validation", "test"]
"""What chooses (`report.select`): validation images, or test images, which is the papers' habit."""

VALIDATION = "validation/"
"""What begins the names of numbers on validation images; the rest is the metric's on the test."""

BEST: Mapping[Select, str] = MappingProxyType(
    {"validation": "best on validation", "test": "best on test"}
)
"""What marks a number that was chosen so."""


def counterpart(metric: Metric) -> Metric:
    """A metric of the test, on validation images."""
    return Metric(f"{VALIDATION}{metric.name}", metric.unit, metric.direction, "validation")


def chosen_by(metric: Metric, measured: Collection[str], select: Select) -> str | None:
    """The number whose best value says which round is the best for a metric.

    Of a metric of the test it is the metric on the images of `select`; where that was not measured,
    or neither way is better, the headline's. Any other metric chooses for itself.

    Args:
        metric: what the best round is asked of.
        measured: the names of all numbers that there are.
        select: on which images is chosen.

    Returns:
        None where nothing may choose: without validation images, on validation.
    """
    if metric.on != "test":
        return metric.name
    prefix = VALIDATION if select == "validation" else ""
    candidates = [metric.name, HEADLINE] if metric.direction else [HEADLINE]
    return next((prefix + name for name in candidates if prefix + name in measured), None)


def best_round(curve: Mapping[int, float], direction: Direction | None) -> int | None:
    """The first of the best rounds; the untrained model of round 0 is never one.

    Args:
        curve: values by round.
        direction: which way is better; None: the highest.
    """
    trained = {round_: value for round_, value in sorted(curve.items()) if round_ > 0}
    sign = -1 if direction == "min" else 1
    return max(trained, key=lambda round_: sign * trained[round_], default=None)


@dataclass(frozen=True)
class Stopping:
    """When a run ends before its last round.

    Attributes:
        patience: after so many evaluations in a row without an improvement.
        metric: of this number.
        direction: which way is better; None: up.
    """

    patience: int
    metric: str
    direction: Direction | None

    def is_due(self, values: Sequence[float]) -> bool:
        """Whether the last `patience` values have not improved on the best one before them.

        Args:
            values: of the rounds from 1 that have the metric, in their order.
        """
        best = best_round(dict(enumerate(values, 1)), self.direction)
        return best is not None and len(values) - best >= self.patience
