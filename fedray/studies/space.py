"""The search space of a study: its axes, their values, and the extension of a grid at its edge.

A choice at the edge of a grid means that the grid was too small. The grid is extended at this edge
within the budget, with the factor of its last two values (or their step, if a value is not
positive). Joint axes are not extended, since scaling each key alone may give a setting that nobody
would try.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from fedray.base.errors import UserError, nearest, one_line, shown
from fedray.base.streams import Streams
from fedray.config import RESOURCES, Tree, is_key, role_of
from fedray.results.design import MOST_CONFIGURATIONS, Config, Search
from fedray.results.record import Edge, End, Why

Distribution = Literal["grid", "choice", "uniform", "loguniform", "randint"]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)
MOST_DRAWS = 100
"""Maximal number of random draws for each configuration that is wanted."""


@dataclass(frozen=True)
class Axis:
    """One searched key, or several that vary jointly.

    Attributes:
        key: dotted key of the experiment, or several keys separated by commas.
        distribution: grid and choice list values; the others give a range.
        values: the listed values, or the lowest and highest value of the range, both included.
            With several keys, each value is a list with one entry per key.
    """

    key: str
    distribution: Distribution
    values: tuple[Any, ...]

    @property
    def is_listed(self) -> bool:
        """Return True if the axis lists its values."""
        return self.distribution in ("grid", "choice")

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the experiment that the axis sets."""
        return tuple(key.strip() for key in self.key.split(","))

    @property
    def configs(self) -> list[Config]:
        """For each value, the keys that it sets."""
        if len(self.keys) == 1:
            return [{self.key: value} for value in self.values]
        return [dict(zip(self.keys, value, strict=True)) for value in self.values]

    @property
    def can_continue(self) -> bool:
        """True if the grid can be extended: it lists numbers of a single key."""
        return (
            self.distribution == "grid"
            and len(self.keys) == 1
            and all(map(_is_number, self.values))
        )


# --- reading --------------------------------------------------------------------------------------


def parse_space(space: Tree) -> list[Axis]:
    """Return the axes of a space, in the file's order."""
    return [parse_axis(key, tree) for key, tree in space.items()]


def parse_axis(key: str, tree: Any) -> Axis:
    """Read `{grid: [1, 7]}`, `{uniform: [0, 1]}` and the like.

    Raises:
        UserError: if `tree` has another form, lists nothing, or its ends are not in order.
    """
    shown_key = one_line(key)[:100]
    example = f"for example {shown_key}: {{grid: [1, 7]}}"
    if not isinstance(tree, Mapping) or len(tree) != 1:
        raise UserError(
            f"space.{shown_key} is {shown(tree)}, expected one of {', '.join(DISTRIBUTIONS)}; "
            f"{example}"
        )
    if not all(map(is_key, Axis(key, "grid", ()).keys)):
        raise UserError(f"space.{shown_key} is no key, nor keys separated by commas; {example}")
    distribution, values = next(iter(tree.items()))
    if distribution not in DISTRIBUTIONS:
        raise UserError(
            f"space.{shown_key}: there is no distribution {shown(distribution)}."
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
    if len(set(map(_json_text, values))) < len(values):
        raise UserError(f"{where} lists a value twice: {shown(list(values))}")
    for value in values if count > 1 else ():
        if not isinstance(value, list) or len(value) != count:
            raise UserError(
                f"{where} lists {shown(value)}, expected a list of {count} values, "
                f"one for each of {', '.join(axis.keys)}"
            )


def _json_text(value: Any) -> str:
    """Return a value as JSON text; 1 and 1.0 give the same text, as they do in an experiment."""
    is_float = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if is_float else value, sort_keys=True)


def _check_range(axis: Axis, where: str) -> None:
    if "," in axis.key:
        raise UserError(
            f"space.{axis.key}: keys vary together only in lists; write {{grid: [...]}}"
        )
    values = list(axis.values)
    numbers = [value for value in values if _is_number(value)]
    finite = len(values) == len(numbers) == 2 and all(map(math.isfinite, numbers))
    if not finite or not numbers[0] < numbers[1]:
        raise UserError(
            f"{where} is {shown(values)}, expected [lowest, highest] with lowest < highest"
        )
    if axis.distribution == "loguniform" and numbers[0] <= 0:
        raise UserError(f"{where} starts at {numbers[0]}, expected more than 0")
    if axis.distribution == "randint" and not all(isinstance(v, int) for v in numbers):
        raise UserError(f"{where} is {shown(values)}, expected two whole numbers")


