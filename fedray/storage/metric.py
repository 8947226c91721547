"""Declarations of metrics, and the selection of the best round by a metric."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

RECORD = ConfigDict(extra="forbid")
"""Configuration of all records: a file with an unknown key is refused."""

Unit = Literal["share", "nats", "correlation", "index", "number"]
"""share: a fraction in [0, 1], shown in percent; nats: a cross-entropy or a sum of losses;
correlation: in [-1, 1]; index: in [0, 1] but not a fraction; number: anything else."""
Direction = Literal["max", "min"]
MeasuredOn = Literal["train", "validation", "test"]
Select = Literal["validation", "test"]
"""The images that choose the best round (`report.select`): validation images, or test images as in
many papers."""

HEADLINE = "local_accuracy"
"""The metric that every run has; it defines the best round."""
REPORTED = "client/"
"""Prefix of numbers that clients report, so that they never replace a measured metric."""
VALIDATION = "validation/"
"""Prefix of metrics on validation images, before the name of the test metric."""
BEST: Mapping[Select, str] = MappingProxyType(
    {"validation": "best on validation", "test": "best on test"}
)
"""Label of a number from the round that was selected on these images."""


@dataclass(frozen=True, config=RECORD)
class Metric:
    """The declaration of a metric.

    Attributes:
        name: its key in `Round.metrics`; may contain {placeholders} for a domain, class or model.
        unit: see `Unit`.
        direction: whether larger or smaller values are better; None if neither.
        on: the images it is measured on; None if it does not depend on images.
    """

    name: str
    unit: Unit = "share"
    direction: Direction | None = "max"
    on: MeasuredOn | None = "test"

    def matches(self, name: str) -> bool:
        """Return True if `name` is this metric's name or matches its placeholders."""
        if "{" not in self.name:
            return name == self.name
        fixed = re.split(r"\{\w+\}", self.name)
        return re.fullmatch(".+".join(map(re.escape, fixed)), name) is not None

    @property
    def is_share(self) -> bool:
        """Return True if the metric is shown in percent."""
        return self.unit == "share"


def find_metric(name: str, declared: Iterable[Metric]) -> Metric | None:
    """Return the declaration of `name`; an exact match wins over one with placeholders."""
    candidates = [metric for metric in declared if metric.matches(name)]
    return max(candidates, key=lambda each: (each.name == name, len(each.name)), default=None)


def counterpart(metric: Metric) -> Metric:
    """Return a test metric's counterpart on validation images."""
    return Metric(f"{VALIDATION}{metric.name}", metric.unit, metric.direction, "validation")


def chosen_by(metric: Metric, measured: Collection[str], select: Select) -> str | None:
    """Return the name of the metric whose best value defines the best round of `metric`.

    For a test metric, this is the same metric on the images of `select`, or `HEADLINE` if that
    was not measured or has no direction. Any other metric selects its own best round.

    Args:
        metric: the metric whose best round is wanted.
        measured: the names of all measured metrics.
        select: the images that select the best round.

    Returns:
        None if `select` is "validation" and there are no validation images.
    """
    if metric.on != "test":
        return metric.name
    prefix = VALIDATION if select == "validation" else ""
    candidates = [metric.name, HEADLINE] if metric.direction else [HEADLINE]
    return next((prefix + name for name in candidates if prefix + name in measured), None)


def best_round(curve: Mapping[int, float], direction: Direction | None) -> int | None:
    """Return the first best round of a curve, without round 0; direction None means "max"."""
    trained = {round_: value for round_, value in sorted(curve.items()) if round_ > 0}
    sign = -1 if direction == "min" else 1
    return max(trained, key=lambda round_: sign * trained[round_], default=None)
