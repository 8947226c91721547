"""What a number in a result means, and which round is the best by it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

RECORD = ConfigDict(extra="forbid")
"""Of every record: a file with an unknown key is refused."""

Unit = Literal["share", "nats", "correlation", "index", "number"]
"""share: of 1, shown in percent; nats: a cross-entropy or a loss made of some; correlation: in
[-1, 1]; index: in [0, 1] but no share; number: anything else."""
Direction = Literal["max", "min"]
MeasuredOn = Literal["train", "validation", "test"]
Select = Literal["validation", "test"]
"""The images that choose the best round (`report.select`): validation images, or test images as in
many papers."""

HEADLINE = "local_accuracy"
"""The metric that every run has; it defines the best round."""
REPORTED = "client/"
"""Prefix of numbers that clients report: they never replace a measured one."""
VALIDATION = "validation/"
"""Prefix of metrics on validation images; the rest is the metric's name on the test."""
BEST: Mapping[Select, str] = MappingProxyType(
    {"validation": "best on validation", "test": "best on test"}
)
"""Label of a number that was chosen on these images."""


@dataclass(frozen=True, config=RECORD)
class Metric:
    """One number that may be measured in a round.

    Attributes:
        name: its key in `Round.metrics`; may hold {placeholders} for a domain, a class or a model.
        unit: see `Unit`.
        direction: which way is better; None where neither is.
        on: the images it is measured on; None if it is not about images.
    """

    name: str
    unit: Unit = "share"
    direction: Direction | None = "max"
    on: MeasuredOn | None = "test"

    def matches(self, name: str) -> bool:
        """Return True if `name` is this metric's name or matches its placeholders."""
        fixed = re.split(r"\{\w+\}", self.name)
        return re.fullmatch(".+".join(map(re.escape, fixed)), name) is not None

    @property
    def is_share(self) -> bool:
        """Return True if the metric is shown in percent."""
        return self.unit == "share"


def find_metric(name: str, declared: Iterable[Metric]) -> Metric | None:
    """Return the declaration that `name` belongs to; an exact name wins over a family."""
    candidates = [metric for metric in declared if metric.matches(name)]
    return max(candidates, key=lambda each: (each.name == name, len(each.name)), default=None)


def counterpart(metric: Metric) -> Metric:
    """Return a test metric's counterpart on validation images."""
    return Metric(f"{VALIDATION}{metric.name}", metric.unit, metric.direction, "validation")


def chosen_by(metric: Metric, measured: Collection[str], select: Select) -> str | None:
    """Return the name of the number whose best value defines a metric's best round.

    For a metric of the test that is the metric on the images of `select`, or the headline's if that
    was not measured or neither direction is better. Any other metric chooses for itself.

    Args:
        metric: the metric whose best round is wanted.
        measured: the names of all measured numbers.
        select: the images that choose.

    Returns:
        None if nothing may choose: `select` is "validation" and there are no validation images.
    """
    if metric.on != "test":
        return metric.name
    prefix = VALIDATION if select == "validation" else ""
    candidates = [metric.name, HEADLINE] if metric.direction else [HEADLINE]
    return next((prefix + name for name in candidates if prefix + name in measured), None)


def best_round(curve: Mapping[int, float], direction: Direction | None) -> int | None:
    """Return the first of the best rounds of a curve, without round 0; direction None means up."""
    trained = {round_: value for round_, value in sorted(curve.items()) if round_ > 0}
    sign = -1 if direction == "min" else 1
    return max(trained, key=lambda round_: sign * trained[round_], default=None)


@dataclass(frozen=True)
class Stopping:
    """The rule of early stopping: `patience` evaluations in a row without an improvement."""

    patience: int
    metric: str
    direction: Direction | None

    def is_due(self, values: Sequence[float]) -> bool:
        """Return True if the last `patience` values, from round 1, do not improve on one before."""
        best = best_round(dict(enumerate(values, 1)), self.direction)
        return best is not None and len(values) - best >= self.patience
