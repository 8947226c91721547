"""Runs on disk as groups over seeds, and all their numbers as one pandas DataFrame."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from fedray.base.errors import UserError, nearest
from fedray.config import EXECUTION_KEYS, flatten
from fedray.results.labels import is_number, short_names, show_value, text_of
from fedray.results.paired import Interval, t_interval
from fedray.storage.metric import BEST, HEADLINE, Metric, Select, chosen_by
from fedray.storage.run import Run, data_name
from fedray.storage.run_folder import RunFolder, find_run_folders

if TYPE_CHECKING:
    import pandas

At = Literal["best", "final"]
TrafficDirection = Literal["up", "down"]

NOT_COMPARED = frozenset(["seed", "name", *EXECUTION_KEYS])
"""Keys of an experiment in which the runs of one group may differ."""
NO_BEST = (
    "no best round: no run has validation images (data.validation_fraction); --select test chooses "
    "on the test, as the papers do"
)


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run with its folder."""

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
        """The configuration by dotted key, without `NOT_COMPARED`; files without their folders."""
        flat = flatten(self.run.info.config)
        flat |= {key: Path(flat[key]).name for key in self.run.info.files_sha256}
        return {key: value for key, value in flat.items() if key not in NOT_COMPARED}

    @property
    def contents(self) -> dict[str, str | None]:
        """Hashes of the run's inputs: images with labels, and files that its experiment names."""
        info = self.run.info
        return {"data": info.data_sha256, **info.files_sha256}

    def traffic(self) -> dict[int, float]:
        """Return the cumulative bytes, uploads and downloads, by round."""
        total, totals = 0.0, {}
        for done in self.run.rounds:
            total += done.up.total_bytes + done.down.total_bytes
            totals[done.round] = total
        return totals

    def per_round(self, direction: TrafficDirection) -> float:
        """Return the mean bytes per communication round, from round 1."""
        rounds = [done for done in self.run.rounds if done.round > 0]
        return statistics.fmean([getattr(d, direction).total_bytes for d in rounds] or [0.0])


@dataclass(frozen=True, eq=False)
class RunGroup:
    """Runs of one configuration with different seeds.

    Attributes:
        label: the method, and the keys in which the group differs from the others.
        keys: the configuration that the runs share.
        runs: one run per seed, in the order of seeds.
        chooser: the metric in whose best round every metric is read.
    """

    label: str
    keys: Mapping[str, Any]
    runs: tuple[LoadedRun, ...]
    chooser: str

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
        """The name of the data set."""
        return data_name(self.runs[0].run.info.config)

    @property
    def select(self) -> Select:
        """Images on which the runs' best rounds are chosen."""
        return self.runs[0].run.info.select

    def by_seed(self, metric: str, at: At) -> dict[int, float]:
        """Return the metric in the chosen or in its last round, of every seed that has it."""
        values = {run.seed: run.run.value(metric, at, self.chooser) for run in self.runs}
        return {seed: value for seed, value in values.items() if value is not None}

    def interval(self, metric: str, at: At) -> Interval | None:
        """Return the metric in the chosen or last round over seeds; None if no run has it."""
        return interval_of(self.by_seed(metric, at).values())

    def ranking_value(self, metric: Metric, at: At) -> float | None:
        """Return the mean of the metric that ranks the group; None if no metric may choose."""
        run = self.runs[0].run
        measured = {name for done in run.rounds if done.round > 0 for name in done.metrics}
        name = chosen_by(metric, measured, self.select)
        values = [] if name is None else list(self.by_seed(name, at).values())
        return statistics.fmean(values) if values else None

    def per_round(self, direction: TrafficDirection) -> float:
        """Return the mean bytes per communication round over seeds."""
        return statistics.fmean(loaded.per_round(direction) for loaded in self.runs)

    def curve(self, metric: str) -> dict[int, Interval]:
        """Return the metric's interval over seeds by round.

        Only rounds measured by all runs count; runs that never measured the metric are ignored.
        """
        return _over_seeds([loaded.run.curve(metric) for loaded in self.runs])

    def traffic(self) -> dict[int, float]:
        """Return the cumulative bytes by round, as means over the seeds that have rounds."""
        totals = _over_seeds([loaded.traffic() for loaded in self.runs])
        return {round_: total.mean for round_, total in totals.items()}


