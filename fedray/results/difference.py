"""Compare two runs of one experiment: numbers round by round, inputs and environments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedray.config import flatten, version_changes
from fedray.results.labels import show_value
from fedray.storage.environment import Environment
from fedray.storage.run import Run, RunInfo

BOUND = 0.02
"""Largest accepted difference of a metric between two classes of hardware; relative for numbers
above 1. Rounding differs between them in the last digit, and training amplifies this."""
OUTCOMES = ("up", "down", "participants", "per_client")
"""Fields of a round, besides metrics, that must be equal."""


@dataclass(frozen=True)
class Gap:
    """A metric, or another outcome of a round, that differs between two runs.

    Attributes:
        round: the round.
        name: name of the metric, or of the record's field.
        then: the metric in the first run; None if missing, and for other outcomes.
        now: the metric in the second run; likewise.
    """

    round: int
    name: str
    then: float | None = None
    now: float | None = None

    @property
    def size(self) -> float:
        """Size of the difference, relative to the larger number if that is above 1."""
        if self.then is None or self.now is None:
            return float("inf")
        return abs(self.then - self.now) / max(1.0, abs(self.then), abs(self.now))

    def __str__(self) -> str:
        numbers = "" if self.then is self.now is None else f": {self.then}, now {self.now}"
        return f"{self.name} in round {self.round}{numbers}"


def metric_gaps(round_: int, then: Mapping[str, float], now: Mapping[str, float]) -> Iterator[Gap]:
    """Yield the metrics of a round that are not equal bit for bit."""
    for name in dict.fromkeys([*then, *now]):
        if then.get(name) != now.get(name):
            yield Gap(round_, name, then.get(name), now.get(name))


def gaps(then: Run, now: Run) -> list[Gap]:
    """Return the differences between two runs in the order of rounds.

    If one run has fewer rounds, its end counts as a difference.
    """
    differences: list[Gap] = []
    for first, second in zip(then.rounds, now.rounds, strict=False):
        metric_differences = list(metric_gaps(first.round, first.metrics, second.metrics))
        differences += metric_differences or [
            Gap(first.round, name)
            for name in OUTCOMES
            if getattr(first, name) != getattr(second, name)
        ]
    if then.done != now.done:
        differences.append(Gap(min(then.done, now.done) + 1, "the end of one run"))
    return differences


def config_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the keys that differ between two experiments: "lr: 0.1, now 0.05"."""
    before, after = flatten(then), flatten(now)
    return [
        f"{key}: {_value(before, key)}, now {_value(after, key)}"
        for key in dict.fromkeys([*before, *after])
        if _value(before, key) != _value(after, key)
    ]


def _value(config: Mapping[str, Any], key: str) -> str:
    return show_value(config[key]) if key in config else "missing"


def input_changes(then: RunInfo, now: RunInfo) -> list[str]:
    """Return the inputs that differ between two runs: partition, images, files, package code."""
    pairs = {
        "the partition": (then.partition_sha256, now.partition_sha256),
        "images or labels": (then.data_sha256, now.data_sha256),
        **{
            f"the content of {key}": (then.files_sha256.get(key), now.files_sha256.get(key))
            for key in dict.fromkeys([*then.files_sha256, *now.files_sha256])
        },
    }
    changes = [
        f"{name}: {(before or 'none')[:12]}, now {(after or 'none')[:12]}"
        for name, (before, after) in pairs.items()
        if before != after
    ]
    return [*changes, *version_changes(then.config, now.config)]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a repeated run.

    Attributes:
        holds: True if both runs are equal, or equal within `BOUND` on different hardware.
        lines: the explanation; the first line is the summary.
    """

    holds: bool
    lines: Sequence[str]


def verdict(
    differences: Sequence[Gap], inputs: Sequence[str], then: Environment, now: Environment
) -> Verdict:
    """Judge whether a repeated run reproduces the first one.

    Args:
        differences: differences between the rounds, from `gaps`.
        inputs: differences between the inputs, from `input_changes`.
        then: the environment of the first run.
        now: the environment of the second run.
    """
    if not differences and not inputs:
        return Verdict(True, ["equal bit for bit"])
    is_other = then.hardware != now.hardware
    environment = then.changes(now)
    if is_other and not then.hardware:
        environment.append(f"made on hardware that was not recorded, here on {now.hardware}")
    if inputs:
        return Verdict(False, [f"different: {inputs[0]}", *inputs[1:], *environment])
    largest = max(differences, key=lambda gap: gap.size)
    first = f"the first difference is {differences[0]}"
    if is_other and largest.size <= BOUND:
        return Verdict(
            True,
            [
                f"equal within {BOUND:g} on another class of hardware; {first}; the largest is "
                f"{largest.size:.2g}",
                *environment,
            ],
        )
    return Verdict(
        False, [f"different: {first}", *(environment or ["the environment is the same"])]
    )
