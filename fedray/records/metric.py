"""What a number in a result means: its unit, which way is better, what it was measured on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Unit = Literal["share", "nats", "correlation", "index", "number"]
"""share: of 1, shown in percent; nats: a cross-entropy or a loss made of some; correlation: in
[-1, 1]; index: in [0, 1] but no share; number: anything else."""
Direction = Literal["max", "min"]
MeasuredOn = Literal["train", "validation", "test"]

HEADLINE = "local_accuracy"
"""The metric that every run has, and that its best round is about."""

REPORTED = "client/"
"""What begins the names of numbers that clients report: they never replace a measured one."""


@dataclass(frozen=True)
class Metric:
    """One number that may be measured in a round.

    Attributes:
        name: how result.json calls it; may hold {placeholders} for a domain, a class or a model.
        unit: see `Unit`.
        direction: which way is better; None where neither is.
        on: which images it was measured on; None where it is not about images.
    """

    name: str
    unit: Unit = "share"
    direction: Direction | None = "max"
    on: MeasuredOn | None = "test"

    def matches(self, name: str) -> bool:
        """Whether `name` is this metric's, or one of the family's that a placeholder stands for."""
        fixed = re.split(r"\{\w+\}", self.name)
        return re.fullmatch(".+".join(map(re.escape, fixed)), name) is not None

    def to_json(self) -> dict[str, Any]:
        """Plain data for result.json, without the name."""
        tree = asdict(self)
        del tree["name"]
        return tree

    @classmethod
    def from_json(cls, name: str, tree: Mapping[str, Any]) -> Metric:
        """What `to_json` wrote."""
        return cls(name, tree["unit"], tree["direction"], tree["on"])

    @property
    def is_share(self) -> bool:
        """Whether it is shown in percent."""
        return self.unit == "share"


def find_metric(name: str, declared: Iterable[Metric]) -> Metric | None:
    """The declaration that `name` belongs to; an exact name before a family's."""
    candidates = [metric for metric in declared if metric.matches(name)]
    exact = [metric for metric in candidates if metric.name == name]
    longest = sorted(candidates, key=lambda metric: -len(metric.name))
    return next(iter([*exact, *longest]), None)


def undeclared(name: str) -> Metric:
    """The metric that a number without a declaration is taken for: no direction, no unit."""
    return Metric(name, "number", None, None)
