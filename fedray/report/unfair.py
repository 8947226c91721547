"""What a reader must be warned of before comparing groups of runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations

from fedray.records import BEST
from fedray.report.runs import Group, text_of, texts_of


def warnings_of(groups: Sequence[Group]) -> list[str]:
    """What makes the groups hard to compare: other data or partitions, unfinished runs."""
    found = [*_data(groups), *_files(groups), *_partitions(groups), *_choices(groups)]
    found += _environments(groups)
    for member in groups:
        for loaded in member.runs:
            done, planned = loaded.run.done, loaded.run.info.planned
            if not loaded.run.is_finished:
                found.append(
                    f"not finished: {member.label} seed {loaded.seed} has {max(done, 0)} of "
                    f"{planned} rounds"
                )
    return found


def _choices(groups: Sequence[Group]) -> list[str]:
    """Where some best rounds were chosen on the test, and some were not."""
    on_test = [member.label for member in groups if member.select == "test"]
    if not on_test or len(on_test) == len(groups):
        return []
    return [f"{BEST['test']}, where others are {BEST['validation']}: {', '.join(on_test)}"]


def _data(groups: Sequence[Group]) -> list[str]:
    """Where the same `data` keys did not give the same images and labels."""
    found = []
    for alike in _alike(groups):
        first, *others = alike
        usual = first.runs[0].run.info.data_sha256
        found += [
            f"images or labels differ: {first.label} and {other.label}"
            for other in others
            if other.runs[0].run.info.data_sha256 != usual
        ]
    return found


def _files(groups: Sequence[Group]) -> list[str]:
    """Where files of the same names did not hold the same texts or weights."""
    named: dict[tuple[str, str], dict[str | None, Group]] = defaultdict(dict)
    for member in groups:
        for key, content in member.runs[0].run.info.files_sha256.items():
            named[key, text_of(member.keys.get(key))].setdefault(content, member)
    found = []
    for (key, _), (first, *others) in ((key, each.values()) for key, each in named.items()):
        found += [f"{key} differs: {first.label} and {other.label}" for other in others]
    return found


def _environments(groups: Sequence[Group]) -> list[str]:
    """Return where the environment changed between the seeds of a group, or within a run."""
    found = []
    for member in groups:
        infos = [loaded.run.info for loaded in member.runs]
        first, *others = infos
        for info in others:
            changes = first.environment.changes(info.environment)
            if changes:
                found.append(
                    f"{member.label}: seeds {first.seed} and {info.seed} were made in different "
                    f"environments: {'; '.join(changes)}"
                )
                break
        found += [
            f"{member.label}, seed {info.seed}: the rounds up to {entry.until_round} were made in "
            f"another environment, which result.json names"
            for info in infos
            for entry in info.earlier_environments
        ]
    return found


def _partitions(groups: Sequence[Group]) -> list[str]:
    """Where the same seed did not give the same partition.

    Groups with the same `data` keys must have had the same partition. Two methods must have had the
    same ones even where those keys differ: a grid over them gives both methods the same set.
    """
    differ: dict[tuple[str, str], set[int]] = defaultdict(set)
    for alike in _alike(groups):
        for seed in {seed for member in alike for seed in member.seeds}:
            for pair in _unlike_the_usual(alike, seed):
                differ[pair].add(seed)
    for pair, seeds in ({} if differ else _unlike_methods(groups)).items():
        differ[pair] |= seeds
    return [
        f"partitions differ: {a} and {b}, seed {', '.join(map(str, sorted(seeds)))}"
        for (a, b), seeds in differ.items()
    ]


def _unlike_the_usual(groups: Sequence[Group], seed: int) -> list[tuple[str, str]]:
    """A group with the most common partition of a seed, and each group with another one."""
    there = [
        (member.label, loaded.run.info.partition_sha256)
        for member in groups
        for loaded in member.runs
        if loaded.seed == seed
    ]
    usual = Counter(partition for _, partition in there).most_common(1)[0][0]
    who = next(label for label, partition in there if partition == usual)
    return [(who, label) for label, partition in there if partition != usual]


def _unlike_methods(groups: Sequence[Group]) -> dict[tuple[str, str], set[int]]:
    """Pairs of methods that had other sets of partitions, with the seeds."""
    by_method: dict[str, dict[int, set[str | None]]] = defaultdict(lambda: defaultdict(set))
    for member in groups:
        for loaded in member.runs:
            by_method[member.method][loaded.seed].add(loaded.run.info.partition_sha256)
    found = {}
    for first, second in combinations(sorted(by_method), 2):
        a, b = by_method[first], by_method[second]
        seeds = {seed for seed in a.keys() & b.keys() if a[seed] != b[seed]}
        if seeds:
            found[first, second] = seeds
    return found


def _alike(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups with the same `data` keys."""
    found: dict[tuple[tuple[str, str], ...], list[Group]] = defaultdict(list)
    for member in groups:
        texts = texts_of(member.keys).items()
        found[tuple(sorted(item for item in texts if item[0].startswith("data.")))].append(member)
    return list(found.values())
