"""The table as a figure: a panel per column, a line per row; seeds, intervals, the paper."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from fedray.report.figures import COLOURS
from fedray.tables.claims import Side
from fedray.tables.outcome import Outcome
from fedray.tables.page import name_of, row_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACROSS = 3
"""Panels beside each other, at the most."""
OURS, PAPER = COLOURS[0], COLOURS[1]


def draw(found: Outcome, path: Path) -> None:
    """Draw the first metric; nothing where no cell has a number.

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

    across = min(ACROSS, len(columns))
    down = math.ceil(len(columns) / across)
    figure = Figure(
        figsize=(2.2 + 3.2 * across, 0.9 + down * (0.9 + 0.32 * len(rows))), layout="constrained"
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for index, column in enumerate(columns):
        _panel(panels[index], found, column, names=index % across == 0)
    for empty in panels[len(columns) :]:
        empty.set_visible(False)
    figure.supxlabel(name_of(metric), fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)


def _panel(axes: Axes, found: Outcome, column: str, *, names: bool) -> None:
    plan, metric = found.plan, found.metrics[0]
    rows = list(plan.rows)
    level = 100 * plan.confidence
    for height, row in enumerate(rows):
        side = Side(row, column)
        values, interval = found.by_seed(side, metric.name), found.interval(side, metric.name)
        colour = COLOURS[7] if plan.rows[row].control else OURS
        first = height == 0
        if interval is not None:
            axes.plot(
                list(values.values()),
                [height] * len(values),
                "|",
                color=colour,
                alpha=0.6,
                markersize=9,
                label="seeds" if first else None,
            )
            ends = None if math.isinf(interval.half) else interval.half
            axes.errorbar(
                interval.mean,
                height,
                xerr=ends,
                fmt="o",
                color=colour,
                capsize=3,
                markersize=5,
                label=f"ours, {level:g} % interval" if first else None,
            )
        paper = None if plan.paper is None else plan.paper.of(row, column)
        if paper is not None:
            mean, spread = paper
            axes.errorbar(
                mean, height + 0.25, xerr=spread, fmt="D", mfc="none", color=PAPER, markersize=5
            )
    if plan.paper is not None:
        axes.plot([], [], "D", mfc="none", color=PAPER, label="the paper")
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row_text(found, row) for row in rows] if names else [])
    if len(plan.columns) > 1:
        axes.set_title(column, fontsize=10)
    axes.grid(axis="x", alpha=0.3)
