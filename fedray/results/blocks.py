"""Partition groups of runs into comparable blocks, and compare each group with a base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from fedray.base.errors import UserError, nearest
from fedray.config import PROTOCOL, role_of
from fedray.results.frame import At, RunGroup
from fedray.results.labels import show_value
from fedray.results.paired import ALPHA, Comparison, PairedTest, Side, compare, holm
from fedray.storage.metric import BEST, Metric


def blocks_of(groups: Sequence[RunGroup]) -> list[list[RunGroup]]:
    """Partition groups into blocks whose members are pairwise comparable (greedy, first fit)."""
    blocks: list[list[RunGroup]] = []
    for member in groups:
        for block in blocks:
            if not any(incompatibilities(other, member) for other in block):
                block.append(member)
                break
        else:
            blocks.append([member])
    return blocks


def incompatibilities(one: RunGroup, other: RunGroup) -> list[str]:
    """Return the reasons why two groups are not comparable; empty if they are.

    Comparable groups share images, partitions, the protocol and the choice of rounds.
    """
    reasons = [*_of_data(one, other)]
    for key in dict.fromkeys((*one.keys, *other.keys)):
        values = one.keys.get(key), other.keys.get(key)
        if role_of(key) == PROTOCOL and values[0] != values[1]:
            reasons.append(f"{key} ({' and '.join(map(show_value, values))})")
    if one.select != other.select:
        reasons.append(f"{BEST[one.select]} and {BEST[other.select]}")
    return reasons


def _of_data(one: RunGroup, other: RunGroup) -> Iterable[str]:
    hashes = [{run.run.info.data_sha256 for run in group.runs} for group in (one, other)]
    if None in hashes[0] | hashes[1]:
        yield "images without a hash, which may be others"
        return
    if hashes[0] != hashes[1]:
        names = [group.data for group in (one, other)]
        yield "other images" + (f" ({' and '.join(names)})" if names[0] != names[1] else "")
        return
    first, second = (
        {run.seed: run.run.info.partition_sha256 for run in group.runs} for group in (one, other)
    )
    common = sorted(first.keys() & second.keys())
    seeds = [seed for seed in common if first[seed] is None or first[seed] != second[seed]]
    if seeds:
        yield f"other partitions (seed {', '.join(map(str, seeds))})"


def explain_blocks(blocks: Sequence[Sequence[RunGroup]]) -> list[str]:
    """Return a line for each further block: why it is not comparable with the first one."""
    first, *further = blocks
    pairs = [
        next(pair for pair in product(first, block) if incompatibilities(*pair))
        for block in further
    ]
    return [
        f"not compared: {a.label} and {b.label} have {', '.join(incompatibilities(a, b))}"
        for a, b in pairs
    ]


def method_differences(groups: Sequence[RunGroup]) -> list[str]:
    """Return a note for each key in which methods differ unexpectedly.

    Keys of tuning and of the protocol do not count; those of a method count among the methods that
    have them.
    """
    methods: dict[str, list[Mapping[str, Any]]] = {}
    for member in groups:
        methods.setdefault(member.method, []).append(member.keys)
    notes = []
    for key in dict.fromkeys(key for member in groups for key in member.keys):
        of_method = key.startswith("algorithm.") and key != "algorithm.name"
        if role_of(key) is not None and not of_method:
            continue  # hashes compare the data
        values = {
            name: {show_value(keys.get(key)) for keys in configs}
            for name, configs in methods.items()
            if not of_method or any(key in keys for keys in configs)
        }
        if len(set(map(frozenset, values.values()))) > 1:
            words = "; ".join(f"{name}: {', '.join(sorted(v))}" for name, v in values.items())
            notes.append(f"methods differ in {key} ({words})")
    return notes


@dataclass(frozen=True)
class Difference:
    """The difference between a group and the base of its block.

    Attributes:
        member: the group.
        base: the group that is subtracted.
        comparison: the paired comparison over seeds.
        p: p-value, Holm-corrected over the block; None for fewer than two seeds.
    """

    member: RunGroup
    base: RunGroup
    comparison: Comparison
    p: float | None

    @property
    def reading(self) -> str:
        """The difference in words: within or beyond the spread."""
        if self.comparison.interval is None:
            return "no seed in common"
        if self.p is None:
            return "one seed: no spread"
        return "within the spread" if self.p > ALPHA else "beyond the spread"


@dataclass(frozen=True)
class Report:
    """Groups of runs that are reported together.

    Attributes:
        groups: all rows, in the table's order.
        metrics: the metrics of the table; the first one ranks.
        at: whether best or last values are ranked and compared.
        base: method or label that other groups are compared with; None: the first of each block.
        notes: runs that were left out, and other notes.
    """

    groups: Sequence[RunGroup]
    metrics: Sequence[Metric]
    at: At
    base: str | None = None
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not any(_has_name(member, self.base) for member in self.groups):
            labels = [member.label for member in self.groups]
            raise UserError(
                f"--base {self.base}: there is no such method.{nearest(str(self.base), labels)}"
            )

    @property
    def metric(self) -> Metric:
        """The metric that ranks."""
        return self.metrics[0]

    @cached_property
    def blocks(self) -> list[list[RunGroup]]:
        """Blocks of groups that are comparable with each other."""
        return blocks_of(self.groups)

    @property
    def tables(self) -> list[list[RunGroup]]:
        """One table per block, or a single table if no two groups are comparable, as in a grid."""
        incomparable = len(self.blocks) == len(self.groups)
        return [list(self.groups)] if incomparable else self.blocks

    def base_of(self, block: Sequence[RunGroup]) -> RunGroup:
        """Return the group with which the other groups of a block are compared."""
        return next((member for member in block if _has_name(member, self.base)), block[0])

    def differences(self, block: Sequence[RunGroup]) -> list[Difference]:
        """Compare the groups of a block with its base, by the metric that ranks."""
        base = self.base_of(block)
        rivals = [member for member in block if member is not base]
        comparisons = [self._against(member, base) for member in rivals]
        ps = holm([comparison.p for comparison in comparisons])
        return [
            Difference(member, base, comparison, p)
            for member, comparison, p in zip(rivals, comparisons, ps, strict=True)
        ]

    def _against(self, member: RunGroup, base: RunGroup) -> Comparison:
        mine, theirs = (
            side_group.by_seed(self.metric.name, self.at) for side_group in (member, base)
        )
        differences = {seed: mine[seed] - theirs[seed] for seed in mine if seed in theirs}
        size = max((abs(mine[seed]) for seed in differences), default=1.0)
        sides = Side(member.label, None), Side(base.label, None)
        return compare(*sides, differences, PairedTest(), size)


def _has_name(member: RunGroup, name: str | None) -> bool:
    return name is None or name in (member.label, member.method)
