"""What a study searches: its axes, their values, and how a grid is continued at its edge.

A choice at the edge of a grid says that the grid ended too early. The grid is continued there, with
the factor (or, if a value is not positive, the step) of its last two values, within the budget.
Joint axes are not continued: scaling each key alone may give a setting that nobody would try.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from fedray.config import RESOURCE_KEYS, Tree, is_key
from fedray.errors import UserError, nearest, one_line, shown
from fedray.streams import Streams

Distribution = Literal["grid", "choice", "uniform", "loguniform", "randint"]
Search = Literal["grid", "random", "tpe"]
End = Literal["lowest", "highest", "first", "last"]
Why = Literal["budget", "bound", "off", "late", "joint"]
Config = dict[str, Any]
"""The values of the searched keys."""
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)
MOST_CONFIGURATIONS = 100_000


@dataclass(frozen=True)
class Axis:
    """One searched key, or several that vary jointly.

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
        """Return True if the axis lists its values."""
        return self.distribution in ("grid", "choice")

    @property
    def keys(self) -> tuple[str, ...]:
        """The experiment's keys that the axis sets."""
        return tuple(key.strip() for key in self.key.split(","))

    @property
    def configs(self) -> list[Config]:
        """Return the keys that each value sets."""
        if len(self.keys) == 1:
            return [{self.key: value} for value in self.values]
        return [dict(zip(self.keys, value, strict=True)) for value in self.values]

    @property
    def can_continue(self) -> bool:
        """Return True if the axis is a grid of one key's numbers."""
        return (
            self.distribution == "grid" and len(self.keys) == 1 and all(map(_number, self.values))
        )


# --- reading --------------------------------------------------------------------------------------


def parse_space(space: Tree) -> list[Axis]:
    """Return the axes of a space, in the file's order."""
    return [parse_axis(key, tree) for key, tree in space.items()]


def parse_axis(key: str, tree: Any) -> Axis:
    """Read `{grid: [1, 7]}`, `{uniform: [0, 1]}` and the like.

    Raises:
        UserError: if it is anything else, lists nothing, or its ends are not in order.
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
    """Write a value; 1 and 1.0, which an experiment takes for the same, alike."""
    is_float = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if is_float else value, sort_keys=True)


def _check_range(axis: Axis, where: str) -> None:
    if "," in axis.key:
        raise UserError(
            f"space.{axis.key}: keys vary together in lists alone; write {{grid: [...]}}"
        )
    values = list(axis.values)
    numbers = [value for value in values if _number(value)]
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
    """Check that a search can walk a space.

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
            f"{where}.space: plug-ins are not searched; name all of them (--plugin), and search "
            "what they register"
        )
    if "seed" in axis.keys:
        raise UserError(f"{where}.space: seeds are not searched, they are averaged; use seeds: ")
    check_no_select(axis.keys, f"{where}.space")
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
    if axis.key in RESOURCE_KEYS:
        raise UserError(
            f"{where}: space.{axis.key} changes what a run asks of the cluster, which is "
            "checked before anything starts; use search: grid"
        )


def check_no_select(keys: Iterable[str], where: str) -> None:
    """Refuse a key that chooses on test images without marking the numbers.

    Raises:
        UserError: naming the switch, `select`, which marks every number that it chooses.
    """
    for key in keys:
        if key.partition(".")[0] == "report":
            raise UserError(
                f"{where}: {key} would choose rounds on images that the page does not name; write "
                "select: test (or validation) as a key of the file, which marks every number"
            )


# --- configurations -------------------------------------------------------------------------------


def grid(axes: Sequence[Axis], samples: int | None = None) -> list[Config]:
    """Return every combination of the axes' values, the last key fastest.

    Args:
        axes: listed axes.
        samples: the number of values to take, spread evenly, both ends included.
    """
    every = [_joined(each) for each in itertools.product(*(axis.configs for axis in axes))]
    if samples is None or samples >= len(every):
        return every
    if samples == 1:
        return every[:1]
    step = (len(every) - 1) / (samples - 1)
    return [every[round(i * step)] for i in range(samples)]


def corners(axes: Sequence[Axis]) -> list[Config]:
    """Return configurations that show if bounds hold: every value or end, one axis at a time."""
    base = _joined(axis.configs[0] for axis in axes)
    return [{**base, **config} for axis in axes for config in axis.configs]


def draws(axes: Sequence[Axis], count: int, seed: int) -> list[Config]:
    """Return at most `count` independent draws, each once; of a list uniform.

    The draws of an axis are the same for all methods: a point of the unit interval for each axis
    and number of the draw.
    """
    streams = Streams(seed)
    points = {
        axis.key: np.random.default_rng(streams.entropy(f"table search {axis.key}")).random(count)
        for axis in axes
    }
    drawn: list[Config] = []
    for number in range(count):
        config = _joined(_draw(axis, float(points[axis.key][number])) for axis in axes)
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
        return {axis.key: _rounded(math.exp(math.log(low) + point * math.log(high / low)))}
    return {axis.key: _rounded(low + point * (high - low))}


def _joined(configs: Iterable[Config]) -> Config:
    return {key: value for config in configs for key, value in config.items()}


