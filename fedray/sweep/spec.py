"""A sweep as written in tune/: what is swept, how it is searched, at which scale; and its grid."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from fedray.compare.labels import config_label as words
from fedray.config import (
    RESOURCE_KEYS,
    Experiment,
    FileName,
    Frozen,
    MissingRoot,
    ReportConfig,
    Seed,
    Tree,
    find_yaml,
    flatten,
    is_key,
    override,
    parents_first,
    parse_assignments,
    read_experiment,
    read_mapping,
    resolve_root,
    validate,
    with_plugins,
)
from fedray.data.validation import gives_validation
from fedray.errors import UserError, nearest, one_line, shown
from fedray.files import check_name, file_name
from fedray.records import BEST, VALIDATION, Metric, find_metric
from fedray.shipped import folders

Distribution = Literal["grid", "choice", "uniform", "loguniform", "randint"]
Config = dict[str, Any]
MOST_TRIALS = 100_000
"""Configurations of one sweep; more can neither be run nor looked at."""
Chosen = Literal["validation", "test", "nothing"]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)


@dataclass(frozen=True)
class Axis:
    """One swept key, or several that vary jointly.

    Attributes:
        key: the experiment's dotted key; several are separated by commas.
        distribution: grid and choice list values; the others give a range.
        values: the listed values, or the range's lowest and highest value, both included; of
            several keys, each value is a list with one for each key.
    """

    key: str
    distribution: Distribution
    values: tuple[Any, ...]

    @property
    def is_listed(self) -> bool:
        """Whether the axis has finitely many values, listed."""
        return self.distribution in ("grid", "choice")

    @property
    def keys(self) -> tuple[str, ...]:
        """The experiment's keys that the axis sets."""
        return tuple(key.strip() for key in self.key.split(","))

    @property
    def configs(self) -> list[Config]:
        """What each value sets."""
        if len(self.keys) == 1:
            return [{self.key: value} for value in self.values]
        return [dict(zip(self.keys, value, strict=True)) for value in self.values]

    def tree(self) -> Tree:
        """The axis as written in YAML."""
        return {self.distribution: list(self.values)}


class Asha(Frozen):
    """Asynchronous successive halving; its clock is the federated round."""

    grace_rounds: int = Field(5, ge=1, le=100_000)
    """Rounds that every trial may run."""
    reduction_factor: int = Field(3, ge=2, le=10_000)
    """Of so many trials at a milestone, one goes on."""


class Scale(Frozen):
    """What is swept at one scale."""

    experiment: str
    """A shipped experiment, or a YAML file."""
    set: Tree = Field(default_factory=dict)
    """Overrides of the experiment, for every trial."""
    seeds: list[int] | None = None
    """Replaces the sweep's seeds."""
    num_samples: int | None = Field(None, ge=1, le=MOST_TRIALS)
    """Replaces the sweep's num_samples."""
    max_concurrent: int | None = Field(None, ge=1, le=100_000)
    """Trials at a time; None: as many as the cluster holds."""
    space: Tree | None = None
    """Replaces the sweep's space."""
    metric: str | None = None
    """Replaces the sweep's metric."""
    mean_over: str | None = None
    """Replaces the sweep's mean_over."""
    select: Chosen | None = None
    """Replaces the sweep's select."""
    columns: list[str] | None = None
    """Replaces the sweep's columns."""


class Sweep(Frozen):
    """A file in tune/."""

    answers: str
    """The figure, table or question that this sweep answers."""
    search: Literal["grid", "tpe", "random", "cmaes"] = "grid"
    """grid: every combination; tpe, random, cmaes: Optuna's samplers."""
    space: Tree
    """The swept keys: {grid: [...]}, {choice: [...]}, {uniform: [lo, hi]}, {loguniform: [lo, hi]},
    {randint: [lo, hi]}, ends included. Keys that vary together are written as one, separated by
    commas: `data.clients, participation: {grid: [[10, 1.0], [20, 0.5]]}`."""
    metric: str = "local_accuracy"
    """A metric of result.json. One of the test is chosen on validation images: by
    validation/local_accuracy and the like; its value on the test is shown beside it."""
    select: Chosen | None = None
    """On which images rounds and configurations are chosen: validation; test, as the papers do,
    which marks what it chose; or nothing: a grid that is a figure or a table, in which no
    configuration is the best one (with at: final). None: as the experiment's report.select says."""
    at: Literal["best", "final"] = "best"
    """The objective: the value in the metric's best round, never round 0, or in the last."""
    mode: Literal["max", "min"] = "max"
    """Whether more is better."""
    mean_over: str | None = None
    """A key of the space, such as data.root: configurations are ranked by the mean over its values,
    and the second table has the means; for a grid."""
    columns: list[str] = Field(default_factory=list)
    """Further metrics, for a second table; in the round of the objective."""
    num_samples: int = Field(16, ge=1, le=MOST_TRIALS)
    """Configurations that tpe, random and cmaes try."""
    seeds: list[int] = Field(default_factory=lambda: [0])
    """Seeds of every configuration, run in lockstep within a trial; the objective is of their
    mean."""
    asha: Asha | None = None
    """Stops bad trials early; None runs all to the end."""
    search_seed: Seed = 0
    """Seed of the sampler."""
    scales: Tree
    """laptop and paper."""


