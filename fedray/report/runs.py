"""Results on disk, grouped by what differs besides the seed, and what is unfair about them."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from fedray.tracking.results import find_results

At = Literal["best", "final"]

NOT_COMPARED = frozenset(
    [
        "seed",
        "name",
        "workers",
        "cpus",
        "gpus",
        "server_cpus",
        "server_gpus",
        "checkpoint_every",
        "data.root",
        "data.download",
        "faults.max_failures",
        "faults.reply_timeout_s",
    ]
)
"""Keys of an experiment in which the runs of one group may differ: seed, name, execution."""


@dataclass(frozen=True)
class Stat:
    """A number over seeds.

    Attributes:
        mean: over seeds.
        std: sample standard deviation; 0 for one seed.
        n: how many seeds.
    """

    mean: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Stat:
        """Of at least one value."""
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), spread, len(values))


@dataclass(frozen=True)
class Difference:
    """How far a method is from another one, over seeds that both have.

    Attributes:
        stat: of the differences seed by seed.
        p: of the two-sided paired t-test; None where every seed differs by the same.
    """

    stat: Stat
    p: float | None


def paired(values: Sequence[float], base: Sequence[float]) -> Difference | None:
    """The differences `values` - `base`, and Student's paired t-test of whether their mean is 0.

    Args:
        values: a number per seed.
        base: the other method's, with the same seeds in the same order.

    Returns:
        None for fewer than two pairs.
    """
    from scipy import stats

    if len(values) < 2:
        return None
    stat = Stat.of([a - b for a, b in zip(values, base, strict=True)])
    if stat.std <= 1e-12 * max(map(abs, (*values, *base))):  # rounding is no spread
        return Difference(stat, None)
    return Difference(stat, float(stats.ttest_rel(values, base).pvalue))


@dataclass(frozen=True, eq=False)
class Run:
    """One run's folder and its result.json."""

    folder: Path
    result: Mapping[str, Any]

    @property
    def seed(self) -> int:
        """The seed of every random stream."""
        return int(self.result["seed"])

    @property
    def method(self) -> str:
        """The algorithm's name."""
        return str(self.result["algorithm"])

    @property
    def partition(self) -> str | None:
        """The partition's sha256, if the result has it."""
        return self.result.get("partition_sha256")

    @property
    def rounds(self) -> list[Mapping[str, Any]]:
        """What each round gave, round 0 first."""
        return list(self.result["rounds"])

    @property
    def planned(self) -> int:
        """T, the rounds that were asked for."""
        return int(self.result["config"]["rounds"])

    @property
    def done(self) -> int:
        """The last round that was finished; -1 when there is none."""
        return int(self.rounds[-1]["round"]) if self.rounds else -1

    @cached_property
    def keys(self) -> dict[str, Any]:
        """The configuration by dotted key, without what the runs of a group may differ in."""
        flat = dict(_leaves(self.result["config"]))
        return {key: value for key, value in flat.items() if key not in NOT_COMPARED}

    def curve(self, metric: str) -> dict[int, float]:
        """The metric by round, where it was measured."""
        return {
            int(record["round"]): float(record["metrics"][metric])
            for record in self.rounds
            if metric in record["metrics"]
        }

    def value(self, metric: str, at: At) -> float | None:
        """The metric's best or last value; None when it was never measured."""
        values = list(self.curve(metric).values())
        if not values:
            return None
        return values[-1] if at == "final" else best_of(metric, values)

    def traffic(self) -> dict[int, float]:
        """Bytes up and down, of all rounds up to each round."""
        total, totals = 0.0, {}
        for record in self.rounds:
            total += record["up_bytes"] + record["down_bytes"]
            totals[int(record["round"])] = total
        return totals

    def per_round(self, direction: Literal["up_bytes", "down_bytes"]) -> float:
        """Bytes per communication round, the mean; what is sent before round 1 is apart."""
        found = [float(record[direction]) for record in self.rounds if record["round"] > 0]
        return statistics.fmean(found) if found else 0.0


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one configuration, one per seed.

    Attributes:
        label: the method and in what the group differs from the others.
        keys: the configuration that the runs share.
        runs: by seed.
    """

    label: str
    keys: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def method(self) -> str:
        """The algorithm's name."""
        return self.runs[0].method

    @property
    def seeds(self) -> list[int]:
        """The runs' seeds."""
        return [run.seed for run in self.runs]

    def stat(self, metric: str, at: At) -> Stat | None:
        """The metric's best or last value over seeds; None when no run has it."""
        values = [value for run in self.runs if (value := run.value(metric, at)) is not None]
        return Stat.of(values) if values else None

    def difference(self, base: Group, metric: str, at: At) -> Difference | None:
        """To another group's best or last values of the same seeds; None for fewer than two."""
        mine, other = ({run.seed: run.value(metric, at) for run in g.runs} for g in (self, base))
        pairs = [
            (value, against)
            for seed, value in mine.items()
            if value is not None and (against := other.get(seed)) is not None
        ]
        return paired([value for value, _ in pairs], [against for _, against in pairs])

    def per_round(self, direction: Literal["up_bytes", "down_bytes"]) -> float:
        """Bytes per communication round, the mean over seeds."""
        return statistics.fmean(run.per_round(direction) for run in self.runs)

    def curve(self, metric: str) -> dict[int, Stat]:
        """The metric over seeds by round, where every run that has it measured it."""
        curves = [curve for run in self.runs if (curve := run.curve(metric))]
        common = set.intersection(*map(set, curves)) if curves else set()
        return {r: Stat.of([curve[r] for curve in curves]) for r in sorted(common)}

    def traffic(self) -> dict[int, float]:
        """Bytes of all rounds up to each round, the mean over seeds."""
        totals = [run.traffic() for run in self.runs]
        common = set.intersection(*map(set, totals))
        return {r: statistics.fmean(total[r] for total in totals) for r in sorted(common)}


