"""Curves, heat maps, and an objective against what was swept; PNG, SVG or PDF by file name."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from fedray.compare.blocks import blocks_of
from fedray.compare.frame import At, Group, differing, selection_label
from fedray.compare.labels import is_number, show_value
from fedray.compare.paired import Interval
from fedray.data.plot import literal
from fedray.files import file_name, replace_whole
from fedray.records import Metric
from fedray.render.cells import metric_name, scale_of
from fedray.render.palette import COLOURS, WIDTH, Columns, colour, line_style, marker, sized

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CURVES = 12
"""More curves cannot be told apart; the best ones are drawn."""
MOST_LINES = 6
"""More combinations of the other parameters are drawn as points."""
LOG_SPAN = 20
"""Values that span more than this factor get a logarithmic axis."""


@dataclass(frozen=True)
class Row:
    """One configuration of a sweep.

    Attributes:
        config: the swept keys' values.
        interval: what is shown, over seeds.
        chooser: the number by which the best configuration is chosen; None where nothing chooses.
    """

    config: Mapping[str, Any]
    interval: Interval
    chooser: float | None = None


# --- curves --------------------------------------------------------------------------------------


def figure_rounds(
    groups: Sequence[Group], metrics: Sequence[Metric], path: Path, columns: Columns = 2
) -> None:
    """Draw metrics against the round: mean over seeds, and a band of the 95 % interval.

    Args:
        groups: one curve each, the best first; at most twelve are drawn.
        metrics: what was measured, a panel each.
        path: where the figure goes.
        columns: how many columns of a paper it spans.
    """
    first, *further = metrics
    shown = _shown(groups, first)
    heading = _heading(shown, groups)
    if not further:
        curves = {member.label: member.curve(first.name) for member in shown}
        figure_by_round(curves, first, path, heading, columns)
        return
    across = min(columns, len(metrics))
    down = -(-len(metrics) // across)
    with sized(columns):
        height = down * (2.1 if columns == 1 else 2.5) + 0.3
        figure = canvas(WIDTH[columns], height)
        for number, metric in enumerate(metrics, 1):
            axes = figure.add_subplot(down, across, number)
            axes.set_ylabel(metric_name(metric))
            for index, member in enumerate(shown):
                curve = member.curve(metric.name)
                _curve(axes, index, list(curve), list(curve.values()), member.label, metric)
            _by_round(axes)
            _tidy(axes)
        if heading:
            figure.suptitle(heading)
        _legend_below(figure, figure.axes[0], height, columns)
        save_figure(figure, path)


def _shown(groups: Sequence[Group], metric: Metric) -> list[Group]:
    """Return the groups whose curves are drawn."""
    return [member for member in groups if member.curve(metric.name)][:MOST_CURVES]


def _heading(shown: Sequence[Group], groups: Sequence[Group]) -> str:
    """Return the heading: how many curves are left out, whether all are comparable."""
    said = []
    if len(shown) < len(groups):
        more = len(groups) - len(shown)
        said.append(f"the best {len(shown)}; {more} more are in the table")
    if len(blocks_of(shown)) > 1:
        said.append("not all are comparable: see the table")
    return "\n".join(said)


def _legend_below(figure: Figure, axes: Axes, height: float, columns: Columns) -> None:
    """Add a legend with as many labels in a line as fit; the figure grows by its height.

    Args:
        figure: the figure.
        axes: whose lines are named.
        height: of the figure without the legend, in inches.
        columns: how many columns of a paper it spans.
    """
    handles, labels = axes.get_legend_handles_labels()
    longest = max((len(line) for label in labels for line in label.splitlines()), default=1)
    beside = max(1, min(len(labels), (48 * columns) // (longest + 6)))
    lines = sum(len(label.splitlines()) for label in labels) / beside
    figure.set_size_inches(WIDTH[columns], height + 0.16 * math.ceil(lines))
    figure.legend(handles, labels, loc="outside lower center", ncols=beside, frameon=False)


def figure_by_round(
    curves: Mapping[str, Mapping[int, Interval]],
    quantity: Metric,
    path: Path,
    heading: str = "",
    columns: Columns = 2,
) -> None:
    """Draw a quantity against the round, one curve each, and a band of the 95 % interval.

    Args:
        curves: by label, the quantity by round.
        quantity: what stands at the axis.
        path: where the figure goes.
        heading: what stands above.
        columns: how many columns of a paper it spans.
    """
    with sized(columns):
        figure, axes = _figure(quantity, columns)
        for index, (label, curve) in enumerate(curves.items()):
            _curve(axes, index, list(curve), list(curve.values()), label, quantity)
        _by_round(axes)
        _finish(figure, axes, path, heading, columns)


def _by_round(axes: Axes) -> None:
    """Label the axis of rounds, from 0 on even if a single round was evaluated."""
    from matplotlib.ticker import MaxNLocator

    left, right = axes.get_xlim()
    axes.set_xlim(min(left, -0.03 * right), right)
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def figure_traffic(
    groups: Sequence[Group], metric: Metric, path: Path, columns: Columns = 2
) -> None:
    """Draw the metric against the traffic so far; a method that sends nothing is a level line.

    Args:
        groups: one curve each, the best first; at most twelve are drawn.
        metric: what was measured.
        path: where the figure goes.
        columns: how many columns of a paper it spans.
    """
    shown = _shown(groups, metric)
    with sized(columns):
        figure, axes = _figure(metric, columns)
        _against_traffic(axes, shown, metric)
        _finish(figure, axes, path, _heading(shown, groups), columns)


def _against_traffic(axes: Axes, shown: Sequence[Group], metric: Metric) -> None:
    totals = {id(member): member.traffic() for member in shown}
    ends = [end for total in totals.values() if (end := max(total.values())) > 0]
    log = bool(ends) and max(ends) > LOG_SPAN * min(ends)
    for index, member in enumerate(shown):
        curve, total = member.curve(metric.name), totals[id(member)]
        if max(total.values()) == 0:
            level = list(curve.values())[-1].mean * scale_of(metric)
            label = _legend(f"{member.label} (sends nothing)")
            dots = (1, 1) if index < len(COLOURS) else (4, 1, 1, 1)
            axes.axhline(level, color=colour(index), linestyle=(0, dots), label=label)
            continue
        points = [(total[r] / 1e6, stat) for r, stat in curve.items() if r in total]
        points = [point for point in points if point[0] > 0 or not log]
        xs, stats = [x for x, _ in points], [stat for _, stat in points]
        _curve(axes, index, xs, stats, member.label, metric)
    if log:
        axes.set_xscale("log")
    axes.set_xlabel("MB sent, up and down, all clients")


def _curve(
    axes: Axes,
    index: int,
    xs: Sequence[float],
    stats: Sequence[Interval],
    label: str,
    metric: Metric,
) -> None:
    unit = scale_of(metric)
    shade, style = colour(index), line_style(index)
    mean = [unit * stat.mean for stat in stats]
    point = marker(index) if len(xs) <= 12 else None
    axes.plot(xs, mean, style, color=shade, marker=point, markersize=3.5, label=_legend(label))
    if any(stat.n > 1 for stat in stats):
        least, most = (0.0, 1.0) if metric.is_share else (-math.inf, math.inf)
        halves = [0.0 if math.isinf(stat.half) else stat.half for stat in stats]
        low = [
            unit * max(least, stat.mean - half) for stat, half in zip(stats, halves, strict=True)
        ]
        high = [
            unit * min(most, stat.mean + half) for stat, half in zip(stats, halves, strict=True)
        ]
        axes.fill_between(xs, low, high, color=shade, alpha=0.14, linewidth=0)


def error_points(
    axes: Axes,
    positions: Sequence[float],
    intervals: Sequence[Interval],
    shade: str,
    label: str | None = None,
    *,
    joined: bool = False,
    horizontal: bool = False,
    unit: float = 1.0,
) -> None:
    """Draw means as points with their intervals as bars; single seeds have no bar.

    Args:
        axes: where.
        positions: of the points.
        intervals: one for each point.
        shade: the colour.
        label: for the legend.
        joined: whether a line joins the points.
        horizontal: whether the numbers run from left to right.
        unit: the factor to the unit that is shown.
    """
    means = [unit * interval.mean for interval in intervals]
    halves = [0.0 if math.isinf(each.half) else unit * each.half for each in intervals]
    bars = halves if any(each.n > 1 for each in intervals) else None
    x, y = (means, positions) if horizontal else (positions, means)
    style: dict[str, Any] = {"markersize": 4, "linewidth": 1.4, "elinewidth": 0.9, "capsize": 3}
    style |= {"xerr" if horizontal else "yerr": bars, "fmt": "o-" if joined else "o"}
    axes.errorbar(x, y, color=shade, label=label, **style)


# --- sweeps --------------------------------------------------------------------------------------


def figure_sweep(
    rows: Sequence[Row],
    parameter: str | Sequence[str],
    path: Path,
    metric: Metric,
    *,
    title: str = "",
    columns: Columns | None = None,
) -> None:
    """Draw the objective against a swept parameter, with its interval over seeds.

    Other parameters that vary become one line per combination where there are few of them; else
    every configuration is a point. The one that was chosen is ringed. Values that span more than a
    factor of 20 stand on a logarithmic axis, words next to each other.

    Args:
        rows: what was tried; those whose value is not finite are left out.
        parameter: a swept key, or several: one panel each.
        path: where the figure goes.
        metric: the objective; its direction says which value is best.
        title: what stands above.
        columns: how many columns of a paper it spans; None: as large as the panels want.

    Raises:
        ValueError: when no row has a finite value.
    """
    rows = [row for row in rows if math.isfinite(row.interval.mean)]
    if not rows:
        raise ValueError("no configuration has a value")
    parameters = [parameter] if isinstance(parameter, str) else list(parameter)
    sign = -1 if metric.direction == "min" else 1
    ranked = [row for row in rows if row.chooser is not None]
    best = max(ranked, key=lambda row: sign * (row.chooser or 0.0), default=None)
    across = 2 if len(parameters) == 4 else min(len(parameters), 3)
    down = -(-len(parameters) // across)
    size = (6.4, 4.2) if across == 1 else (3.9 * across, 3.4 * down)
    if columns is not None:
        size = WIDTH[columns], size[1] * WIDTH[columns] / size[0] * (1.15 if columns == 1 else 1)
    with nullcontext() if columns is None else sized(columns):
        figure = canvas(*size)
        for index, name in enumerate(parameters):
            axes = figure.add_subplot(down, across, index + 1)
            _panel(axes, rows, name, metric, best)
            if index % across == 0:
                axes.set_ylabel(metric_name(metric))
        if title:
            above = fill(literal(title), round(11 * size[0]))
            figure.suptitle(above, fontsize=10 if columns is None else None)
        save_figure(figure, path)


def _panel(
    axes: Axes, rows: Sequence[Row], parameter: str, metric: Metric, best: Row | None
) -> None:
    rows = [row for row in rows if parameter in row.config]
    values = [row.config[parameter] for row in rows]
    position = place_values(axes, values)
    unit = scale_of(metric)
    lines, joined = _lines(rows, parameter)
    joined = joined and all(is_number(value) for value in values)
    for index, (label, members) in enumerate(lines):
        members = sorted(members, key=lambda row: position[repr(row.config[parameter])])
        xs = [position[repr(row.config[parameter])] for row in members]
        named = _legend(label, 28) if label else None
        points = [row.interval for row in members]
        error_points(axes, xs, points, colour(index), named, joined=joined, unit=unit)
    if best is not None and parameter in best.config:
        axes.plot(
            position[repr(best.config[parameter])],
            unit * best.interval.mean,
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


def place_values(axes: Axes, values: Sequence[Any]) -> dict[str, float]:
    """Set up the axis; return the position of each value, by its repr."""
    if not all(is_number(value) for value in values):
        words = {repr(value): show_value(value) for value in values}
        axes.set_xticks(range(len(words)), [_legend(word, 12) for word in words.values()])
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

        axes.set_xticks(distinct, [show_value(value) for value in distinct])
        axes.xaxis.set_minor_locator(NullLocator())
    return {repr(value): float(value) for value in values}


def _lines(rows: Sequence[Row], parameter: str) -> tuple[list[tuple[str, list[Row]]], bool]:
    """Return rows by the other parameters' values if these are few, and whether lines join them."""
    others = sorted({key for row in rows for key in row.config} - {parameter})
    others = [key for key in others if len({repr(row.config.get(key)) for row in rows}) > 1]
    combined: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        words = [f"{k.rsplit('.', 1)[-1]}={show_value(row.config.get(k))}" for k in others]
        combined[" ".join(words)].append(row)
    if len(combined) <= MOST_LINES and len(rows) >= 2 * len(combined):
        return list(combined.items()), True
    return [("", list(rows))], len(combined) == 1


