"""Results on disk, grouped by what differs besides the seed."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from fedray.config import EXECUTION_KEYS, flatten
from fedray.errors import UserError, nearest
from fedray.records import BEST, Metric, Run, Select, chosen_by, data_name, find_runs

At = Literal["best", "final"]
TrafficDirection = Literal["up", "down"]

NOT_COMPARED = frozenset(["seed", "name", *EXECUTION_KEYS])
"""Keys of an experiment in which the runs of one group may differ: seed, name, execution."""


@dataclass(frozen=True)
class Stat:
    """A number over seeds, or over what else is counted.

    Attributes:
        mean: over them.
        std: sample standard deviation; 0 for one.
        n: how many.
    """

    mean: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Stat:
        """Of at least one value."""
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), spread, len(values))


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run and its folder.

    Attributes:
        folder: the run's folder.
        run: the content of its result.json.
    """

    folder: Path
    run: Run

    @property
    def seed(self) -> int:
        """The seed of every random stream."""
        return self.run.info.seed

    @property
    def method(self) -> str:
        """The algorithm's name."""
        return self.run.info.algorithm

    @cached_property
    def keys(self) -> dict[str, Any]:
        """Return the configuration by dotted key, without what the runs of a group may differ in.

        A file that the experiment names is called by its name, wherever it lies.
        """
        flat = flatten(self.run.info.config)
        flat |= {key: Path(flat[key]).name for key in self.run.info.files_sha256}
        return {key: value for key, value in flat.items() if key not in NOT_COMPARED}

    @property
    def contents(self) -> dict[str, str | None]:
        """Return hashes of what the run has read: images and labels, files that it names."""
        info = self.run.info
        return {"data": info.data_sha256, **info.files_sha256}

    def traffic(self) -> dict[int, float]:
        """Bytes up and down, of all rounds up to each round."""
        total, totals = 0.0, {}
        for done in self.run.rounds:
            total += done.up.total_bytes + done.down.total_bytes
            totals[done.round] = total
        return totals

    def per_round(self, direction: TrafficDirection) -> float:
        """Bytes per communication round, the mean; what is sent before round 1 is left out."""
        found = [getattr(done, direction).total_bytes for done in self.run.rounds if done.round > 0]
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
    runs: tuple[LoadedRun, ...]

    @property
    def method(self) -> str:
        """The algorithm's name."""
        return self.runs[0].method

    @property
    def seeds(self) -> list[int]:
        """The runs' seeds."""
        return [run.seed for run in self.runs]

    @property
    def data(self) -> str:
        """What the runs' images are called."""
        return data_name(self.runs[0].run.info.config)

    @property
    def select(self) -> Select:
        """On which images the runs' best rounds are chosen."""
        return self.runs[0].run.info.select

    def stat(self, metric: str, at: At) -> Stat | None:
        """The metric's best or last value over seeds; None when no run has it."""
        every = [loaded.run.value(metric, at) for loaded in self.runs]
        values = [value for value in every if value is not None]
        return Stat.of(values) if values else None

    def worth(self, metric: Metric, at: At) -> float | None:
        """What the group may be chosen by, for a metric; None where nothing may choose."""
        run = self.runs[0].run
        measured = {name for done in run.rounds if done.round > 0 for name in done.metrics}
        name = chosen_by(metric, measured, self.select)
        stat = None if name is None else self.stat(name, at)
        return None if stat is None else stat.mean

    def by_seed(self, metric: str, at: At) -> dict[int, float]:
        """The metric's best or last value of every seed that has it."""
        every = {loaded.seed: loaded.run.value(metric, at) for loaded in self.runs}
        return {seed: value for seed, value in every.items() if value is not None}

    def per_round(self, direction: TrafficDirection) -> float:
        """Bytes per communication round, the mean over seeds."""
        return statistics.fmean(loaded.per_round(direction) for loaded in self.runs)

    def curve(self, metric: str) -> dict[int, Stat]:
        """The metric over seeds by round, where every run that has it measured it."""
        curves = [curve for loaded in self.runs if (curve := loaded.run.curve(metric))]
        common = set.intersection(*map(set, curves)) if curves else set()
        return {r: Stat.of([curve[r] for curve in curves]) for r in sorted(common)}

    def traffic(self) -> dict[int, float]:
        """Return the bytes of all rounds up to each round, the mean over seeds that have rounds."""
        totals = [total for loaded in self.runs if (total := loaded.traffic())]
        common = set.intersection(*map(set, totals)) if totals else set()
        return {r: statistics.fmean(total[r] for total in totals) for r in sorted(common)}


def load(folders: Sequence[Path], select: Select | None = None) -> list[LoadedRun]:
    """The runs at or below the given folders.

    Args:
        folders: where they are.
        select: on which images best rounds are chosen; None: as each run's experiment says.

    Raises:
        UserError: when a folder is missing or holds no run, or a result cannot be read.
    """
    return [LoadedRun(folder, _selecting(run, select)) for folder, run in find_runs(folders)]