def check_space(space: Tree, search: Search, where: str) -> None:
    """Raise an error if a search does not support a space.

    Raises:
        UserError: naming the key that has to change.
    """
    axes = parse_space(space)
    searched = [key for axis in axes for key in axis.keys]
    if twice := [key for key, times in Counter(searched).items() if times > 1]:
        raise UserError(f"{where}.space names {twice[0]} twice; leave one of them out")
    for axis in axes:
        _check_searchable(axis, search, where)
    points = math.prod(len(axis.values) for axis in axes)
    if search == "grid" and points > MOST_CONFIGURATIONS:
        raise UserError(
            f"{where}.space is a grid of {points} configurations, expected at most "
            f"{MOST_CONFIGURATIONS}; list fewer values, or use tuning.search: random"
        )


def _check_searchable(axis: Axis, search: Search, where: str) -> None:
    if "plugins" in axis.keys:
        raise UserError(
            f"{where}.space: plug-ins cannot be searched; name all of them (--plugin), and search "
            "the names that they register"
        )
    if "seed" in axis.keys:
        raise UserError(f"{where}.space: seeds cannot be searched; list them in report.seeds")
    if wrong := chooses_rounds(axis.keys):
        raise UserError(f"{where}.space: {wrong}")
    if search == "grid" and not axis.is_listed:
        raise UserError(
            f"{where}: search: grid needs lists, and space.{axis.key} is {axis.distribution}; "
            "write {grid: [...]}, or tuning.search: random"
        )
    if search != "tpe":
        return
    if not all(v is None or isinstance(v, bool | int | float | str) for v in axis.values):
        raise UserError(
            f"{where}: search: tpe chooses between plain values, and space.{axis.key} "
            f"lists {shown(list(axis.values))}; use search: grid"
        )
    if role_of(axis.key) == RESOURCES:
        raise UserError(
            f"{where}: space.{axis.key} changes the resources of a run, which tpe would change "
            "after the cluster was checked; use search: grid"
        )


def chooses_rounds(keys: Iterable[str]) -> str:
    """Return what is wrong with a key of `report`, which would choose unmarked; "" without one."""
    for key in keys:
        if key.partition(".")[0] == "report":
            return (
                f"{key} would choose rounds on images that the page does not name; write select: "
                "test (or validation) as a key of the file, which marks every number"
            )
    return ""


# --- configurations -------------------------------------------------------------------------------


def grid(axes: Sequence[Axis], samples: int | None = None) -> list[Config]:
    """Return every combination of the axes' values, the last key fastest.

    Args:
        axes: listed axes.
        samples: number of combinations to return, spread evenly, both ends included; None: all.
    """
    combinations = [
        _merge(configs) for configs in itertools.product(*(axis.configs for axis in axes))
    ]
    if samples is None or samples >= len(combinations):
        return combinations
    if samples == 1:
        return combinations[:1]
    step = (len(combinations) - 1) / (samples - 1)
    return [combinations[round(i * step)] for i in range(samples)]


def points(axes: Sequence[Axis]) -> Iterator[Config]:
    """Yield every point of a space of lists and whole numbers; nothing of other spaces."""
    if count_points(axes) is not None:
        values = [axis.configs if axis.is_listed else _whole_numbers(axis) for axis in axes]
        yield from map(_merge, itertools.product(*values))


def count_points(axes: Sequence[Axis]) -> int | None:
    """Return the number of points of a space; None if a range has all numbers between its ends."""
    if any(axis.distribution in ("uniform", "loguniform") for axis in axes):
        return None
    sizes = [
        len(axis.values) if axis.is_listed else axis.values[1] - axis.values[0] + 1 for axis in axes
    ]
    return math.prod(sizes)


def _whole_numbers(axis: Axis) -> list[Config]:
    low, high = axis.values
    return [{axis.key: value} for value in range(low, min(high, low + MOST_CONFIGURATIONS) + 1)]


def corners(axes: Sequence[Axis]) -> list[Config]:
    """Return configurations with every value or end of each axis, one axis at a time.

    They suffice to check the bounds of all keys.
    """
    base = _merge(axis.configs[0] for axis in axes)
    return [{**base, **config} for axis in axes for config in axis.configs]


def draws(axes: Sequence[Axis], count: int, seed: int) -> list[Config]:
    """Return `count` distinct random draws, or the whole space if it is smaller.

    Listed values are equally likely. All methods get the same draws of a shared axis: the random
    numbers depend on the axis, the index of the draw and the seed only.
    """
    streams, size = Streams(seed), count_points(axes)
    generators = {
        axis.key: np.random.default_rng(streams.entropy(f"table search {axis.key}"))
        for axis in axes
    }
    drawn: list[Config] = []
    for _ in range(MOST_DRAWS * count):  # values of a narrow range are rounded to a few
        if len(drawn) == (count if size is None else min(count, size)):
            break
        config = _merge(_draw(axis, float(generators[axis.key].random())) for axis in axes)
        if config not in drawn:
            drawn.append(config)
    return drawn