class SweepPlan(Frozen):
    """A sweep at one scale with the command line's keys: all that defines what is run.

    It is stored whole in sweep.json, so that a resumed sweep does the same.
    """

    sweep: FileName
    scale: str
    answers: str
    search: Literal["grid", "tpe", "random", "cmaes"]
    space: Tree
    metric: str
    objective: str
    """The number that chooses: the metric on validation images, or the metric itself."""
    how: str
    """What marks what it chose: "best on validation", "best on test"; else "best"."""
    select: Chosen
    at: Literal["best", "final"]
    mode: Literal["max", "min"]
    num_samples: int | None
    """None for a whole grid."""
    seeds: list[int]
    asha: Asha | None
    search_seed: int
    max_concurrent: int | None
    experiment: str
    """What the best configuration's command line names."""
    mean_over: str | None = None
    """The axis whose values are averaged over, as the space names it."""
    columns: list[str] = Field(default_factory=list)
    """Further metrics of the second table."""
    roots: dict[str, str] = Field(default_factory=dict)
    """Where each swept data.root is: absolute, for other machines' sake."""
    base: Tree
    """The experiment's file, as a tree; its data.root is absolute, and its plug-ins have their
    texts, for other machines' sake."""
    set: Tree
    """Overrides of it: the scale's, then the command line's."""

    @property
    def axes(self) -> list[Axis]:
        """The swept keys, in the file's order."""
        return [parse_axis(key, value) for key, value in self.space.items()]

    @property
    def keys(self) -> list[str]:
        """The experiment's keys that are swept."""
        return [key for axis in self.axes for key in axis.keys]

    @property
    def plugins(self) -> dict[str, str]:
        """The hashes of the plug-ins, by their modules."""
        return {each["module"]: each["sha256"] for each in self.base.get("plugins", ())}

    def some_experiment(self) -> Experiment:
        """The experiment of the space's first configuration."""
        return self.experiment_of(first(self.axes), self.seeds[0])

    def experiment_of(self, config: Mapping[str, Any], seed: int) -> Experiment:
        """The experiment of one configuration and seed.

        Raises:
            UserError: when the configuration is out of bounds or contradicts itself.
        """
        from fedray.runtime.resolve import from_tree

        placed = {
            key: self.roots.get(value, value) if key == "data.root" else value
            for key, value in config.items()
        }
        swept = parents_first(placed.items())
        return from_tree(self.base, [*self.set.items(), *swept, ("seed", seed)])


# --- from file to plan ---------------------------------------------------------------------------


def read_sweep(path: Path) -> Sweep:
    """Read and check a sweep's file, every scale of it.

    Raises:
        UserError: with one sentence about the first thing that is wrong.
    """
    name = f"sweep {check_name(path.stem)}"
    sweep = validate(Sweep, read_mapping(path), name)
    if not sweep.scales:
        raise UserError(f"{name}.scales is empty; give laptop: {{experiment: ...}}")
    for label, tree in sweep.scales.items():
        if label not in ("laptop", "paper"):
            raise UserError(f"{name}.scales: '{label}' is neither laptop nor paper")
        scale = validate(Scale, tree, f"{name}.scales.{label}")
        space = sweep.space if scale.space is None else scale.space
        if wrong := [key for key in scale.set if not is_key(key)]:
            raise UserError(f"{name}.scales.{label}.set: {shown(wrong[0])} is no key")
        if "seed" in scale.set:
            raise UserError(f"{name}.scales.{label}.set: seed is a sweep's; write seeds: [...]")
        check_no_select(scale.set, f"{name}.scales.{label}.set")
        check_space(space, sweep.search, name)
        check_seeds(sweep.seeds if scale.seeds is None else scale.seeds, name)
        check_mean_over(scale.mean_over or sweep.mean_over, space, sweep, name)
        check_select(scale.select or sweep.select, sweep, name)
    return sweep