def interval_of(values: Iterable[float | None]) -> Interval | None:
    """Return the interval of the values that are not None; None without any."""
    present = [value for value in values if value is not None]
    return t_interval(present) if present else None


def _over_seeds(curves: Sequence[Mapping[int, float]]) -> dict[int, Interval]:
    nonempty = [curve for curve in curves if curve]
    common = set.intersection(*map(set, nonempty)) if nonempty else set()
    return {r: t_interval([curve[r] for curve in nonempty]) for r in sorted(common)}


# --- reading and grouping -------------------------------------------------------------------------


def load_runs(folders: Sequence[Path], select: Select | None = None) -> list[LoadedRun]:
    """Load the runs in folders and their subfolders.

    Args:
        folders: folders of runs, sweeps or tables.
        select: images on which best rounds are chosen; None: each experiment's report.select.

    Raises:
        UserError: if a folder is missing or holds no run, or a result cannot be read.
    """
    found = [(folder, RunFolder(folder).read()) for folder in find_run_folders(folders)]
    return [LoadedRun(folder, _with_select(run, select)) for folder, run in found]


def _with_select(run: Run, select: Select | None) -> Run:
    if select is None:
        return run
    config = {**run.info.config, "report": {"select": select}}
    return replace(run, info=replace(run.info, config=config))


def metric_of(runs: Iterable[LoadedRun], name: str) -> Metric:
    """Return a metric as the runs that measured it declare it.

    Raises:
        UserError: if no run measured the metric; names the nearest one.
    """
    metrics: dict[str, Metric] = {}
    for loaded in runs:
        for measured in {name: None for done in loaded.run.rounds for name in done.metrics}:
            metrics.setdefault(measured, loaded.run.info.metric(measured))
    if name not in metrics:
        raise UserError(f"no run has measured '{name}'.{nearest(name, metrics)}")
    return metrics[name]


def selection_label(groups: Sequence[RunGroup], at: At) -> str:
    """Return "final", "best on validation", "best on test", or "best" if groups differ."""
    labels = {BEST[member.select] for member in groups}
    return at if at == "final" else labels.pop() if len(labels) == 1 else "best"


def group_runs(
    runs: Iterable[LoadedRun], chooser: str = HEADLINE
) -> tuple[list[RunGroup], list[str]]:
    """Group runs that differ only in their seeds and in keys of execution.

    Runs with different images, labels or contents of input files are never grouped.

    Args:
        runs: the runs to group.
        chooser: the metric in whose best round every metric of a run is read.

    Returns:
        The groups, and a note for each run that was left out: of two runs with the same group and
        seed, the shorter one.
    """
    by_keys: dict[Any, list[LoadedRun]] = defaultdict(list)
    for loaded in runs:
        files = loaded.run.info.files_sha256
        keys = {key: text_of(value) for key, value in loaded.keys.items() if key not in files}
        by_keys[tuple(sorted(keys.items())), tuple(sorted(loaded.contents.items()))].append(loaded)
    firsts = [members[0] for members in by_keys.values()]
    groups, notes = [], []
    for label, members in zip(_distinct_labels(firsts), by_keys.values(), strict=True):
        by_seed: dict[int, LoadedRun] = {}
        for loaded in sorted(members, key=lambda run: -run.run.done):
            if loaded.seed in by_seed:
                notes.append(
                    f"seed {loaded.seed} of {label} has two runs; {loaded.folder} is left out"
                )
            else:
                by_seed[loaded.seed] = loaded
        ordered = tuple(by_seed[seed] for seed in sorted(by_seed))
        groups.append(RunGroup(label, ordered[0].keys, ordered, chooser))
    return groups, notes


