"""How two runs of one experiment differ: numbers, round by round, and where they were made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedray.compare.labels import show_value
from fedray.config import flatten
from fedray.records import Run, RunInfo

BOUND = 0.02
"""Largest difference of a metric between two classes of hardware: of a number above 1 as a part of
it. Rounding differs there in the last digit, and training amplifies this."""
OUTCOMES = ("up", "down", "participants", "per_client")
"""What of a round must be equal besides its metrics."""


@dataclass(frozen=True)
class Gap:
    """A number that differs, or another outcome of a round.

    Attributes:
        round: the round.
        name: of the metric, or the field of the record.
        then: the first run's metric; None where it has none, and for other outcomes.
        now: the second run's.
    """

    round: int
    name: str
    then: float | None = None
    now: float | None = None

    @property
    def size(self) -> float:
        """Return the difference; of numbers above 1 as a part of the larger one."""
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
    """Return what differs in the rounds that either run has, in the order of rounds."""
    found: list[Gap] = []
    for first, second in zip(then.rounds, now.rounds, strict=False):
        of_metrics = list(metric_gaps(first.round, first.metrics, second.metrics))
        found += of_metrics or [
            Gap(first.round, name)
            for name in OUTCOMES
            if getattr(first, name) != getattr(second, name)
        ]
    if then.done != now.done:
        found.append(Gap(min(then.done, now.done) + 1, "the end of one run"))
    return found


def config_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the keys that differ between two experiments: "lr: 0.1, now 0.05"."""
    before, after = flatten(then), flatten(now)
    return [
        f"{key}: {_value(before, key)}, now {_value(after, key)}"
        for key in dict.fromkeys([*before, *after])
        if _value(before, key) != _value(after, key)
    ]


def _value(config: Mapping[str, Any], key: str) -> str:
    return show_value(config[key]) if key in config else "not there"


def input_changes(then: RunInfo, now: RunInfo) -> list[str]:
    """Return what the runs did not read alike: images, partition, files."""
    pairs = {
        "the partition": (then.partition_sha256, now.partition_sha256),
        "images or labels": (then.data_sha256, now.data_sha256),
        **{
            f"the content of {key}": (then.files_sha256.get(key), now.files_sha256.get(key))
            for key in dict.fromkeys([*then.files_sha256, *now.files_sha256])
        },
    }
    return [
        f"{what}: {(before or 'none')[:12]}, now {(after or 'none')[:12]}"
        for what, (before, after) in pairs.items()
        if before != after
    ]


@dataclass(frozen=True)
class Verdict:
    """Whether a run that was made again is the same.

    Attributes:
        holds: True if it is equal, or equal within the bound on another class of hardware.
        lines: what to say, the first line in short.
    """

    holds: bool
    lines: Sequence[str]


def verdict(
    found: Sequence[Gap], inputs: Sequence[str], hardware: str, changes: Sequence[str], here: str
) -> Verdict:
    """Judge a run that was made again.

    Args:
        found: what differs in its rounds.
        inputs: what it did not read alike.
        hardware: of the first run, see `Environment.hardware`; "" if it was not recorded.
        changes: of the environment.
        here: the hardware of the second run.
    """
    if not found and not inputs:
        return Verdict(True, ["equal bit for bit"])
    other = hardware != here
    where = [f"made on {hardware or 'hardware that was not recorded'}", f"here on {here}"]
    environment = [*(where if other else []), *changes]
    if inputs:
        return Verdict(False, [f"different: {inputs[0]}", *inputs[1:], *environment])
    largest = max(found, key=lambda gap: gap.size)
    first = f"the first difference is {found[0]}"
    if other and largest.size <= BOUND:
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