def best_of(metric: str, values: Iterable[float]) -> float:
    """The lowest of a loss, the highest of everything else."""
    return min(values) if "loss" in metric else max(values)


def load(folders: Sequence[Path]) -> list[Run]:
    """The runs at or below the given folders.

    Raises:
        UserError: when a folder is missing or holds no run, or a result cannot be read.
    """
    return [Run(folder, result) for folder, result in find_results(folders)]


def metrics_of(runs: Iterable[Run]) -> set[str]:
    """Names of the metrics that the runs measured."""
    return {
        name
        for run in runs
        for record in run.rounds
        for name, value in record["metrics"].items()
        if isinstance(value, (int, float))
    }


# --- groups --------------------------------------------------------------------------------------


def group(runs: Iterable[Run]) -> tuple[list[Group], list[str]]:
    """Put runs together that differ only in the seed and in how they were executed.

    Returns:
        The groups, and what was left out: of two runs of one group and seed, the shorter one.
    """
    by_keys: dict[tuple[tuple[str, str], ...], list[Run]] = defaultdict(list)
    for run in runs:
        by_keys[tuple(sorted(_texts(run.keys).items()))].append(run)
    labels = _labels([members[0].keys for members in by_keys.values()])
    groups, notes = [], []
    for label, members in zip(labels, by_keys.values(), strict=True):
        kept: dict[int, Run] = {}
        for run in sorted(members, key=lambda run: -run.done):
            if run.seed in kept:
                notes.append(f"seed {run.seed} of {label} is there twice; {run.folder} is left out")
            else:
                kept[run.seed] = run
        ordered = tuple(kept[seed] for seed in sorted(kept))
        groups.append(Group(label, ordered[0].keys, ordered))
    return groups, notes