def _draw(axis: Axis, point: float) -> Config:
    """Return the value of an axis at a point of [0, 1)."""
    if axis.is_listed:
        return axis.configs[int(point * len(axis.values))]
    low, high = axis.values
    if axis.distribution == "randint":
        return {axis.key: int(low + math.floor(point * (high - low + 1)))}
    if axis.distribution == "loguniform":
        return {axis.key: _round(math.exp(math.log(low) + point * math.log(high / low)))}
    return {axis.key: _round(low + point * (high - low))}


def _merge(configs: Iterable[Config]) -> Config:
    return {key: value for config in configs for key, value in config.items()}


# --- edges ----------------------------------------------------------------------------------------


def continue_grid(
    tried: Sequence[Config],
    best: Config,
    axes: Sequence[Axis],
    budget: int,
    is_valid: Callable[[Config], bool],
    *,
    extend: bool = True,
) -> tuple[list[Config], list[Edge]]:
    """Return configurations beyond the edges at which the best one lies, and the remaining edges.

    Args:
        tried: all configurations so far.
        best: the best of them.
        axes: the axes of the space.
        budget: maximum number of configurations in all.
        is_valid: returns True if an experiment accepts the configuration.
        extend: False reports all edges without extending grids.
    """
    extensions: list[Config] = []
    edges: list[Edge] = []
    for axis in axes:
        end = _end(best, axis, tried)
        if end is None:
            continue
        if end in ("first", "last"):
            edges.append(Edge(axis.key, [best[key] for key in axis.keys], end, "joint"))
            continue
        beyond = _next_config(best, axis, tried, end)
        why: Why | None = None
        if not extend:
            why = "off"
        elif not is_valid(beyond):
            why = "bound"
        elif len(tried) + len(extensions) >= budget:
            why = "budget"
        if why is not None:
            edges.append(Edge(axis.key, best[axis.key], end, why))
        elif beyond not in extensions:
            extensions.append(beyond)
    return extensions, edges


def merge_edges(edges_of_seeds: Mapping[int, Sequence[Edge]]) -> list[Edge]:
    """Return the edges of all seeds, each once with the seeds whose choice lies at it."""
    merged: dict[str, tuple[Edge, list[int]]] = {}
    for seed, edges in edges_of_seeds.items():
        for edge in edges:
            merged.setdefault(repr(edge), (edge, []))[1].append(seed)
    return [
        edge if len(seeds) == len(edges_of_seeds) else replace(edge, seeds=seeds)
        for edge, seeds in merged.values()
    ]


def _end(best: Config, axis: Axis, tried: Sequence[Config]) -> End | None:
    """Return the end of an axis at which a configuration lies, or None."""
    if axis.can_continue:
        line, value = _line(best, axis.key, tried), best[axis.key]
        if len(line) < 2 or value not in (line[0], line[-1]):
            return None
        return "lowest" if value == line[0] else "highest"
    if _is_ordered(axis):
        values = [best[key] for key in axis.keys]
        if values in (axis.values[0], axis.values[-1]):
            return "first" if values == axis.values[0] else "last"
    return None


def _next_config(best: Config, axis: Axis, tried: Sequence[Config], end: End) -> Config:
    """Return the next configuration beyond `best`, which lies at this end of an axis."""
    line = _line(best, axis.key, tried)
    before = line[1] if end == "lowest" else line[-2]
    return {**best, axis.key: next_value(before, best[axis.key])}


def _line(best: Config, key: str, tried: Sequence[Config]) -> list[Any]:
    """Return the values of an axis that were tried with the other keys of `best`, ascending.

    If `best` is the only such configuration, because another axis was extended to it, return the
    values tried with any configuration.
    """
    line = {config[key] for config in tried if _equal_except(config, best, key)}
    return sorted(line if len(line) > 1 else {config[key] for config in tried})


def next_value(before: float, last: float) -> float:
    """Return the number after `before` and `last` by their factor, or by their step if one is <= 0.

    Whole numbers stay whole, and move by one at least.
    """
    value = last * last / before if before > 0 and last > 0 else 2 * last - before
    if isinstance(before, int) and isinstance(last, int):
        rounded = round(value)
        return rounded if rounded != last else last + (1 if last > before else -1)
    return _round(value)


def _round(value: float) -> float:
    """Round to six significant digits: 0.3, not 0.30000000000000004."""
    return float(f"{value:.6g}")


def _is_ordered(axis: Axis) -> bool:
    """Return True for a grid of joint keys in which the numbers of each key are in order."""
    if axis.distribution != "grid" or len(axis.keys) == 1 or len(axis.values) == 1:
        return False
    columns = [list(column) for column in zip(*axis.values, strict=True)]
    return all(
        all(map(_is_number, column)) and sorted(column) in (column, column[::-1])
        for column in columns
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal_except(a: Mapping[str, Any], b: Mapping[str, Any], key: str) -> bool:
    return all(a[other] == b[other] for other in b if other != key)
