"""Runs that are reported together: which of them are comparable, and their caveats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from fedray.config import PROTOCOL, role_of
from fedray.results.frame import At, RunGroup, frame_of_groups
from fedray.results.labels import show_value, text_of
from fedray.results.numbers import OF_MEANS, Numbers
from fedray.results.paired import Comparison, Side, holm
from fedray.storage.metric import BEST, Metric


@dataclass(frozen=True)
class Report:
    """Groups of runs that are reported together.

    Attributes:
        groups: all rows, in the table's order.
        metrics: the metrics of the table; the first one ranks.
        at: whether best or last values are ranked and compared.
        notes: runs that were left out, and other notes.
    """

    groups: Sequence[RunGroup]
    metrics: Sequence[Metric]
    at: At
    notes: Sequence[str] = ()

    @property
    def metric(self) -> Metric:
        """The metric that ranks."""
        return self.metrics[0]

    @cached_property
    def numbers(self) -> Numbers:
        """All runs as one frame, with the parts of metrics that papers compute from means."""
        parts = dict.fromkeys(
            part for metric in self.metrics for part in OF_MEANS.get(metric.name, ())
        )
        info, names = self.groups[0].runs[0].run.info, [metric.name for metric in self.metrics]
        further = [info.metric(part) for part in parts if part not in names]
        return frame_of_groups(self.groups, [*self.metrics, *further], self.at)

    @cached_property
    def blocks(self) -> list[list[RunGroup]]:
        """Blocks of groups that are comparable with each other."""
        return blocks_of(self.groups)

    @property
    def tables(self) -> list[list[RunGroup]]:
        """One table per block, or a single table if no two groups are comparable, as in a grid."""
        incomparable = len(self.blocks) == len(self.groups)
        return [list(self.groups)] if incomparable else self.blocks

    def differences(self, block: Sequence[RunGroup]) -> list[tuple[Comparison, float | None]]:
        """Compare the groups of a block with the first one, by the metric that ranks.

        Returns:
            The comparisons, each with its p, Holm-corrected over the block.
        """
        first, *rivals = (Side(member.row, member.column) for member in block)
        found = [self.numbers.compare(rival, first, self.metric.name) for rival in rivals]
        return list(zip(found, holm([comparison.p for comparison in found]), strict=True))

    @property
    def caveats(self) -> list[str]:
        """Unequal files, environments, rounds, data and settings."""
        methods = dict.fromkeys(note for block in self.blocks for note in method_differences(block))
        return [
            *_files(self.groups),
            *_environments(self.groups),
            *_unfinished_runs(self.groups),
            *explain_blocks(self.blocks),
            *methods,
            *self.notes,
        ]


# --- comparable groups ----------------------------------------------------------------------------


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
        names = [group.runs[0].data for group in (one, other)]
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


# --- caveats --------------------------------------------------------------------------------------


def _files(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield input files with equal names but different contents."""
    named: dict[tuple[str, str], dict[str | None, RunGroup]] = defaultdict(dict)
    for member in groups:
        for key, content in member.runs[0].run.info.files_sha256.items():
            named[key, text_of(member.keys.get(key))].setdefault(content, member)
    for (key, _), by_content in named.items():
        first, *further = by_content.values()
        yield from (f"{key} differs: {first.label} and {other.label}" for other in further)


def _environments(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield changes of the environment between the seeds of a group, or within a run."""
    for member in groups:
        infos = [loaded.run.info for loaded in member.runs]
        first = infos[0]
        changes = {info.seed: first.environment.changes(info.environment) for info in infos[1:]}
        seed = next((seed for seed, changed in changes.items() if changed), None)
        if seed is not None:
            yield (
                f"{member.label}: seeds {first.seed} and {seed} were made in different "
                f"environments: {'; '.join(changes[seed])}"
            )


def _unfinished_runs(groups: Sequence[RunGroup]) -> Iterator[str]:
    for member in groups:
        for loaded in member.runs:
            rounds = f"{max(loaded.run.done, 0)} of {loaded.run.info.planned}"
            if not loaded.run.is_finished:
                yield f"not finished: {member.label} seed {loaded.seed} has {rounds} rounds"