def swept_figures(
    groups: Sequence[Group], out: Path, metric: Metric, at: At, kind: str, columns: Columns = 2
) -> list[Path]:
    """Draw the metric against every key in which groups of one method differ by number.

    Args:
        groups: all of them.
        out: the folder of the figures.
        metric: what is shown.
        at: its best or its last value.
        kind: "png", "svg" or "pdf".
        columns: how many columns of a paper a figure spans.

    Returns:
        The files.
    """
    files = []
    for method in sorted({member.method for member in groups}):
        members = [member for member in groups if member.method == method]
        keys = differing([member.keys for member in members])
        rows = [
            Row(
                {key: member.keys.get(key) for key in keys},
                interval,
                member.ranking_value(metric, at),
            )
            for member in members
            if (interval := member.interval(metric.name, at)) is not None
        ]
        for key in keys:
            values = [row.config[key] for row in rows]
            if len(set(map(repr, values))) > 2 and all(map(is_number, values)):
                path = out / f"sweep_{file_name(method)}_{file_name(key)}.{kind}"
                title = f"{method}, {selection_label(members, at)}"
                figure_sweep(rows, key, path, metric, title=title, columns=columns)
                files.append(path)
    return files


# --- stages of a model ---------------------------------------------------------------------------


MOST_NAMED = 24
"""Parts of a model whose names fit below a figure."""


