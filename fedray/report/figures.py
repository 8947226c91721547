"""Curves, heat maps, and an objective against what was swept; all as PNG, without a display."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from fedray.records import Metric
from fedray.report.runs import Group, Stat, is_number, show
from fedray.report.table import pretty

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = [
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7f3c8d",
    "#4d4d4d",
    "#a5aa99",
    "#8b5a2b",
]
STYLES = ("-", "--", ":", "-.")
MOST_CURVES = 12
"""More than so many curves cannot be told apart; the best ones are drawn."""
MOST_LINES = 6
"""More combinations of the other parameters than that are drawn as points."""
LOG_SPAN = 20
"""Values that span more than this factor get a logarithmic axis."""


@dataclass(frozen=True)
class Row:
    """One configuration of a sweep and what it gave.

    Attributes:
        config: the swept keys' values.
        value: what is shown, the mean over seeds.
        std: its standard deviation over seeds.
        seeds: how many seeds.
        chooser: the number by which the best configuration is chosen; None where nothing chooses.
    """

    config: Mapping[str, Any]
    value: float
    std: float = 0.0
    seeds: int = 1
    chooser: float | None = None


# --- curves --------------------------------------------------------------------------------------


def figure_rounds(groups: Sequence[Group], metric: Metric, path: Path) -> None:
    """The metric against the round: mean over seeds, and a band of one standard deviation.

    Args:
        groups: one curve each, the best first; at most twelve are drawn.
        metric: what was measured.
        path: where the PNG goes.
    """
    shown = [member for member in groups if member.curve(metric.name)][:MOST_CURVES]
    curves = {member.label: member.curve(metric.name) for member in shown}
    figure_by_round(curves, metric, path, left_out=len(groups) - len(shown))


def figure_by_round(
    curves: Mapping[str, Mapping[int, Stat]], quantity: Metric, path: Path, left_out: int = 0
) -> None:
    """A quantity against the round, one curve each, and a band of one standard deviation.

    Args:
        curves: by label, the quantity by round.
        quantity: what stands at the axis.
        path: where the PNG goes.
        left_out: how many curves are not drawn.
    """
    from matplotlib.ticker import MaxNLocator

    figure, axes = _figure(quantity)
    for index, (label, curve) in enumerate(curves.items()):
        _curve(axes, index, list(curve), list(curve.values()), label, quantity)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _finish(figure, axes, path, left_out=left_out)


def figure_traffic(groups: Sequence[Group], metric: Metric, path: Path) -> None:
    """The metric against what was sent until then; a method that sends nothing is a level line.

    Args:
        groups: one curve each, the best first; at most twelve are drawn.
        metric: what was measured.
        path: where the PNG goes.
    """
    figure, axes = _figure(metric)
    shown = [member for member in groups if member.curve(metric.name)][:MOST_CURVES]
    totals = {id(member): member.traffic() for member in shown}
    ends = [end for total in totals.values() if (end := max(total.values())) > 0]
    log = bool(ends) and max(ends) > LOG_SPAN * min(ends)
    for index, member in enumerate(shown):
        curve, total = member.curve(metric.name), totals[id(member)]
        if max(total.values()) == 0:
            level = list(curve.values())[-1].mean * _unit(metric)
            label = _legend(f"{member.label} (sends nothing)")
            axes.axhline(level, color=COLOURS[index % 10], linestyle=(0, (1, 1)), label=label)
            continue
        points = [(total[r] / 1e6, stat) for r, stat in curve.items() if r in total]
        points = [point for point in points if point[0] > 0 or not log]
        xs, stats = [x for x, _ in points], [stat for _, stat in points]
        _curve(axes, index, xs, stats, member.label, metric)
    if log:
        axes.set_xscale("log")
    axes.set_xlabel("MB sent, up and down, all clients")
    _finish(figure, axes, path, left_out=len(groups) - len(shown))


def _curve(
    axes: Axes, index: int, xs: Sequence[float], stats: Sequence[Stat], label: str, metric: Metric
) -> None:
    unit = _unit(metric)
    colour, style = COLOURS[index % 10], STYLES[index // 10 % 4]
    mean = [unit * stat.mean for stat in stats]
    marker = "o" if len(xs) <= 12 else None
    axes.plot(xs, mean, style, color=colour, marker=marker, markersize=3.5, label=_legend(label))
    if any(stat.n > 1 for stat in stats):
        least, most = (0.0, 1.0) if metric.is_share else (-math.inf, math.inf)
        low = [unit * max(least, stat.mean - stat.std) for stat in stats]
        high = [unit * min(most, stat.mean + stat.std) for stat in stats]
        axes.fill_between(xs, low, high, color=colour, alpha=0.14, linewidth=0)


# --- sweeps --------------------------------------------------------------------------------------


def figure_sweep(
    rows: Sequence[Row],
    parameter: str | Sequence[str],
    path: Path,
    metric: Metric,
    *,
    title: str = "",
) -> None:
    """The objective against a swept parameter, with its spread over seeds.

    Other parameters that vary become one line per combination where there are few of them; else
    every configuration is a point. The one that was chosen is ringed. Values that span more than a
    factor of 20 stand on a logarithmic axis, words next to each other.

    Args:
        rows: what was tried; those whose value is not finite are left out.
        parameter: a swept key, or several: one panel each.
        path: where the PNG goes.
        metric: the objective; its direction says which value is best.
        title: what stands above.

    Raises:
        ValueError: when no row has a finite value.
    """
    rows = [row for row in rows if math.isfinite(row.value)]
    if not rows:
        raise ValueError("no configuration has a value")
    parameters = [parameter] if isinstance(parameter, str) else list(parameter)
    sign = -1 if metric.direction == "min" else 1
    worth = {i: sign * row.chooser for i, row in enumerate(rows) if row.chooser is not None}
    best = rows[max(worth, key=lambda i: worth[i])] if worth else None
    across = 2 if len(parameters) == 4 else min(len(parameters), 3)
    down = -(-len(parameters) // across)
    figure = _canvas(6.4 if across == 1 else 3.9 * across, 4.2 if across == 1 else 3.4 * down)
    for index, name in enumerate(parameters):
        axes = figure.add_subplot(down, across, index + 1)
        _panel(axes, rows, name, metric, best)
        if index % across == 0:
            axes.set_ylabel(pretty(metric))
    if title:
        figure.suptitle(fill(title, 90 if across > 1 else 70), fontsize=10)
    _save(figure, path)


def _panel(
    axes: Axes, rows: Sequence[Row], parameter: str, metric: Metric, best: Row | None
) -> None:
    rows = [row for row in rows if parameter in row.config]
    values = [row.config[parameter] for row in rows]
    position = _axis(axes, values)
    unit = _unit(metric)
    lines, joined = _lines(rows, parameter)
    joined = joined and all(is_number(value) for value in values)
    for index, (label, members) in enumerate(lines):
        members = sorted(members, key=lambda row: position[repr(row.config[parameter])])
        xs = [position[repr(row.config[parameter])] for row in members]
        ys = [unit * row.value for row in members]
        spread = [unit * row.std for row in members] if any(r.seeds > 1 for r in members) else None
        axes.errorbar(
            xs,
            ys,
            yerr=spread,
            fmt="o-" if joined else "o",
            color=COLOURS[index % 10],
            markersize=4,
            linewidth=1.4,
            elinewidth=0.9,
            capsize=3,
            label=_legend(label, 28) if label else None,
        )
    if best is not None and parameter in best.config:
        axes.plot(
            position[repr(best.config[parameter])],
            unit * best.value,
            "o",
            markersize=11,
            markerfacecolor="none",
            markeredgecolor="#222222",
            markeredgewidth=1.1,
        )
    axes.set_xlabel(parameter.replace("algorithm.", ""))
    if any(label for label, _ in lines):
        axes.legend(fontsize=7, frameon=False)
    _tidy(axes)


def _axis(axes: Axes, values: Sequence[Any]) -> dict[str, float]:
    """Set up the axis; return the position of each value, by its repr."""
    if not all(is_number(value) for value in values):
        words = {repr(value): show(value) for value in values}
        axes.set_xticks(range(len(words)), [fill(word, 12) for word in words.values()])
        axes.set_xlim(-0.5, len(words) - 0.5)
        return {text: float(index) for index, text in enumerate(words)}
    sizes = sorted({abs(float(value)) for value in values if value != 0})
    if sizes and sizes[-1] > LOG_SPAN * sizes[0]:
        if min(values) > 0:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=sizes[0])
    distinct = sorted(set(values))
    if len(distinct) <= 8 or (axes.get_xscale() == "linear" and len(distinct) <= 11):
        from matplotlib.ticker import NullLocator

        axes.set_xticks(distinct, [show(value) for value in distinct])
        axes.xaxis.set_minor_locator(NullLocator())
    return {repr(value): float(value) for value in values}


def _lines(rows: Sequence[Row], parameter: str) -> tuple[list[tuple[str, list[Row]]], bool]:
    """Rows by the other parameters' combination if these are few, and whether lines join them."""
    others = sorted({key for row in rows for key in row.config} - {parameter})
    others = [key for key in others if len({repr(row.config.get(key)) for row in rows}) > 1]
    combined: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        words = [f"{k.rsplit('.', 1)[-1]}={show(row.config.get(k))}" for k in others]
        combined[" ".join(words)].append(row)
    if len(combined) <= MOST_LINES and len(rows) >= 2 * len(combined):
        return list(combined.items()), True
    return [("", list(rows))], len(combined) == 1


