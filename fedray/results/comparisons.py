"""Groups of runs that are reported together: their differences, and what is unequal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fedray.config import PROTOCOL, role_of
from fedray.results.frame import At, RunGroup, frame_of_groups
from fedray.results.labels import show_value, text_of
from fedray.results.numbers import OF_MEANS, Numbers
from fedray.results.paired import Comparison, holm
from fedray.storage.metric import BEST, Metric


@dataclass(frozen=True)
class Report:
    """Groups of runs that are reported together.

    Attributes:
        groups: all groups, the best first.
        metrics: the metrics that are shown; the first one ranks.
        at: whether the chosen or the last round counts.
        notes: runs that were left out, and other notes.
    """

    groups: Sequence[RunGroup]
    metrics: Sequence[Metric]
    at: At
    notes: Sequence[str] = ()

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
    def by_column(self) -> list[list[RunGroup]]:
        """The groups of each column, the best one of each first."""
        return [
            [group for group in self.groups if group.column == column]
            for column in self.numbers.columns
        ]

    @cached_property
    def differences(self) -> list[tuple[RunGroup, Comparison, float | None]]:
        """Each group minus the best of its column if both are comparable, with p by Holm."""
        found: list[tuple[RunGroup, Comparison, float | None]] = []
        for best, *others in self.by_column:
            rivals = [rival for rival in others if not incompatibilities(best, rival)]
            name = self.metrics[0].name
            compared = [self.numbers.compare(rival.side, best.side, name) for rival in rivals]
            ps = holm([comparison.p for comparison in compared])
            found += zip(rivals, compared, ps, strict=True)
        return found

    @property
    def caveats(self) -> list[str]:
        """Unequal files, environments, rounds and settings."""
        return [
            *_files(self.groups),
            *_environments(self.groups),
            *_unfinished_runs(self.groups),
            *(note for column in self.by_column for note in _not_compared(*column)),
            *method_differences(self.groups),
            *self.notes,
        ]


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


def _of_data(one: RunGroup, other: RunGroup) -> Iterator[str]:
    hashes = [{run.run.info.data_sha256 for run in group.runs} for group in (one, other)]
    if None in hashes[0] | hashes[1]:
        yield "images without a hash, which may be others"
    elif hashes[0] != hashes[1]:
        yield "other images"
    else:
        first, second = (
            {run.seed: run.run.info.partition_sha256 for run in group.runs}
            for group in (one, other)
        )
        common = sorted(first.keys() & second.keys())
        seeds = [seed for seed in common if first[seed] is None or first[seed] != second[seed]]
        if seeds:
            yield f"other partitions (seed {', '.join(map(str, seeds))})"


# --- caveats --------------------------------------------------------------------------------------


def _not_compared(best: RunGroup, *others: RunGroup) -> Iterator[str]:
    """Yield the groups that are not comparable with the best one of their column, by reason."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for other in others:
        by_reason[", ".join(incompatibilities(best, other))].append(other.label)
    for reason, labels in by_reason.items():
        if reason:
            yield f"not compared with {best.label}, {reason}: {'; '.join(labels)}"


def method_differences(groups: Sequence[RunGroup]) -> list[str]:
    """Return a note for each key in which methods differ unexpectedly.

    Keys of tuning and of the protocol do not count; those of a method count among the methods that
    have them.
    """
    methods: dict[str, list[Mapping[str, object]]] = defaultdict(list)
    for member in groups:
        methods[member.method].append(member.keys)
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