def plan_sweep(
    name: str,
    assignments: Iterable[str] = (),
    scale: str = "laptop",
    samples: int | None = None,
    plugins: Iterable[str] = (),
) -> SweepPlan:
    """Find a sweep, take one scale of it, and lay the command line's keys on its experiment.

    `seed=3` or `seed=0,1,2` among the keys replaces the sweep's seeds; a swept key cannot be set.

    Args:
        name: a sweep's name or file.
        assignments: "key=value" for the experiment of every trial.
        scale: laptop or paper.
        samples: number of configurations, instead of the file's.
        plugins: files and modules besides those that the experiment names.

    Raises:
        UserError: with one sentence about the first thing that is wrong.
    """
    path = find_yaml(name, folders("sweeps"), "sweep")
    sweep = read_sweep(path)
    if scale not in sweep.scales:
        there = ", ".join(sweep.scales)
        raise UserError(f"sweep {path.stem} has no {scale} scale, only {there}")
    chosen = validate(Scale, sweep.scales[scale])
    space = sweep.space if chosen.space is None else chosen.space
    seeds = sweep.seeds if chosen.seeds is None else chosen.seeds
    pairs, seeds = _with_assignments(chosen, seeds, space, assignments, path.stem)
    base = _with_absolute_root(read_experiment(chosen.experiment), {*pairs, *_swept(space)})
    base = with_plugins(base, [("plugins", pairs.pop("plugins", None))], plugins)
    select = _select(chosen.select or sweep.select, base, pairs)
    metric = check_mode(chosen.metric or sweep.metric, sweep.mode, select)
    objective, how = objective_of_metric(metric, select)
    if samples is None and sweep.search != "grid":
        samples = chosen.num_samples or sweep.num_samples
    return SweepPlan(
        sweep=path.stem,
        scale=scale,
        answers=sweep.answers,
        search=sweep.search,
        space=space,
        metric=metric.removeprefix(VALIDATION),
        objective=objective,
        how=how,
        select=select,
        at=sweep.at,
        mode=sweep.mode,
        num_samples=samples,
        seeds=seeds,
        asha=sweep.asha,
        search_seed=sweep.search_seed,
        max_concurrent=chosen.max_concurrent,
        experiment=chosen.experiment,
        mean_over=chosen.mean_over or sweep.mean_over,
        columns=sweep.columns if chosen.columns is None else chosen.columns,
        roots=_roots(space),
        base=base,
        set=pairs,
    )


def _select(asked: Chosen | None, base: Tree, pairs: Tree) -> Chosen:
    """On which images is chosen; trials' own best rounds are chosen on the same, in `pairs`."""
    if asked in ("validation", "test"):
        pairs.setdefault("report.select", asked)
    elif asked == "nothing":
        return asked
    tree = override({"report": base.get("report", {})}, pairs.items())
    found: Chosen = validate(ReportConfig, tree["report"], "report").select
    return found


def check_mode(metric: str, mode: str, select: Chosen) -> str:
    """The metric; refused where the worst of it would be looked for.

    Raises:
        UserError: with the mode that the metric's declaration asks for.
    """
    meant = find_metric(metric, _declared())
    if meant is not None and select != "nothing" and meant.direction not in (None, mode):
        better = "less" if meant.direction == "min" else "more"
        raise UserError(
            f"mode: {mode} looks for the worst {metric}, of which {better} is better; set mode: "
            f"{meant.direction}"
        )
    return metric


def _declared() -> tuple[Metric, ...]:
    """What all metrics mean, those of methods' analyses too."""
    from fedray.core import algorithms
    from fedray.evaluation.metrics import declared_metrics
    from fedray.evaluation.protocols import analysis_metrics

    analyses = [each for method in algorithms.entries() for each in analysis_metrics(method)]
    return (*declared_metrics(), *analyses)


def objective_of_metric(metric: str, select: Chosen) -> tuple[str, str]:
    """The number that chooses between configurations, and what marks what it chose.

    Args:
        metric: as the sweep names it.
        select: on which images is chosen.

    Raises:
        UserError: when the metric is one of the test that validation images cannot give.
    """
    declared = _declared()
    meant = find_metric(metric, declared)
    if meant is not None and meant.on == "validation":
        return metric, BEST["validation"]
    if select == "nothing" or meant is None or meant.on != "test":
        return metric, "best"
    if select == "test":
        return metric, BEST["test"]
    if f"{VALIDATION}{meant.name}" not in {each.name for each in declared}:
        raise UserError(
            f"metric: {metric} exists on test images alone, and select=validation chooses on "
            "validation images; choose another metric and show this one in columns, or set "
            "select: nothing (with at: final) or select: test"
        )
    return f"{VALIDATION}{metric}", BEST["validation"]