def figure_stages(
    curves: Mapping[str, Mapping[str, Interval]], quantity: Metric, path: Path, part: str = "stage"
) -> None:
    """Draw a quantity by stage of the model, one curve each, and a band of the 95 % interval.

    Args:
        curves: by label, the quantity of each stage, from the images to the logits.
        quantity: what stands at the axis.
        path: where the figure goes.
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
    _finish(figure, axes, path)


# --- clients and traffic -------------------------------------------------------------------------


def figure_clients(
    values: Mapping[str, Sequence[float]], quantity: Metric, path: Path, columns: Columns = 2
) -> None:
    """Draw each client's number as a point, a row for each label, and a line at their mean.

    Args:
        values: by label, a number for each client.
        quantity: what stands at the axis.
        path: where the figure goes.
        columns: how many columns of a paper it spans.
    """
    unit = scale_of(quantity)
    with sized(columns):
        figure = canvas(WIDTH[columns], 0.8 + 0.34 * len(values))
        axes = figure.add_subplot()
        for index, (_, numbers) in enumerate(values.items()):
            xs = [unit * value for value in numbers]
            spread = [index + 0.12 * ((place % 3) - 1) for place in range(len(xs))]
            axes.plot(xs, spread, "o", color=colour(index), alpha=0.55, markersize=4)
            mean = sum(xs) / len(xs)
            axes.plot([mean, mean], [index - 0.32, index + 0.32], color=colour(index), linewidth=2)
        axes.set_yticks(range(len(values)), [_legend(label, 28) for label in values])
        axes.set_ylim(len(values) - 0.5, -0.5)
        axes.set_xlabel(f"{metric_name(quantity)} of each client, line: mean")
        _tidy(axes)
        save_figure(figure, path)


def figure_kinds(sent: Mapping[str, Mapping[str, float]], path: Path, columns: Columns = 2) -> None:
    """Draw bytes by kind as bars, a row for each label.

    Args:
        sent: by label, MB by kind.
        path: where the figure goes.
        columns: how many columns of a paper it spans.
    """
    kinds = list(dict.fromkeys(kind for by_kind in sent.values() for kind in by_kind))
    with sized(columns):
        figure = canvas(WIDTH[columns], 1.1 + 0.3 * len(sent))
        axes = figure.add_subplot()
        left = [0.0] * len(sent)
        for index, kind in enumerate(kinds):
            widths = [by_kind.get(kind, 0.0) for by_kind in sent.values()]
            axes.barh(range(len(sent)), widths, left=left, color=colour(index), label=kind)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(sent)), [_legend(label, 28) for label in sent])
        axes.set_ylim(len(sent) - 0.5, -0.5)
        axes.set_xlabel("MB per round, all clients")
        _tidy(axes)
        if kinds:
            figure.legend(loc="outside upper center", ncols=4, frameon=False)
        save_figure(figure, path)


def figure_counts(
    counts: Sequence[Sequence[float]], names: Sequence[str], title: str, path: Path
) -> None:
    """Draw how many images of each class each client holds; none stays white.

    Args:
        counts: [classes, clients].
        names: of the classes, if there are as many.
        title: what stands above.
        path: where the figure goes.
    """
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    values = np.asarray(counts, dtype=float)
    classes, clients = values.shape
    with sized(2):
        figure = canvas(min(1.8 + 0.32 * clients, 9.0), min(1.2 + 0.22 * classes, 9.0))
        axes = figure.add_subplot()
        image = axes.imshow(np.ma.masked_equal(values, 0), cmap="viridis_r", aspect="auto")
        if len(names) == classes <= 60:
            axes.set_yticks(range(classes), map(literal, names))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("client")
        axes.set_title(title)
        figure.colorbar(image, ax=axes, label="images")
        save_figure(figure, path)


# --- heat maps -----------------------------------------------------------------------------------


def figure_matrix(
    matrix: Sequence[Sequence[float]], names: Sequence[str], title: str, path: Path
) -> None:
    """Draw a matrix as a heat map; small ones have their numbers written in.

    Args:
        matrix: [rows, columns].
        names: what rows and columns stand for, if there are as many.
        title: what stands above.
        path: where the figure goes.
    """
    import numpy as np

    values = np.asarray(matrix, dtype=float)
    rows, columns = values.shape
    side = min(max(3.2, 0.42 * max(rows, columns)), 11)
    figure = canvas(side + 2.0, side + 1.2)
    axes = figure.add_subplot()
    square = rows == columns and rows > 1
    # the diagonal of a similarity is 1 and would take the colours from all the rest
    seen = values[~np.eye(rows, dtype=bool)] if square else values
    image = axes.imshow(values, cmap="viridis", vmin=float(seen.min()), vmax=float(seen.max()))
    if len(names) == rows == columns and rows <= 60:
        size = 8 if rows <= 20 else 6
        shown = [literal(name) for name in names]
        axes.set_xticks(range(columns), shown, rotation=90, fontsize=size)
        axes.set_yticks(range(rows), shown, fontsize=size)
    if max(rows, columns) <= 12:
        low, high = float(seen.min()), float(seen.max())
        for (row, column), value in np.ndenumerate(values):
            dark = high == low or value < low + 0.6 * (high - low)
            colour = "white" if dark else "#111111"
            axes.text(
                column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour
            )
    axes.tick_params(length=2)
    axes.set_title(fill(literal(title), 60), fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8, fraction=0.05)
    save_figure(figure, path)


# --- common --------------------------------------------------------------------------------------


def _legend(label: str, width: int = 46) -> str:
    """Return a label of several lines; matplotlib leaves out labels with a leading underscore."""
    return fill(literal(f" {label}" if label.startswith("_") else label), width)


def canvas(width: float, height: float) -> Figure:
    """Return an empty figure; lengths in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _figure(metric: Metric, columns: Columns = 2) -> tuple[Figure, Axes]:
    figure = canvas(WIDTH[columns], {1: 2.6, 2: 4.2}[columns])
    axes = figure.add_subplot()
    axes.set_ylabel(metric_name(metric))
    return figure, axes


def _tidy(axes: Axes) -> None:
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _finish(
    figure: Figure, axes: Axes, path: Path, heading: str = "", columns: Columns = 2
) -> None:
    """Add the legend where there is room, and the heading; save."""
    _tidy(axes)
    handles, labels = axes.get_legend_handles_labels()
    if columns == 1 and len(labels) > 1:
        _legend_below(figure, axes, 2.3 + 0.12 * len(heading.splitlines()), columns)
    elif len(labels) > 6:
        figure.set_size_inches(WIDTH[2] + 2.7, 4.6)
        axes.legend(handles, labels, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    elif labels:
        axes.legend(handles, labels, frameon=False)
    if heading:
        axes.set_title(heading)
    save_figure(figure, path)


_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""By kind of file: metadata that would make two files of one figure differ."""
FIGURES = tuple(_METADATA)
"""The formats of figures."""


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure whole, so that two files of one figure are equal."""
    kind = path.suffix.removeprefix(".")
    how: dict[str, Any] = {"format": kind, "dpi": 150, "metadata": _METADATA[kind]}
    replace_whole(path, lambda temporary: figure.savefig(temporary, **how))