# --- edges ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edge:
    """A choice at the end of what was tried on an axis.

    Attributes:
        key: the axis; keys that vary together are separated by commas.
        value: the chosen value; of keys that vary together, a list with one for each.
        end: which end it is; first or last in the list, of keys that vary together.
        why: why the grid does not go on there: "budget" or "bound", "off" if continuing is
            switched off, "late" if a better choice diverged only when it was reported, "joint"
            if keys vary together.
    """

    key: str
    value: Any
    end: End
    why: Why

    def __str__(self) -> str:
        if self.end in ("lowest", "highest"):
            return f"{self.key}={self.value:g} is the {self.end} that was tried"
        pairs = zip(self.key.split(","), self.value, strict=True)
        values = " ".join(f"{key.strip()}={value:g}" for key, value in pairs)
        return f"{values} is the {self.end} of its list"

    @property
    def name(self) -> str:
        """The axis without its keys' prefixes: "lr", "lambda_start, lambda_end"."""
        return ", ".join(key.strip().rpartition(".")[2] for key in self.key.split(","))


def continue_grid(
    known: Sequence[Config],
    choices: Sequence[Config],
    axes: Sequence[Axis],
    budget: int,
    is_valid: Callable[[Config], bool],
    *,
    extend: bool = True,
) -> tuple[list[Config], list[Edge]]:
    """Return what to try next because most choices lie at an edge, and the edges that stay.

    Args:
        known: all configurations so far.
        choices: the best one of each choice, which seeds make by themselves or together.
        axes: what is searched.
        budget: how many configurations there may be in all.
        is_valid: returns True for a configuration that an experiment can have.
        extend: whether grids are continued at all.
    """
    wanted: list[Config] = []
    edges: list[Edge] = []
    for axis in axes:
        best, end = _at_edge(choices, axis, known)
        if best is None or end is None:
            continue
        if end in ("first", "last"):
            edges.append(Edge(axis.key, [best[key] for key in axis.keys], end, "joint"))
            continue
        beyond = _beyond(best, axis, known, end)
        why: Why | None = None
        if not extend:
            why = "off"
        elif not is_valid(beyond):
            why = "bound"
        elif len(known) + len(wanted) >= budget:
            why = "budget"
        if why is not None:
            edges.append(Edge(axis.key, best[axis.key], end, why))
        elif beyond not in wanted:
            wanted.append(beyond)
    return wanted, edges


def _at_edge(
    choices: Sequence[Config], axis: Axis, known: Sequence[Config]
) -> tuple[Config | None, End | None]:
    """Return the edge at which more than half of the choices lie, and the commonest one there."""
    ends = [_end(choice, axis, known) for choice in choices]
    for end, count in Counter(end for end in ends if end is not None).items():
        if 2 * count > len(choices):
            there = [choice for choice, at in zip(choices, ends, strict=True) if at == end]
            return max(there, key=there.count), end
    return None, None


def _end(best: Config, axis: Axis, known: Sequence[Config]) -> End | None:
    """Return the end of an axis at which a configuration is; None: at none."""
    if axis.can_continue:
        line, value = _line(best, axis.key, known), best[axis.key]
        if len(line) < 2 or value not in (line[0], line[-1]):
            return None
        return "lowest" if value == line[0] else "highest"
    if _is_ordered(axis):
        values = [best[key] for key in axis.keys]
        if values in (axis.values[0], axis.values[-1]):
            return "first" if values == axis.values[0] else "last"
    return None


def _beyond(best: Config, axis: Axis, known: Sequence[Config], end: End) -> Config:
    """Return the configuration beyond one that is at this end of an axis."""
    line = _line(best, axis.key, known)
    before = line[1] if end == "lowest" else line[-2]
    return {**best, axis.key: next_value(before, best[axis.key])}


def _line(best: Config, key: str, known: Sequence[Config]) -> list[Any]:
    """Return the values of an axis that were tried with the best one's others, ascending.

    If that is the best one alone, as another axis was continued to it: those tried with any.
    """
    line = {config[key] for config in known if _equal_besides(config, best, key)}
    return sorted(line if len(line) > 1 else {config[key] for config in known})


def next_value(before: float, last: float) -> float:
    """Continue numbers by their factor, or by their step if one is not positive.

    Whole numbers stay whole, and move by one at least.
    """
    value = last * last / before if before > 0 and last > 0 else 2 * last - before
    if isinstance(before, int) and isinstance(last, int):
        whole = round(value)
        return whole if whole != last else last + (1 if last > before else -1)
    return _rounded(value)


def _rounded(value: float) -> float:
    """Keep six significant digits: 0.3, not 0.30000000000000004."""
    return float(f"{value:.6g}")


def _is_ordered(axis: Axis) -> bool:
    """Return True for a grid of keys that vary together, each one's numbers in order."""
    if axis.distribution != "grid" or len(axis.keys) == 1 or len(axis.values) == 1:
        return False
    columns = [list(column) for column in zip(*axis.values, strict=True)]
    return all(
        all(map(_number, column)) and sorted(column) in (column, column[::-1]) for column in columns
    )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal_besides(a: Mapping[str, Any], b: Mapping[str, Any], key: str) -> bool:
    return all(a[other] == b[other] for other in b if other != key)
