"""The figure of a table: seeds, intervals, the paper's numbers and paired differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedray.data.plot import literal
from fedray.results.pages.cells import metric_name
from fedray.results.pages.figures import canvas, error_points, place_values, save_figure
from fedray.results.pages.palette import COLOURS, colour
from fedray.results.paired import Interval, Side
from fedray.results.record import TableRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes


ACROSS = 3
"""Maximal number of panels in a row."""
OURS, PAPER, CONTROL = COLOURS[0], COLOURS[1], COLOURS[7]


def draw_table(record: TableRecord, path: Path) -> None:
    """Draw the first metric of a table into a file; draw nothing if all cells are empty.

    If the columns are values of one numeric key, each row becomes a curve. Otherwise each column
    becomes a panel, and a further panel shows the first row minus each other row.
    """
    plan, metric = record.plan, record.shown[0]
    columns, rows = list(plan.columns), list(plan.rows)
    sides = [Side(row, column) for row in rows for column in columns]
    if all(record.interval(side, metric.name) is None for side in sides):
        return
    if plan.curve is not None:
        figure = canvas(6.4, 4.2)
        draw_curves(figure.subplots(), record, plan.curve)
        save_figure(figure, path)
        return
    across = min(ACROSS, len(columns) + 1)
    down = math.ceil((len(columns) + 1) / across)
    figure = canvas(2.2 + 3.0 * across, 0.9 + down * (0.9 + 0.3 * len(rows)))
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel, column in zip(panels, columns, strict=False):
        _values(panel, record, column)
    _differences(panels[len(columns)], record)
    for index, panel in enumerate(panels):
        panel.set_visible(index <= len(columns))
        _name_rows(panel, record, named=index % across == 0)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    save_figure(figure, path)


def draw_curves(axes: Axes, record: TableRecord, key: str) -> None:
    """Draw each row as a line with intervals, seeds as dots, and the paper's numbers dashed."""
    plan, metric = record.plan, record.shown[0]
    numbers = {column: float(tree[key]) for column, tree in plan.columns.items()}
    position = place_values(axes, list(numbers.values()))
    for index, row in enumerate(plan.rows):
        shade = colour(index)
        points: list[tuple[float, Interval]] = []
        paper: list[tuple[float, float]] = []
        for column, number in numbers.items():
            side, x = Side(row, column), position[repr(number)]
            if (interval := record.interval(side, metric.name)) is not None:
                points.append((x, interval))
                seeds = list(record.by_seed(side, metric.name).values())
                axes.plot([x] * len(seeds), seeds, ".", color=shade, alpha=0.5, markersize=4)
            if (entry := plan.paper_of(row, column)) is not None:
                paper.append((x, entry[0]))
        if points:
            xs, intervals = zip(*points, strict=True)
            label = literal(plan.rows[row].label)
            error_points(axes, xs, intervals, shade, label, joined=True)
        if paper:
            axes.plot(*zip(*paper, strict=True), "D--", mfc="w", color=shade)
    axes.set_xlabel(key)
    axes.set_ylabel(metric_name(metric))
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, fontsize=9)


def _values(axes: Axes, record: TableRecord, column: str) -> None:
    """Draw the cells of a column: seeds, mean and interval, with the paper's number below."""
    plan, metric = record.plan, record.shown[0]
    label = f"mean, {100 * plan.confidence:g} % interval"
    for height, row in enumerate(plan.rows):
        side = Side(row, column)
        seeds, interval = record.by_seed(side, metric.name), record.interval(side, metric.name)
        if interval is not None:
            _point(axes, height, list(seeds.values()), interval, _shade(record, row), label)
            label = ""  # once in the legend
        if (paper := plan.paper_of(row, column)) is not None:
            mean, spread = paper
            axes.errorbar(
                mean, height + 0.25, xerr=spread, fmt="D", mfc="none", color=PAPER, markersize=5
            )
    if plan.paper is not None:
        axes.plot([], [], "D", mfc="none", color=PAPER, label="the paper")
    if len(plan.columns) > 1:
        axes.set_title(literal(column), fontsize=10)
    axes.set_xlabel(metric_name(metric))


def _differences(axes: Axes, record: TableRecord) -> None:
    """Draw the first row minus each other row, paired by seed, for the mean over columns."""
    plan = record.plan
    first, *other_rows = plan.rows
    whole = None if len(plan.columns) > 1 else next(iter(plan.columns))
    for difference in record.against:
        if difference.worse.column == whole and difference.interval is not None:
            height, shade = (
                1 + other_rows.index(difference.worse.row),
                _shade(record, difference.worse.row),
            )
            _point(
                axes, height, list(difference.differences.values()), difference.interval, shade, ""
            )
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_title("paired by seed" + (", mean over columns" if whole is None else ""), fontsize=10)
    unit = ", points" if record.shown[0].is_share else ""
    axes.set_xlabel(f"{literal(plan.rows[first].label)} minus the row{unit}")


def _point(
    axes: Axes, height: float, seeds: Sequence[float], interval: Interval, shade: str, label: str
) -> None:
    """Draw a mean with its interval and seeds; `label` is added to the legend unless empty."""
    marks = axes.plot(seeds, [height] * len(seeds), "|", color=shade, alpha=0.6, markersize=9)
    marks[0].set_label("seeds" if label else "")
    error_points(axes, [height], [interval], shade, label or None, horizontal=True)


def _shade(record: TableRecord, row: str) -> str:
    return CONTROL if record.plan.rows[row].control else OURS


def _name_rows(axes: Axes, record: TableRecord, *, named: bool) -> None:
    rows = record.plan.rows.values()
    names = [literal(row.label) + " (control)" * bool(row.control) for row in rows]
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), names if named else [""] * len(rows))
    axes.grid(axis="x", alpha=0.3)