def _with_assignments(
    scale: Scale, seeds: list[int], space: Tree, assignments: Iterable[str], name: str
) -> tuple[Tree, list[int]]:
    """The scale's keys and the seeds, under the command line's assignments."""
    pairs = dict(parents_first(scale.set.items()))
    swept = _swept(space)
    for key, value in parse_assignments(assignments):
        if key == "seed":
            seeds = _seeds_in(value)
        elif inner := swept.intersection([key, *flatten({key: value})]):
            raise UserError(
                f"{min(inner)} is what sweep {name} varies; leave {key}={value} out, "
                f"or run it alone: python -m fedray.run {scale.experiment} {key}={value}"
            )
        else:
            pairs.pop(key, None)
            pairs[key] = value
    check_seeds(seeds, f"sweep {name}")
    if pairs.get("data.root") is not None:
        pairs["data.root"] = str(resolve_root(str(pairs["data.root"])))
    return pairs, seeds


def _seeds_in(value: Any) -> list[Any]:
    """The seeds of `seed=3`, `seed=0,1,2` and `seed=[0,1,2]`; what is none stays as it is."""
    if isinstance(value, str):
        words = [word.strip() for word in value.split(",")]
        return [int(word) if word.isdecimal() else word for word in words]
    return value if isinstance(value, list) else [value]


def _swept(space: Tree) -> set[str]:
    """The keys that a space sets."""
    return {key for axis, tree in space.items() for key in parse_axis(axis, tree).keys}


def _with_absolute_root(base: Tree, changed: Collection[str]) -> Tree:
    """The experiment with the place of its data, unless another one is set."""
    data = base.get("data")
    if "data.root" in changed or not isinstance(data, dict) or data.get("root") is None:
        return base
    return {**base, "data": {**data, "root": str(resolve_root(str(data["root"])))}}


def _roots(space: Tree) -> dict[str, str]:
    """Where the swept folders of data are.

    Raises:
        UserError: when one is not there.
    """
    configs = [config for key, tree in space.items() for config in parse_axis(key, tree).configs]
    roots = [config["data.root"] for config in configs if config.get("data.root") is not None]
    if wrong := [root for root in roots if not isinstance(root, str)]:
        raise UserError(f"data.root={shown(wrong[0])} is no folder's name")
    return {root: str(resolve_root(root)) for root in sorted(set(roots))}


def check_mean_over(key: str | None, space: Tree, sweep: Sweep, name: str) -> None:
    """Refuse a mean over what the space does not list.

    Raises:
        UserError: with the keys that it does.
    """
    if key is None:
        return
    if key not in space:
        raise UserError(
            f"{name}.mean_over={shown(key)} is no key of the space.{nearest(key, list(space))}"
        )
    if sweep.search != "grid" or len(space) < 2:
        raise UserError(
            f"{name}.mean_over={key} compares the other keys of a grid; use search: grid and sweep "
            "another key, or leave mean_over out"
        )
    if sweep.asha is not None:
        raise UserError(
            f"{name}.mean_over={key} with asha would halve trials on one {key} against those on "
            "another; set asha: null, or leave mean_over out"
        )


def check_select(select: Chosen | None, sweep: Sweep, name: str) -> None:
    """Refuse to choose nothing where something must be chosen.

    Raises:
        UserError: with what has to change.
    """
    if select != "nothing":
        return
    wrong = [
        ("search", sweep.search, "grid") if sweep.search != "grid" else None,
        ("at", sweep.at, "final") if sweep.at != "final" else None,
        ("asha", "set", "null") if sweep.asha is not None else None,
    ]
    for key, found, right in filter(None, wrong):
        raise UserError(
            f"{name}: select: nothing chooses neither rounds nor configurations, and {key} is "
            f"{found}; set {key}: {right}, or select: validation"
        )


def check_no_select(keys: Iterable[str], where: str) -> None:
    """Refuse a key of a sweep's or a table's file that chooses on test images without a mark.

    Raises:
        UserError: naming the switch, `select`, which marks every number that it chooses.
    """
    for key in keys:
        if key.partition(".")[0] == "report":
            raise UserError(
                f"{where}: {key} would choose rounds on images that the page does not name; write "
                "select: test (or validation) as a key of the file, which marks every number"
            )