def _distinct_labels(runs: Sequence[LoadedRun]) -> list[str]:
    """Return a label for each run, with hashes if only the contents of inputs differ."""
    labels = _labels([loaded.keys for loaded in runs])
    alike: dict[str, list[Mapping[str, str | None]]] = defaultdict(list)
    for label, loaded in zip(labels, runs, strict=True):
        alike[label].append(loaded.contents)
    distinct = []
    for label, loaded in zip(labels, runs, strict=True):
        keys = dict.fromkeys(key for contents in alike[label] for key in contents)
        differ = [key for key in keys if len({other.get(key) for other in alike[label]}) > 1]
        hashes = [f"{key}={(loaded.contents.get(key) or '?')[:12]}" for key in differ]
        distinct.append(" ".join([label, *hashes]))
    return distinct


def differing_keys(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that must be in labels, because they differ.

    Keys of a method count if they differ within the method, other keys if they differ anywhere.
    """
    keys = []
    for key in dict.fromkeys(key for config in configs for key in config):
        of_method = key.startswith(("algorithm.", "plugins."))
        values: dict[Any, set[str]] = defaultdict(set)
        for config in configs:
            values[config["algorithm.name"] if of_method else None].add(text_of(config.get(key)))
        if any(len(distinct) > 1 for distinct in values.values()) and key != "algorithm.name":
            keys.append(key)
    return keys


def _labels(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return labels of the method and the keys that distinguish its runs: "fedtsp lambda=7"."""
    by_method: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for config in configs:
        by_method[config["algorithm.name"]].append(config)
    labels = {name: iter(_labels_of_one(members)) for name, members in by_method.items()}
    return [next(labels[config["algorithm.name"]]) for config in configs]


def _labels_of_one(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = differing_keys(configs)
    short = {key: key if name == "name" else name for key, name in short_names(keys).items()}
    labels = []
    for config in configs:
        words = [str(config["algorithm.name"])]
        for key in keys:
            if key in config:
                words.append(f"{short[key]}={show_value(config[key])}")
            elif _is_implicit(key, config, configs):
                words.append(f"{short[key]}=default")
        labels.append(" ".join(words))
    return labels


def _is_implicit(key: str, config: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if another configuration sets the key for the same component."""
    name = f"{key.rsplit('.', 1)[0]}.name"
    return any(key in other and other.get(name) == config.get(name) for other in configs)


# --- filters, labels and order --------------------------------------------------------------------


def filter_runs(runs: Sequence[LoadedRun], conditions: Sequence[str]) -> list[LoadedRun]:
    """Return the runs whose experiments satisfy all conditions.

    Args:
        runs: the runs to filter.
        conditions: "key=value", or "key=value,value" for any of several values; `algorithm` is the
            method's name.

    Raises:
        UserError: if a condition has no `=`, no run has its key, or no run satisfies it.
    """
    matches = [(loaded, _all_keys(loaded)) for loaded in runs]
    names = sorted({key for _, keys in matches for key in keys})
    for condition in conditions:
        key, sign, text = condition.partition("=")
        if not sign:
            raise UserError(f"--filter {condition}: expected key=value, such as algorithm=fedtsp")
        if key not in names:
            raise UserError(f"--filter {condition}: no run has the key.{nearest(key, names)}")
        values = [_comparable_text(value) for value in text.split(",")]
        before = {str(keys.get(key)) for _, keys in matches}
        matches = [
            (loaded, keys) for loaded, keys in matches if _comparable_text(keys.get(key)) in values
        ]
        if not matches:
            raise UserError(
                f"--filter {condition}: no run has this value; there are "
                f"{', '.join(sorted(before))}"
            )
    return [loaded for loaded, _ in matches]


def _all_keys(loaded: LoadedRun) -> dict[str, Any]:
    return {**flatten(loaded.run.info.config), "algorithm": loaded.method}


def _comparable_text(value: Any) -> str:
    """Return a text for comparing values of files and command lines: 7, 7.0 and "7" are equal."""
    parsed = value
    if isinstance(value, str) and value:
        with suppress(yaml.YAMLError):  # any text is allowed
            parsed = yaml.safe_load(value)
    return repr(float(parsed)) if is_number(parsed) else str(parsed)


def relabel(groups: Sequence[RunGroup], labels: Sequence[str]) -> list[RunGroup]:
    """Return the groups with other labels.

    Args:
        groups: the groups.
        labels: "WHO=TEXT", where WHO is a label, a run's folder, or a method. If several groups
            have the method, TEXT replaces only the method in their labels.

    Raises:
        UserError: if WHO names no group, or two groups would have the same label.
    """
    texts: dict[int, str] = {}
    for label in labels:
        texts |= _new_labels(groups, label)
    renamed = [replace(member, label=texts.get(i, member.label)) for i, member in enumerate(groups)]
    repeated = [label for label, count in Counter(g.label for g in renamed).items() if count > 1]
    if labels and repeated:
        raise UserError(f"--label: several rows would be {repeated[0]!r}; use different labels")
    return renamed


def _new_labels(groups: Sequence[RunGroup], label: str) -> dict[int, str]:
    """Return the new labels by index of their groups; WHO itself may contain `=`."""
    for end in (index for index, char in enumerate(label) if char == "="):
        who, text = label[:end], label[end + 1 :].strip()
        named = [i for i, member in enumerate(groups) if _has_name(member, who)]
        of_method = [i for i, member in enumerate(groups) if member.method == who]
        if len(named) == 1 and text:
            return {named[0]: text}
        if of_method and text:
            return {i: groups[i].label.replace(who, text, 1) for i in of_method}
    who, labels = label.partition("=")[0], [member.label for member in groups]
    raise UserError(
        f"--label {label}: expected WHO=TEXT, where WHO is one row's label or one of its runs' "
        f"folders.{nearest(who, labels)}"
    )


def _has_name(member: RunGroup, who: str) -> bool:
    folders = [loaded.folder for loaded in member.runs]
    return who in {member.label, *(f.name for f in folders)} or Path(who).resolve() in folders


def rank_groups(groups: Sequence[RunGroup], metric: Metric, at: At) -> list[RunGroup]:
    """Sort groups by the mean of the metric that chooses, best first; groups without it last."""
    sign = 1 if metric.direction == "min" else -1

    def rank(member: RunGroup) -> tuple[bool, bool, float]:
        chooser, values = member.ranking_value(metric, at), member.by_seed(metric.name, at)
        value = chooser if chooser is not None else statistics.fmean(values.values() or [0.0])
        return not values, chooser is None, sign * value

    return sorted(groups, key=rank)


def numbers_frame(groups: Sequence[RunGroup], metrics: Sequence[str]) -> pandas.DataFrame:
    """Return all numbers as a data frame with a row for each run and metric.

    Columns: label, method, data, select, seed, metric, best and final (NaN if missing), up and
    down (mean bytes per round), folder, partition and images (hashes).
    """
    import pandas

    rows = [
        {
            "label": member.label,
            "method": member.method,
            "data": member.data,
            "select": member.select,
            "seed": loaded.seed,
            "metric": metric,
            "best": loaded.run.value(metric, "best", member.chooser),
            "final": loaded.run.value(metric, "final", member.chooser),
            "up": loaded.per_round("up"),
            "down": loaded.per_round("down"),
            "folder": str(loaded.folder),
            "partition": loaded.run.info.partition_sha256,
            "images": loaded.run.info.data_sha256,
        }
        for metric in metrics
        for member in groups
        for loaded in member.runs
    ]
    numbers = {"best": float, "final": float}
    return pandas.DataFrame(rows).astype(numbers) if rows else pandas.DataFrame(rows)
