"""Runs on disk as groups over seeds, and all their numbers as one pandas DataFrame."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

from fedray.base.errors import UserError, nearest
from fedray.config import EXECUTION_KEYS, flatten, parse_yaml
from fedray.results.labels import short_names, show_value, text_of
from fedray.results.numbers import Numbers, scale_of
from fedray.results.paired import Interval, Side, t_interval
from fedray.storage.metric import BEST, HEADLINE, Metric, Select, chosen_by
from fedray.storage.run import Run, data_name
from fedray.storage.run_folder import RunFolder, find_run_folders

At = Literal["best", "final"]
TrafficDirection = Literal["up", "down"]

NOT_COMPARED = frozenset(["seed", "name", *EXECUTION_KEYS])
"""Keys of an experiment in which the runs of one group may differ."""
NO_BEST = (
    "no best round: no run has validation images (data.validation_fraction), or report.select=test "
    "as in many papers"
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
    def data(self) -> str:
        """The name of the data set."""
        return data_name(self.run.info.config)

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
        label: row, and column if there are several: "fedtsp lambda=7 @ digits alpha=0.1".
        row: the method, with the keys (but those of the data) in which its groups differ.
        column: the data set, with the keys of the data in which others of its name differ.
        keys: the configuration that the runs share.
        runs: one run per seed, in the order of seeds.
        chooser: the metric in whose best round every metric is read.
    """

    label: str
    row: str
    column: str
    keys: Mapping[str, Any]
    runs: tuple[LoadedRun, ...]
    chooser: str

    @property
    def method(self) -> str:
        """The algorithm's name."""
        return self.runs[0].method

    @property
    def side(self) -> Side:
        """The group in the frame of numbers."""
        return Side(self.row, self.column)

    @property
    def select(self) -> Select:
        """Images on which the runs' best rounds are chosen."""
        return self.runs[0].run.info.select

    def by_seed(self, metric: Metric, at: At) -> dict[int, float]:
        """Return the metric in the chosen or in its last round, of every seed that has it."""
        values = {run.seed: run.run.value(metric.name, at, self.chooser) for run in self.runs}
        unit = scale_of(metric)
        return {seed: unit * value for seed, value in values.items() if value is not None}

    def per_round(self, direction: TrafficDirection) -> float:
        """Return the mean bytes per communication round over seeds."""
        return statistics.fmean(loaded.per_round(direction) for loaded in self.runs)

    def curve(self, metric: Metric) -> dict[int, Interval]:
        """Return the metric's interval over seeds by round.

        Only rounds measured by all runs count; runs that never measured the metric are ignored.
        """
        unit = scale_of(metric)
        return _over_seeds([loaded.run.curve(metric.name) for loaded in self.runs], unit)

    def traffic(self) -> dict[int, float]:
        """Return the cumulative bytes by round, as means over the seeds that have rounds."""
        totals = _over_seeds([loaded.traffic() for loaded in self.runs])
        return {round_: total.mean for round_, total in totals.items()}


def interval_of(values: Iterable[float | None], metric: Metric) -> Interval | None:
    """Return the interval of the values that are not None, in the unit that is shown.

    None without any value.
    """
    present = [scale_of(metric) * value for value in values if value is not None]
    return t_interval(present) if present else None


def _over_seeds(curves: Sequence[Mapping[int, float]], unit: float = 1.0) -> dict[int, Interval]:
    nonempty = [curve for curve in curves if curve]
    common = set.intersection(*map(set, nonempty)) if nonempty else set()
    return {r: t_interval([unit * curve[r] for curve in nonempty]) for r in sorted(common)}


# --- reading and grouping -------------------------------------------------------------------------


def load_runs(folders: Sequence[Path]) -> list[LoadedRun]:
    """Load the runs in folders of runs, sweeps or tables, and in their subfolders.

    Raises:
        UserError: if a folder is missing or holds no run, or a result cannot be read.
    """
    return [LoadedRun(folder, RunFolder(folder).read()) for folder in find_run_folders(folders)]


def metric_of(runs: Sequence[LoadedRun], name: str) -> Metric:
    """Return a metric as the first run that measured it declares it.

    Raises:
        UserError: if no run measured the metric; names the nearest one.
    """
    measured = {loaded: {n for done in loaded.run.rounds for n in done.metrics} for loaded in runs}
    for loaded, names in measured.items():
        if name in names:
            return loaded.run.info.metric(name)
    known = set().union(*measured.values())
    raise UserError(f"no run has measured '{name}'.{nearest(name, known)}")


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
    by_config: dict[Any, list[LoadedRun]] = defaultdict(list)
    for loaded in runs:
        files = loaded.run.info.files_sha256
        keys = {key: text_of(value) for key, value in loaded.keys.items() if key not in files}
        by_config[tuple(sorted({**keys, **loaded.contents}.items()))].append(loaded)
    firsts = [members[0] for members in by_config.values()]
    rows = _labels([run.method for run in firsts], firsts, of_data=False)
    columns = _labels([run.data for run in firsts], firsts, of_data=True)
    groups, notes = [], []
    for row, column, members in zip(rows, columns, by_config.values(), strict=True):
        label = row if len({*columns}) == 1 else f"{row} @ {column}"
        by_seed: dict[int, LoadedRun] = {}
        for loaded in sorted(members, key=lambda run: -run.run.done):
            if by_seed.setdefault(loaded.seed, loaded) is not loaded:
                notes.append(
                    f"seed {loaded.seed} of {label} has two runs; {loaded.folder} is left out"
                )
        ordered = tuple(by_seed[seed] for seed in sorted(by_seed))
        groups.append(RunGroup(label, row, column, ordered[0].keys, ordered, chooser))
    return groups, notes