# --- stages of a model ---------------------------------------------------------------------------


MOST_NAMED = 24
"""Parts of a model whose names fit below a picture."""


def figure_stages(
    curves: Mapping[str, Mapping[str, Stat]], quantity: Metric, path: Path, part: str = "stage"
) -> None:
    """A quantity by stage of the model, one curve each, and a band of one standard deviation.

    Args:
        curves: by label, the quantity of each stage, from the images to the logits.
        quantity: what stands at the axis.
        path: where the PNG goes.
        part: what the parts of the model are called; many of them have no names in the picture.
    """
    names = list(dict.fromkeys(stage for curve in curves.values() for stage in curve))
    figure, axes = _figure(quantity)
    for index, (label, curve) in enumerate(curves.items()):
        xs = [float(names.index(stage)) for stage in curve]
        _curve(axes, index, xs, list(curve.values()), label, quantity)
    if len(names) <= MOST_NAMED:
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_xlabel(part)
    _finish(figure, axes, path, left_out=0)


# --- heat maps -----------------------------------------------------------------------------------


def figure_matrix(
    matrix: Sequence[Sequence[float]], names: Sequence[str], title: str, path: Path
) -> None:
    """A matrix as a heat map; small ones have their numbers written in.

    Args:
        matrix: [rows, columns].
        names: what rows and columns stand for, if there are as many.
        title: what stands above.
        path: where the PNG goes.
    """
    import numpy as np

    values = np.asarray(matrix, dtype=float)
    rows, columns = values.shape
    side = min(max(3.2, 0.42 * max(rows, columns)), 11)
    figure = _canvas(side + 2.0, side + 1.2)
    axes = figure.add_subplot()
    square = rows == columns and rows > 1
    # the diagonal of a similarity is 1 and would take the colours from all the rest
    seen = values[~np.eye(rows, dtype=bool)] if square else values
    image = axes.imshow(values, cmap="viridis", vmin=float(seen.min()), vmax=float(seen.max()))
    if len(names) == rows == columns and rows <= 60:
        size = 8 if rows <= 20 else 6
        axes.set_xticks(range(columns), names, rotation=90, fontsize=size)
        axes.set_yticks(range(rows), names, fontsize=size)
    if max(rows, columns) <= 12:
        low, high = float(seen.min()), float(seen.max())
        for (row, column), value in np.ndenumerate(values):
            dark = high == low or value < low + 0.6 * (high - low)
            colour = "white" if dark else "#111111"
            axes.text(
                column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour
            )
    axes.tick_params(length=2)
    axes.set_title(fill(title, 60), fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8, fraction=0.05)
    _save(figure, path)


# --- common --------------------------------------------------------------------------------------


def _unit(metric: Metric) -> float:
    return 100.0 if metric.is_share else 1.0


def _legend(label: str, width: int = 46) -> str:
    return fill(label, width)


def _canvas(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _figure(metric: Metric) -> tuple[Figure, Axes]:
    figure = _canvas(6.4, 4.2)
    axes = figure.add_subplot()
    axes.set_ylabel(pretty(metric))
    return figure, axes


def _tidy(axes: Axes) -> None:
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _finish(figure: Figure, axes: Axes, path: Path, left_out: int) -> None:
    _tidy(axes)
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 6:
        figure.set_size_inches(9.6, 4.6)
        axes.legend(handles, labels, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    elif labels:
        axes.legend(handles, labels, fontsize=8, frameon=False)
    if left_out > 0:
        axes.set_title(f"the best {len(labels)}; {left_out} more are in the table", fontsize=9)
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png", metadata={"Software": None})
    temporary.replace(path)