def check_seeds(seeds: Sequence[Any], name: str) -> None:
    """Refuse seeds that are none, negative or twice there.

    Raises:
        UserError: with what was found.
    """
    whole = [seed for seed in seeds if isinstance(seed, int) and not isinstance(seed, bool)]
    bad = len(whole) < len(seeds) or any(not 0 <= seed < 2**63 for seed in whole)
    if bad or not seeds or len(set(seeds)) < len(seeds):
        raise UserError(
            f"{name}: seeds={shown(list(seeds))}, expected different whole numbers from 0, for "
            "example [0]"
        )


# --- the space -----------------------------------------------------------------------------------


def parse_axis(key: str, tree: Any) -> Axis:
    """Read `{grid: [1, 7]}`, `{uniform: [0, 1]}` and the like.

    Raises:
        UserError: when it is anything else, lists nothing, or its ends are not in order.
    """
    shown_key = one_line(key)[:100]
    example = f"for example {shown_key}: {{grid: [1, 7]}}"
    if not isinstance(tree, Mapping) or len(tree) != 1:
        raise UserError(
            f"space.{shown_key} is {shown(tree)}, expected one of {', '.join(DISTRIBUTIONS)}; "
            f"{example}"
        )
    if not all(map(is_key, Axis(key, "grid", ()).keys)):
        raise UserError(f"space.{shown_key}: that is no key, nor keys with commas; {example}")
    distribution, values = next(iter(tree.items()))
    if distribution not in DISTRIBUTIONS:
        raise UserError(
            f"space.{shown_key}: there is no {shown(distribution)}."
            f"{nearest(str(distribution), DISTRIBUTIONS)}"
        )
    where = f"space.{shown_key}.{distribution}"
    if not isinstance(values, list) or not values:
        raise UserError(f"{where} is {shown(values)}, expected a list of values; {example}")
    axis = Axis(key, distribution, tuple(values))
    (_check_list if axis.is_listed else _check_range)(axis, where)
    return axis


def _check_list(axis: Axis, where: str) -> None:
    values, count = axis.values, len(axis.keys)
    if len(set(map(_notation, values))) < len(values):
        raise UserError(f"{where} lists a value twice: {shown(list(values))}")
    for value in values if count > 1 else ():
        if not isinstance(value, list) or len(value) != count:
            raise UserError(
                f"{where} lists {shown(value)}, expected a list of {count} values, "
                f"one for each of {', '.join(axis.keys)}"
            )


def _notation(value: Any) -> str:
    """A value's notation, the same for what an experiment takes for the same: 1 and 1.0."""
    is_float = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if is_float else value, sort_keys=True)


def _check_range(axis: Axis, where: str) -> None:
    if "," in axis.key:
        raise UserError(
            f"space.{axis.key}: keys vary together in lists alone; write {{grid: [...]}}"
        )
    values = list(axis.values)
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    finite = len(values) == len(numbers) == 2 and all(map(math.isfinite, numbers))
    if not finite or not numbers[0] < numbers[1]:
        raise UserError(
            f"{where} is {shown(values)}, expected [lowest, highest] with lowest < highest"
        )
    if axis.distribution == "loguniform" and numbers[0] <= 0:
        raise UserError(f"{where} starts at {numbers[0]}, expected more than 0")
    if axis.distribution == "randint" and not all(isinstance(v, int) for v in numbers):
        raise UserError(f"{where} is {shown(values)}, expected two whole numbers")


def check_space(space: Tree, search: str, name: str) -> None:
    """Refuse a space that the search cannot walk.

    Raises:
        UserError: naming the key that has to change.
    """
    if not space:
        raise UserError(
            f"{name}.space is empty; name what is swept, for example algorithm.lambda: "
            "{grid: [1, 7]}"
        )
    axes = [parse_axis(key, tree) for key, tree in space.items()]
    swept = [key for axis in axes for key in axis.keys]
    if twice := [key for key, times in Counter(swept).items() if times > 1]:
        raise UserError(f"{name}.space names {twice[0]} twice; leave one of them out")
    for axis in axes:
        _check_searchable(axis, search, name)
    points = math.prod(len(axis.values) for axis in axes)
    if search == "grid" and points > MOST_TRIALS:
        raise UserError(
            f"{name}.space is a grid of {points} configurations, expected at most {MOST_TRIALS}; "
            "list fewer values, or use search: tpe"
        )
    if search == "cmaes" and len(axes) < 2:
        raise UserError(f"{name}: search: cmaes needs at least two swept keys; use search: tpe")


