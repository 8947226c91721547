"""The table as a figure: seeds, intervals and the paper's numbers, and the paired differences.

Of a table whose columns are numbers of one key, the curves of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedray.files import replace_whole
from fedray.report.palette import COLOURS
from fedray.report.statistics import Interval
from fedray.tables.claims import Side
from fedray.tables.outcome import Outcome
from fedray.tables.page import name_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE = 30
"""Numbers of a curve that are so many times as large as the least are drawn on a log scale."""
ACROSS = 3
"""Panels beside each other, at the most."""
OURS, PAPER, CONTROL = COLOURS[0], COLOURS[1], COLOURS[7]


def draw(found: Outcome, path: Path) -> None:
    """Draw the first metric, a panel per column, and what the first row is ahead of the others.

    Of a curve one panel: the metric against the key, a line with error bars for each row.
    Nothing is drawn where no cell has a number.

    Args:
        found: the table.
        path: where the PNG goes.
    """
    columns, rows = list(found.plan.columns), list(found.plan.rows)
    metric = found.metrics[0]
    sides = [Side(row, column) for row in rows for column in columns]
    if all(found.interval(side, metric.name) is None for side in sides):
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if found.plan.curve is not None:
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        draw_curves(figure.subplots(), found, found.plan.curve)
        _save(figure, path)
        return
    across = min(ACROSS, len(columns) + 1)
    down = math.ceil((len(columns) + 1) / across)
    size = 2.2 + 3.0 * across, 0.9 + down * (0.9 + 0.3 * len(rows))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel, column in zip(panels, columns, strict=False):
        _values(panel, found, column)
    _differences(panels[len(columns)], found)
    for index, panel in enumerate(panels):
        panel.set_visible(index <= len(columns))
        _name_rows(panel, found, named=index % across == 0)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    replace_whole(path, lambda temporary: figure.savefig(temporary, format="png", dpi=150))


def draw_curves(axes: Axes, found: Outcome, key: str) -> None:
    """A line for each row: mean and interval, single seeds as dots, the paper's numbers dashed."""
    plan, metric = found.plan, found.metrics[0]
    numbers = {column: float(tree[key]) for column, tree in plan.columns.items()}
    for index, row in enumerate(plan.rows):
        colour = COLOURS[index % len(COLOURS)]
        there: list[tuple[float, Interval]] = []
        for column, x in numbers.items():
            side = Side(row, column)
            interval = found.interval(side, metric.name)
            if interval is not None:
                there.append((x, interval))
                values = list(found.by_seed(side, metric.name).values())
                axes.plot([x] * len(values), values, ".", color=colour, alpha=0.5, markersize=4)
        if there:
            _line(axes, there, colour, plan.rows[row].label)
        if plan.paper is not None:
            said = [(x, plan.paper_of(row, column)) for column, x in numbers.items()]
            points = [(x, entry[0]) for x, entry in said if entry is not None]
            axes.plot([x for x, _ in points], [y for _, y in points], "D--", mfc="w", color=colour)
    if min(numbers.values()) > 0 and max(numbers.values()) >= WIDE * min(numbers.values()):
        axes.set_xscale("log")
    ticks = sorted(numbers.values())
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks], minor=False)
    axes.set_xlabel(key)
    axes.set_ylabel(name_of(metric))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, fontsize=9)


def _line(axes: Axes, points: Sequence[tuple[float, Interval]], colour: str, label: str) -> None:
    """Means with their intervals; no ends where there is one seed."""
    halves = [0.0 if math.isinf(interval.half) else interval.half for _, interval in points]
    axes.errorbar(
        [x for x, _ in points],
        [interval.mean for _, interval in points],
        yerr=halves,
        fmt="o-",
        color=colour,
        capsize=3,
        markersize=5,
        label=label,
    )


def _values(axes: Axes, found: Outcome, column: str) -> None:
    """A column's cells: seeds, mean and interval, and the paper's number below."""
    plan, metric = found.plan, found.metrics[0]
    said = False
    for height, row in enumerate(plan.rows):
        side = Side(row, column)
        values, interval = found.by_seed(side, metric.name), found.interval(side, metric.name)
        if interval is not None:
            label = "" if said else f"mean, {100 * plan.confidence:g} % interval"
            said = True
            _point(axes, height, list(values.values()), interval, _colour(found, row), label)
        paper = plan.paper_of(row, column)
        if paper is not None:
            mean, spread = paper
            axes.errorbar(
                mean, height + 0.25, xerr=spread, fmt="D", mfc="none", color=PAPER, markersize=5
            )
    if plan.paper is not None:
        axes.plot([], [], "D", mfc="none", color=PAPER, label="the paper")
    if len(plan.columns) > 1:
        axes.set_title(column, fontsize=10)
    axes.set_xlabel(name_of(metric))


def _differences(axes: Axes, found: Outcome) -> None:
    """The first row minus each other one, paired by seed, on the mean over columns."""
    plan = found.plan
    first, *others = plan.rows
    whole = None if len(plan.columns) > 1 else next(iter(plan.columns))
    for each in found.against:
        if each.worse.column == whole and each.interval is not None:
            height = 1 + others.index(each.worse.row)
            values = list(each.differences.values())
            _point(axes, height, values, each.interval, _colour(found, each.worse.row), "")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_title("paired by seed" + (", mean over columns" if whole is None else ""), fontsize=10)
    axes.set_xlabel(f"{first} minus the row" + (", points" if found.metrics[0].is_share else ""))


def _point(
    axes: Axes,
    height: float,
    values: Sequence[float],
    interval: Interval,
    colour: str,
    label: str,
) -> None:
    """A mean with its interval, and the values that it is of; a label for both, or none."""
    seeds = axes.plot(values, [height] * len(values), "|", color=colour, alpha=0.6, markersize=9)
    seeds[0].set_label("seeds" if label else "")
    ends = None if math.isinf(interval.half) else interval.half
    axes.errorbar(
        interval.mean,
        height,
        xerr=ends,
        fmt="o",
        color=colour,
        capsize=3,
        markersize=5,
        label=label or None,
    )


def _colour(found: Outcome, row: str) -> str:
    return CONTROL if found.plan.rows[row].control else OURS


def _name_rows(axes: Axes, found: Outcome, *, named: bool) -> None:
    rows = found.plan.rows
    names = [f"{row.label} (control)" if row.control else row.label for row in rows.values()]
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), names if named else [""] * len(rows))
    axes.grid(axis="x", alpha=0.3)
