"""The search space of a study: its axes, their values, and the continuation of a grid at its end.

Ranges are those of Ray Tune by name and meaning. A choice at the end of a grid of numbers means
that the grid was too small; the next value there follows by the factor of the last two values, or
by their step if a value is not positive. Joint axes are not continued, since scaling each key alone
may give a setting that nobody would try.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from fedray.base.errors import UserError, one_line, shown
from fedray.base.streams import Streams
from fedray.config import RESOURCES, Tree, is_key, role_of
from fedray.results.design import MOST_CONFIGURATIONS, Config, Search

Distribution = Literal[
    "grid", "choice", "uniform", "quniform", "loguniform", "randint", "qrandint", "lograndint"
]
DISTRIBUTIONS: tuple[Distribution, ...] = get_args(Distribution)
WHOLE = ("randint", "qrandint", "lograndint")
"""Ranges of whole numbers."""
MOST_DRAWS = 100
"""Maximal number of random draws for each configuration that is wanted."""


@dataclass(frozen=True)
class Axis:
    """One searched key, or several that vary jointly.

    Attributes:
        key: dotted key of the experiment, or several keys separated by commas.
        distribution: grid and choice list values; the others are ranges of Ray Tune.
        values: the listed values, or the arguments of the range: lowest, highest (excluded for
            whole numbers) and, with q, the step. With several keys, each value is a list with one
            entry per key.
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
        return split_key(self.key)

    @property
    def configs(self) -> list[Config]:
        """For each value, the keys that it sets; of a range, its ends."""
        values = self.values if self.is_listed else self.ends
        return [split_keys({self.key: value}) for value in values]

    @property
    def ends(self) -> tuple[Any, Any]:
        """The lowest and the highest value of a range."""
        low, high = self.values[:2]
        return low, high - 1 if self.distribution in ("randint", "lograndint") else high

    @property
    def can_continue(self) -> bool:
        """True if the grid can be continued: it lists numbers of a single key."""
        is_grid = self.distribution == "grid" and len(self.keys) == 1
        return is_grid and all(map(_is_number, self.values))


def split_key(key: str) -> tuple[str, ...]:
    """Return the keys of a joint key, which commas separate."""
    return tuple(part.strip() for part in key.split(","))


def split_keys(config: Mapping[str, Any]) -> Config:
    """Return a configuration with each joint key and its values split into single keys."""
    split: Config = {}
    for key, value in config.items():
        keys = split_key(key)
        split |= {key: value} if len(keys) == 1 else dict(zip(keys, value, strict=True))
    return split


# --- reading --------------------------------------------------------------------------------------


def parse_space(space: Tree) -> list[Axis]:
    """Return the axes of a space, in the file's order.

    Raises:
        UserError: if an axis has another form than `{grid: [1, 7]}` or `{uniform: [0, 1]}`, lists
            nothing or a value twice, or its ends are not in order.
    """
    return [parse_axis(key, tree) for key, tree in space.items()]


def parse_axis(key: str, tree: Any) -> Axis:
    """Return one axis; see `parse_space`."""
    where = f"space.{one_line(key)[:100]}"
    distribution, values = next(iter(tree.items())) if isinstance(tree, dict) and tree else ("", 0)
    if len(tree or ()) != 1 or distribution not in DISTRIBUTIONS or not isinstance(values, list):
        raise UserError(
            f"{where} is {shown(tree)}, expected a list after one of {', '.join(DISTRIBUTIONS)}, "
            "for example {grid: [1, 7]}"
        )
    axis = Axis(key, distribution, tuple(values))
    wrong = "no key, nor keys separated by commas" if not all(map(is_key, axis.keys)) else ""
    wrong = wrong or (_wrong_list(axis) if axis.is_listed else _wrong_range(axis))
    if wrong:
        raise UserError(f"{where}: {shown(values)} {wrong}")
    return axis


def _wrong_list(axis: Axis) -> str:
    """Return what is wrong with listed values; "" if nothing is."""
    count = len(axis.keys)
    texts = set(map(_json_text, axis.values))
    if not axis.values or len(texts) < len(axis.values):
        return "lists nothing, or a value twice"
    if count > 1 and not all(isinstance(v, list) and len(v) == count for v in axis.values):
        return f"expected lists of {count} values, one for each of {', '.join(axis.keys)}"
    return ""


def _json_text(value: Any) -> str:
    """Return a value as JSON text; 1 and 1.0 give the same text, as they do in an experiment."""
    is_float = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if is_float else value, sort_keys=True)