def differing(groups: Sequence[Group]) -> list[str]:
    """Keys in which groups of one method differ, or in which methods differ besides their own."""
    return _differing([group.keys for group in groups])


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    found = []
    for key in dict.fromkeys(key for config in configs for key in config):
        own = key.startswith("algorithm.")
        values: dict[Any, set[str]] = defaultdict(set)
        for config in configs:
            values[config["algorithm.name"] if own else None].add(_text(config.get(key)))
        if any(len(seen) > 1 for seen in values.values()) and key != "algorithm.name":
            found.append(key)
    return found


def _labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The method and the keys that tell the configurations apart: "fedtsp lambda=7"."""
    keys = _differing(configs)
    last = Counter(key.rsplit(".", 1)[-1] for key in keys)
    short = {k: n if last[n := k.rsplit(".", 1)[-1]] == 1 and n != "name" else k for k in keys}
    labels = []
    for config in configs:
        words = [str(config["algorithm.name"])]
        for key in keys:
            if key in config:
                words.append(f"{short[key]}={show(config[key])}")
            elif _belongs(key, config, configs):
                words.append(f"{short[key]}=default")
        labels.append(" ".join(words))
    return labels


def _belongs(key: str, config: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a key that a configuration leaves out is one that its component has."""
    name = f"{key.rsplit('.', 1)[0]}.name"
    return any(key in other and other.get(name) == config.get(name) for other in configs)


def _texts(keys: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(value) for key, value in keys.items()}


def _text(value: Any) -> str:
    """A value to compare by: 7 and 7.0 are the same."""
    return repr(float(value)) if is_number(value) else repr(value)


def show(value: Any) -> str:
    """A value in few characters."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# --- what is unfair ------------------------------------------------------------------------------


def warnings_of(groups: Sequence[Group]) -> list[str]:
    """What makes the groups hard to compare: other partitions, unfinished runs."""
    found = _partitions(groups)
    for member in groups:
        for run in member.runs:
            if run.done < run.planned:
                found.append(
                    f"not finished: {member.label} seed {run.seed} has {max(run.done, 0)} of "
                    f"{run.planned} rounds"
                )
    return found


def _partitions(groups: Sequence[Group]) -> list[str]:
    """Where the same seed did not give the same partition.

    Groups with the same `data` keys must have had the same partition. Two methods must have had the
    same ones even where those keys differ: a grid over them gives both methods the same set.
    """
    differ: dict[tuple[str, str], set[int]] = defaultdict(set)
    for alike in _alike(groups):
        for seed in {seed for member in alike for seed in member.seeds}:
            there = [(m.label, r.partition) for m in alike for r in m.runs if r.seed == seed]
            usual = Counter(partition for _, partition in there).most_common(1)[0][0]
            who = next(label for label, partition in there if partition == usual)
            for label, partition in there:
                if partition != usual:
                    differ[who, label].add(seed)
    by_method: dict[str, dict[int, set[str | None]]] = defaultdict(lambda: defaultdict(set))
    for member in groups:
        for run in member.runs:
            by_method[member.method][run.seed].add(run.partition)
    if not differ:
        for first, second in combinations(sorted(by_method), 2):
            for seed in by_method[first].keys() & by_method[second].keys():
                if by_method[first][seed] != by_method[second][seed]:
                    differ[first, second].add(seed)
    return [
        f"partitions differ: {a} and {b}, seed {', '.join(map(str, sorted(seeds)))}"
        for (a, b), seeds in differ.items()
    ]


def _alike(groups: Sequence[Group]) -> list[list[Group]]:
    """Groups with the same `data` keys."""
    found: dict[tuple[tuple[str, str], ...], list[Group]] = defaultdict(list)
    for member in groups:
        texts = _texts(member.keys).items()
        found[tuple(sorted(item for item in texts if item[0].startswith("data.")))].append(member)
    return list(found.values())


def is_number(value: Any) -> bool:
    """Whether a swept value can stand on an axis."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