def _check_searchable(axis: Axis, search: str, name: str) -> None:
    if "plugins" in axis.keys:
        raise UserError(
            f"{name}.space: plug-ins are not swept; name all of them (--plugin), and sweep over "
            "what they register"
        )
    if "seed" in axis.keys:
        raise UserError(f"{name}.space: seeds are not swept, they are averaged; use seeds: ")
    check_no_select(axis.keys, f"{name}.space")
    if search == "grid":
        if not axis.is_listed:
            raise UserError(
                f"{name}: search: grid needs lists, and space.{axis.key} is {axis.distribution}; "
                "write {grid: [...]}, or search: tpe"
            )
        return
    if search == "cmaes" and axis.distribution not in ("uniform", "loguniform"):
        raise UserError(
            f"{name}: search: cmaes walks continuous spaces, and space.{axis.key} is "
            f"{axis.distribution}; write {{uniform: [lo, hi]}}, or search: tpe"
        )
    if not all(v is None or isinstance(v, bool | int | float | str) for v in axis.values):
        raise UserError(
            f"{name}: search: {search} chooses between plain values, and space.{axis.key} "
            f"lists {shown(list(axis.values))}; use search: grid"
        )
    if axis.key in RESOURCE_KEYS:
        raise UserError(
            f"{name}: space.{axis.key} changes what a trial asks of the cluster, which is "
            "checked before anything starts; use search: grid"
        )


def grid(axes: Sequence[Axis], samples: int | None = None) -> list[Config]:
    """Every combination of the axes' values, the last key fastest.

    Args:
        axes: listed axes.
        samples: take only so many, spread evenly, both ends included.
    """
    combinations = itertools.product(*(axis.configs for axis in axes))
    every = [_joined(combination) for combination in combinations]
    if samples is None or samples >= len(every):
        return every
    if samples == 1:
        return every[:1]
    step = (len(every) - 1) / (samples - 1)
    return [every[round(i * step)] for i in range(samples)]


def corners(axes: Sequence[Axis]) -> list[Config]:
    """Configurations that show whether bounds hold: every axis's values or ends, one at a time."""
    base = first(axes)
    return [{**base, **config} for axis in axes for config in axis.configs]


def first(axes: Sequence[Axis]) -> Config:
    """Every axis's first value."""
    return _joined(axis.configs[0] for axis in axes)


def _joined(configs: Iterable[Config]) -> Config:
    return {key: value for config in configs for key, value in config.items()}


def check_configurations(plan: SweepPlan) -> list[Config]:
    """Check what will be tried: a whole grid, or the ends of every range.

    Returns:
        The grid, or the corners that were checked.

    Raises:
        UserError: for the first configuration that is out of bounds.
    """
    listed = plan.search == "grid"
    configs = grid(plan.axes, plan.num_samples) if listed else corners(plan.axes)
    for config in configs:
        try:
            _check_choice(plan, plan.experiment_of(config, plan.seeds[0]))
        except MissingRoot as error:
            raise MissingRoot(f"{words(config)}: {error}") from None
        except UserError as error:
            raise UserError(f"{words(config)}: {error}") from None
    return configs


def _check_choice(plan: SweepPlan, experiment: Experiment) -> None:
    """Refuse to choose on validation images that nobody will have, or by what a method lacks.

    Raises:
        UserError: with the ways out.
    """
    if plan.objective.startswith(VALIDATION) and not gives_validation(experiment.data):
        raise UserError(
            f"{plan.sweep} chooses by {plan.objective}, and no client has validation images; set "
            "data.validation_fraction, for example 0.1, or report.select=test to choose on the "
            "test as papers do, or in the sweep's file select: nothing for a figure that chooses "
            "nothing"
        )
    from fedray.core import algorithms
    from fedray.evaluation.metrics import check_spelling, lacks

    method = algorithms.get(experiment.algorithm.name)
    if lacks(method, plan.objective):
        raise UserError(
            f"{method.name} has no {plan.objective}; set another metric in the sweep's file"
        )
    for name in (plan.metric, *plan.columns):
        check_spelling(method, name)


# --- names ---------------------------------------------------------------------------------------


def folder_name(number: int, config: Mapping[str, Any]) -> str:
    """The folder of a trial: "trial_00003_lambda=7"."""
    return f"trial_{number:05d}_{file_name(words(config, ','))}"