def _wrong_range(axis: Axis) -> str:
    """Return what is wrong with the arguments of a range; "" if nothing is."""
    values, kind = list(axis.values), axis.distribution
    count = 3 if kind.startswith("q") else 2
    numbers = [value for value in values if _is_number(value) and math.isfinite(value)]
    if "," in axis.key:
        return "keys vary together only in lists"
    if len(values) != count or len(numbers) != count or not numbers[0] < numbers[1]:
        return f"expected [lowest, highest{', step' * (count - 2)}] with lowest < highest"
    if ("log" in kind and numbers[0] <= 0) or (numbers[2:] and numbers[2] <= 0):
        return "expected numbers above 0"
    if kind in WHOLE and not all(isinstance(v, int) for v in numbers):
        return "expected whole numbers"
    return ""


def check_space(space: Tree, search: Search, where: str) -> None:
    """Raise an error if a search does not support a space.

    Raises:
        UserError: naming the key that has to change.
    """
    axes = parse_space(space)
    searched = [key for axis in axes for key in axis.keys]
    if twice := [key for key in searched if searched.count(key) > 1]:
        raise UserError(f"{where}.space names {twice[0]} twice; leave one of them out")
    for key in searched:
        if key in ("plugins", "seed") or key.partition(".")[0] == "report":
            raise UserError(f"{where}.space: {key} cannot be searched; set it for the study")
        if search == "optuna" and role_of(key) == RESOURCES:
            raise UserError(
                f"{where}: space.{key} changes the resources of a run, which Optuna would change "
                "after the cluster was checked; use search: grid"
            )
    if search == "grid":
        for axis in axes:
            if not axis.is_listed:
                raise UserError(
                    f"{where}: search: grid needs lists, and space.{axis.key} is "
                    f"{axis.distribution}; write {{grid: [...]}}, or tuning.search: random"
                )
        if math.prod(len(axis.values) for axis in axes) > MOST_CONFIGURATIONS:
            raise UserError(f"{where}.space is a grid of more than {MOST_CONFIGURATIONS} points")


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


def corners(axes: Sequence[Axis]) -> list[Config]:
    """Return configurations with every value or end of each axis, one axis at a time.

    They suffice to check the bounds of all keys.
    """
    base = _merge(axis.configs[0] for axis in axes)
    return [{**base, **config} for axis in axes for config in axis.configs]


def draws(axes: Sequence[Axis], count: int) -> list[Config]:
    """Return `count` distinct random draws, or fewer if the space has fewer points.

    Listed values are equally likely. All methods get the same draws of a shared axis: the random
    numbers depend on the axis and the index of the draw only.
    """
    streams = Streams(0)
    generators = {
        axis.key: np.random.default_rng(streams.entropy(f"table search {axis.key}"))
        for axis in axes
    }
    drawn: list[Config] = []
    for _ in range(MOST_DRAWS * count):  # values of a narrow range are rounded to a few
        if len(drawn) == count:
            break
        config = _merge(_draw(axis, float(generators[axis.key].random())) for axis in axes)
        if config not in drawn:
            drawn.append(config)
    return drawn


def _draw(axis: Axis, point: float) -> Config:
    """Return the value of an axis at a point of [0, 1)."""
    if axis.is_listed:
        return axis.configs[int(point * len(axis.values))]
    (low, high, *steps), kind = axis.values, axis.distribution
    if "log" in kind:
        value = math.exp(math.log(low) + point * math.log(high / low))
    else:
        value = low + point * (high - low)
    for step in steps:
        value = round(value / step) * step
    return {axis.key: math.floor(value + 1e-9) if kind in WHOLE else _round(value)}


def _merge(configs: Iterable[Config]) -> Config:
    return {key: value for config in configs for key, value in config.items()}


# --- the ends of grids ----------------------------------------------------------------------------


def beyond(
    axes: Sequence[Axis], tried: Sequence[Config], best: Config
) -> Iterator[tuple[str, Config]]:
    """Yield the ends of grids at which the best configuration lies, each with the next one there.

    An end is a text, "lr=0.1 is the highest that was tried".

    Args:
        axes: the axes of the space.
        tried: all configurations so far.
        best: the best of them.
    """
    for axis in axes:
        line = _line(best, axis.key, tried) if axis.can_continue else []
        if len(line) < 2 or best[axis.key] not in (line[0], line[-1]):
            continue
        value = best[axis.key]
        end, before = ("lowest", line[1]) if value == line[0] else ("highest", line[-2])
        text = f"{axis.key}={value:g} is the {end} that was tried"
        yield text, {**best, axis.key: next_value(before, value)}


def _line(best: Config, key: str, tried: Sequence[Config]) -> list[Any]:
    """Return the values of an axis that were tried with the other keys of `best`, ascending.

    If `best` is the only such configuration, because another axis was continued to it, return the
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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal_except(a: Mapping[str, Any], b: Mapping[str, Any], key: str) -> bool:
    return all(a[other] == b[other] for other in b if other != key)
