"""Which configurations of a method are tried: a grid, or random draws; and how a grid is continued.

A choice at the edge of a grid says that the grid ended too early. It is continued there, with the
factor (or, where a value is not positive, the step) of its last two values, while the budget lasts.
Keys that vary together are not continued: each value by its own factor need not be a setting that
anyone would list. Their edges are said.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedray.streams import Streams
from fedray.sweep.spec import Axis, Config, grid

Search = Literal["grid", "random"]
End = Literal["lowest", "highest", "first", "last"]
Why = Literal["budget", "bound", "off", "late", "joint"]
DECIMALS = 12
"""Of an objective. Sums of the same numbers in another order differ by less."""


@dataclass(frozen=True)
class Tried:
    """A configuration and what it came to while tuning.

    Attributes:
        config: the searched keys' values.
        objective: the mean over tuning seeds of what is chosen by; larger is better; None where a
            run failed.
        added: whether the grid was continued for it.
    """

    config: Config
    objective: float | None
    added: bool = False


@dataclass(frozen=True)
class Edge:
    """A choice at the end of what was tried on an axis.

    Attributes:
        key: the axis; keys that vary together are separated by commas.
        value: the chosen value; of keys that vary together, a list with one for each.
        end: which end it is; first or last in the list, of keys that vary together.
        why: why the grid does not go on there: "budget" or "bound", "off" where continuing is
            switched off, "late" where a better choice diverged only when it was reported, "joint"
            where keys vary together.
    """

    key: str
    value: Any
    end: End
    why: Why

    def __str__(self) -> str:
        if self.end in ("lowest", "highest"):
            return f"{self.key}={self.value:g} is the {self.end} that was tried"
        pairs = zip(self.key.split(","), self.value, strict=True)
        shown = " ".join(f"{key.strip()}={value:g}" for key, value in pairs)
        return f"{shown} is the {self.end} of its list"

    @property
    def name(self) -> str:
        """The axis without its keys' prefixes: "lr", "lambda_start, lambda_end"."""
        return ", ".join(key.strip().rpartition(".")[2] for key in self.key.split(","))


def configurations(axes: Sequence[Axis], search: Search, budget: int, seed: int) -> list[Config]:
    """What is tried first, at most `budget` configurations; one without axes.

    Random draws of the same axis are the same for all methods: a point of the unit interval for
    each (axis, number of the draw).

    Args:
        axes: what is searched.
        search: grid: every combination; random: independent draws, of a list uniform.
        budget: how many at the most.
        seed: of the draws.
    """
    if search == "grid" or not axes:
        return grid(axes)
    streams = Streams(seed)
    points = {
        axis.key: np.random.default_rng(streams.entropy(f"table search {axis.key}")).random(budget)
        for axis in axes
    }
    drawn: list[Config] = []
    for number in range(budget):
        config: Config = {}
        for axis in axes:
            config |= _draw(axis, float(points[axis.key][number]))
        if config not in drawn:
            drawn.append(config)
    return drawn


def _draw(axis: Axis, point: float) -> Config:
    """The value of an axis at a point of [0, 1)."""
    if axis.is_listed:
        return axis.configs[int(point * len(axis.values))]
    low, high = axis.values
    if axis.distribution == "randint":
        return {axis.key: int(low + math.floor(point * (high - low + 1)))}
    if axis.distribution == "loguniform":
        return {axis.key: rounded(math.exp(math.log(low) + point * math.log(high / low)))}
    return {axis.key: rounded(low + point * (high - low))}


def rounded(value: float) -> float:
    """A value with six digits that count: 0.3, not 0.30000000000000004."""
    return float(f"{value:.6g}")


def ranked(tried: Sequence[Tried]) -> list[Tried]:
    """The configurations, the best first, equal ones as they were tried; without what failed."""
    worth = [(each, each.objective) for each in tried if each.objective is not None]
    return [each for each, value in sorted(worth, key=lambda pair: -without_noise(pair[1]))]


def without_noise(objective: float) -> float:
    """An objective without what only the order of its sums has added."""
    return round(objective, DECIMALS)


def best_of(tried: Sequence[Tried]) -> Tried | None:
    """The best configuration, the first of equal ones; None where all failed."""
    return next(iter(ranked(tried)), None)


def continued(
    tried: Sequence[Tried],
    axes: Sequence[Axis],
    budget: int,
    is_valid: Callable[[Config], bool],
    *,
    extend: bool = True,
) -> tuple[list[Config], list[Edge]]:
    """What to try next because the best lies at an edge, and the edges where nothing comes next.

    Args:
        tried: all configurations so far.
        axes: what is searched; those of numbers in a grid have edges.
        budget: how many configurations there may be in all.
        is_valid: whether an experiment can have a configuration.
        extend: whether grids are continued at all.
    """
    best = best_of(tried)
    wanted: list[Config] = []
    edges: list[Edge] = []
    known = [each.config for each in tried]
    for axis in axes if best is not None else ():
        assert best is not None
        end = _end(best.config, axis, known)
        if end is None:
            continue
        if end in ("first", "last"):
            edges.append(Edge(axis.key, [best.config[key] for key in axis.keys], end, "joint"))
            continue
        beyond = _beyond(best.config, axis, known, end)
        value = best.config[axis.key]
        if not extend:
            edges.append(Edge(axis.key, value, end, "off"))
        elif not is_valid(beyond):
            edges.append(Edge(axis.key, value, end, "bound"))
        elif len(known) + len(wanted) >= budget:
            edges.append(Edge(axis.key, value, end, "budget"))
        else:
            wanted.append(beyond)
    return wanted, edges


def _end(best: Config, axis: Axis, known: Sequence[Config]) -> End | None:
    """At which end of an axis the best configuration is; None: at none."""
    if can_go_on(axis):
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
    """The configuration beyond the best one, which is at this end of an axis."""
    line = _line(best, axis.key, known)
    before = line[1] if end == "lowest" else line[-2]
    return {**best, axis.key: next_value(before, best[axis.key])}


def _line(best: Config, key: str, known: Sequence[Config]) -> list[Any]:
    """The values of an axis that were tried with the best one's others, ascending.

    Where that is the best one alone, as another axis was continued to it: those tried with any.
    """
    line = {config[key] for config in known if _equal_besides(config, best, key)}
    return sorted(line if len(line) > 1 else {config[key] for config in known})


def next_value(before: float, last: float) -> float:
    """What continues numbers: by their factor, or by their step where one is not positive.

    Whole numbers stay whole, and move by one at least.
    """
    value = last * last / before if before > 0 and last > 0 else 2 * last - before
    if isinstance(before, int) and isinstance(last, int):
        whole = round(value)
        return whole if whole != last else last + (1 if last > before else -1)
    return rounded(value)


def can_go_on(axis: Axis) -> bool:
    """Whether an axis is a grid of one key's numbers, which can be continued."""
    return axis.distribution == "grid" and len(axis.keys) == 1 and all(map(_is_number, axis.values))


def _is_ordered(axis: Axis) -> bool:
    """Whether an axis is a grid of keys that vary together, each one's numbers in order."""
    if axis.distribution != "grid" or len(axis.keys) == 1 or len(axis.values) == 1:
        return False
    columns = [list(column) for column in zip(*axis.values, strict=True)]
    return all(
        all(map(_is_number, column)) and sorted(column) in (column, column[::-1])
        for column in columns
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal_besides(a: Mapping[str, Any], b: Mapping[str, Any], key: str) -> bool:
    return all(a[other] == b[other] for other in b if other != key)