def _selecting(run: Run, select: Select | None) -> Run:
    if select is None:
        return run
    config = {**run.info.config, "report": {"select": select}}
    return replace(run, info=replace(run.info, config=config))


def how_chosen(groups: Sequence[Group], at: At) -> str:
    """What the groups' values are: "final", "best on validation", or "best" where they differ."""
    found = {BEST[member.select] for member in groups}
    return at if at == "final" else found.pop() if len(found) == 1 else "best"


def metric_of(runs: Iterable[LoadedRun], name: str) -> Metric:
    """What a metric that some of the runs measured means.

    Raises:
        UserError: when none of them measured it; it names the nearest one.
    """
    known: dict[str, Metric] = {}
    for loaded in runs:
        for measured in {name: None for done in loaded.run.rounds for name in done.metrics}:
            known.setdefault(measured, loaded.run.info.metric(measured))
    if name not in known:
        raise UserError(f"no run has measured '{name}'.{nearest(name, known)}")
    return known[name]


# --- groups --------------------------------------------------------------------------------------


def group(runs: Iterable[LoadedRun]) -> tuple[list[Group], list[str]]:
    """Group runs that differ only in the seed and in how they were executed.

    Runs on different images or labels, or with other texts or weights in files of the same names,
    are never grouped, even with equal configurations.

    Returns:
        The groups, and what was left out: of two runs of one group and seed, the shorter one.
    """
    by_keys: dict[Any, list[LoadedRun]] = defaultdict(list)
    for loaded in runs:
        named = loaded.run.info.files_sha256
        keys = texts_of({key: v for key, v in loaded.keys.items() if key not in named})
        by_keys[tuple(sorted(keys.items())), tuple(sorted(loaded.contents.items()))].append(loaded)
    firsts = [members[0] for members in by_keys.values()]
    groups, notes = [], []
    for label, members in zip(_distinct_labels(firsts), by_keys.values(), strict=True):
        kept: dict[int, LoadedRun] = {}
        for loaded in sorted(members, key=lambda each: -each.run.done):
            if loaded.seed in kept:
                notes.append(
                    f"seed {loaded.seed} of {label} is there twice; {loaded.folder} is left out"
                )
            else:
                kept[loaded.seed] = loaded
        ordered = tuple(kept[seed] for seed in sorted(kept))
        groups.append(Group(label, ordered[0].keys, ordered))
    return groups, notes


def _distinct_labels(runs: Sequence[LoadedRun]) -> list[str]:
    """A label of each configuration; where only contents differ, with the hashes of these."""
    labels = _labels([loaded.keys for loaded in runs])
    alike: dict[str, list[Mapping[str, str | None]]] = defaultdict(list)
    for label, loaded in zip(labels, runs, strict=True):
        alike[label].append(loaded.contents)
    return [
        " ".join([label, *_telling(loaded.contents, alike[label])])
        for label, loaded in zip(labels, runs, strict=True)
    ]


def _telling(own: Mapping[str, str | None], alike: Sequence[Mapping[str, str | None]]) -> list[str]:
    """What tells a run's contents from those of others: "data=0123456789ab"."""
    keys = dict.fromkeys(key for contents in alike for key in contents)
    return [
        f"{key}={(own.get(key) or '?')[:12]}"
        for key in keys
        if len({contents.get(key) for contents in alike}) > 1
    ]


def differing(groups: Sequence[Group]) -> list[str]:
    """Keys in which groups of one method differ, or in which methods differ besides their own."""
    return _differing([group.keys for group in groups])


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    found = []
    for key in dict.fromkeys(key for config in configs for key in config):
        of_method = key.startswith(("algorithm.", "plugins."))
        values: dict[Any, set[str]] = defaultdict(set)
        for config in configs:
            values[config["algorithm.name"] if of_method else None].add(text_of(config.get(key)))
        if any(len(seen) > 1 for seen in values.values()) and key != "algorithm.name":
            found.append(key)
    return found


def _labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The method and the keys that tell its configurations apart: "fedtsp lambda=7"."""
    by_method: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for config in configs:
        by_method[config["algorithm.name"]].append(config)
    labels = {name: iter(_labels_of_one(members)) for name, members in by_method.items()}
    return [next(labels[config["algorithm.name"]]) for config in configs]


def _labels_of_one(configs: Sequence[Mapping[str, Any]]) -> list[str]:
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


def texts_of(keys: Mapping[str, Any]) -> dict[str, str]:
    """Values to compare by, by key."""
    return {key: text_of(value) for key, value in keys.items()}


def text_of(value: Any) -> str:
    """A value to compare by: 7 and 7.0 are the same."""
    return repr(float(value)) if is_number(value) else repr(value)


def show(value: Any) -> str:
    """A value in few characters."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def is_number(value: Any) -> bool:
    """Whether a swept value can stand on an axis."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