def _labels(names: Sequence[str], runs: Sequence[LoadedRun], *, of_data: bool) -> list[str]:
    """Return a label for each run: its name, and how runs of this name differ: "fedtsp lambda=7".

    They differ in keys of the data, or in all others; where these are equal, in hashes of inputs.
    """

    def part(mapping: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in mapping.items() if (k.partition(".")[0] == "data") == of_data}

    labels = with_differences(names, [part(run.keys) for run in runs])
    hashes = [{k: (v or "?")[:12] for k, v in part(run.contents).items()} for run in runs]
    return with_differences(labels, hashes)


def with_differences(names: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return each name with the values of the keys in which configurations of this name differ."""
    alike: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for name, config in zip(names, configs, strict=True):
        alike[name].append(config)
    labels = []
    for name, config in zip(names, configs, strict=True):
        keys = dict.fromkeys(key for other in alike[name] for key in other)
        differ = [k for k in keys if len({text_of(other.get(k)) for other in alike[name]}) > 1]
        short = short_names(differ)
        words = [f"{short[key]}={show_value(config[key])}" for key in differ if key in config]
        labels.append(" ".join([name, *words]))
    return labels


# --- filters, labels and order --------------------------------------------------------------------


def filter_runs(runs: Sequence[LoadedRun], conditions: Sequence[str]) -> list[LoadedRun]:
    """Return the runs whose experiments satisfy all conditions.

    Args:
        runs: the runs to filter.
        conditions: "key=value", or "key=value,value" for any of several values; `algorithm` is the
            method's name.

    Raises:
        UserError: if no run has the key of a condition, or no run satisfies it.
    """
    kept = list(runs)
    for condition in conditions:
        key, _, text = condition.partition("=")
        configs = [{**flatten(run.run.info.config), "algorithm": run.method} for run in kept]
        names = sorted({name for config in configs for name in config})
        if key not in names:
            raise UserError(f"--filter {condition}: no run has the key.{nearest(key, names)}")
        wanted = {text_of(parse_yaml(value, "--filter")) for value in [text, *text.split(",")]}
        values = [config.get(key) for config in configs]
        kept = [run for run, value in zip(kept, values, strict=True) if text_of(value) in wanted]
        if not kept:
            there = ", ".join(sorted({str(value) for value in values}))
            raise UserError(f"--filter {condition}: no run has this value; there are {there}")
    return kept


def relabel(groups: Sequence[RunGroup], labels: Sequence[str]) -> list[RunGroup]:
    """Return the groups with other labels.

    Args:
        groups: the groups.
        labels: "WHO=TEXT", where WHO is a row, or a method, which TEXT replaces in all its rows.

    Raises:
        UserError: if WHO names no group, or two groups would have the same label.
    """
    renamed = list(groups)
    for label in labels:
        names = {name for group in renamed for name in (group.row, group.method)}
        matches = [name for name in names if label.startswith(f"{name}=")]
        if not matches:
            near = nearest(label.partition("=")[0], names)
            raise UserError(f"--label {label}: expected WHO=TEXT, WHO is the label of a row.{near}")
        who = max(matches, key=len)  # rows have "=" in their labels, too
        text = label.removeprefix(f"{who}=").strip()
        for index, group in enumerate(renamed):
            if who in (group.row, group.method):
                row, whole = (of.replace(who, text, 1) for of in (group.row, group.label))
                renamed[index] = replace(group, row=row, label=whole)
    if len({group.label for group in renamed}) < len(renamed):
        raise UserError("--label: several rows would have one label; use different labels")
    return renamed


def rank_groups(groups: Sequence[RunGroup], metric: Metric, at: At) -> list[RunGroup]:
    """Sort groups by the mean of the metric that chooses, best first; groups without it last."""
    sign = 1 if metric.direction == "min" else -1

    def rank(member: RunGroup) -> tuple[bool, bool, float]:
        run, values = member.runs[0].run, member.by_seed(metric, at)
        measured = {name for done in run.rounds if done.round > 0 for name in done.metrics}
        name = chosen_by(metric, measured, member.select)
        chosen = {} if name is None else member.by_seed(run.info.metric(name), at)
        mean = statistics.fmean((chosen or values).values() or [0.0])
        return not values, not chosen, sign * mean

    return sorted(groups, key=rank)


def frame_of_groups(groups: Sequence[RunGroup], metrics: Sequence[Metric], at: At) -> Numbers:
    """Return the runs of groups as one frame: `RunGroup` has row and column."""
    lines: list[list[Any]] = []
    for metric, member in product(metrics, groups):
        values = member.by_seed(metric, at)
        for loaded in member.runs:
            run = loaded.run
            last = max(run.curve(metric.name), default=None)
            chosen = run.best_round(member.chooser) if at == "best" else last
            lines.append(
                [
                    member.row,
                    member.column,
                    loaded.seed,
                    metric.name,
                    values.get(loaded.seed, math.nan),
                    chosen,
                    run.costs.wall_seconds,
                    sum(done.up.total_bytes + done.down.total_bytes for done in run.rounds),
                    "finished" if run.is_finished else "not finished",
                    str(loaded.folder),
                ]
            )
    return Numbers.of(lines, [member.column for member in groups])
