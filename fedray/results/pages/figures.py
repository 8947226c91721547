"""Figures of curves, points, swept keys and heat maps, as PNG, SVG or PDF by the file's suffix.

The argument `columns` sets the width of a figure in columns of a paper. Bands and bars are 95 %
intervals over seeds; those of a sweep with fewer than four seeds are ranges, with a dot per seed.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from fedray.config import Tree
from fedray.data.plot import literal, save
from fedray.results.blocks import blocks_of
from fedray.results.frame import RunGroup
from fedray.results.labels import is_number, show_value
from fedray.results.pages.cells import is_range, metric_name, scale_of
from fedray.results.pages.palette import WIDTH, Columns, colour, line_style, marker, sized
from fedray.results.paired import Interval
from fedray.storage.files import replace_whole
from fedray.storage.metric import Metric

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CURVES = 12
"""Maximal number of curves in a figure; the best ones are drawn."""
MOST_LINES = 6
"""Maximal number of combinations of other parameters drawn as lines; more become points."""
LOG_SPAN = 20
"""The axis is logarithmic if values span more than this factor."""
LETTER = 0.09
"""Width of a letter below an axis, in inches."""
MOST_NAMED = 24
"""Maximal number of names below an axis."""


# --- curves --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    """Curves of one metric.

    Attributes:
        metric: the metric of the vertical axis.
        curves: intervals by label and position on the horizontal axis.
        levels: values by label that are drawn as horizontal lines instead of curves.
    """

    metric: Metric
    curves: Mapping[str, Mapping[int, Interval] | Mapping[float, Interval]]
    levels: Mapping[str, float] = field(default_factory=dict)


def figure_curves(
    panels: Sequence[Panel],
    path: Path,
    across: str,
    *,
    names: Sequence[str] = (),
    heading: str = "",
    columns: Columns = 2,
    log: bool = False,
) -> None:
    """Draw panels of curves with bands.

    Args:
        panels: at least one panel; a label has the same colour in all panels.
        path: the file of the figure.
        across: name of the horizontal axis.
        names: names of the positions 0, 1, ...; empty for a numeric axis.
        heading: heading above all panels.
        columns: width in columns of a paper.
        log: whether the horizontal axis is logarithmic.
    """
    labels = list(dict.fromkeys(label for panel in panels for label in panel.curves))
    beside = min(columns, len(panels))
    down = -(-len(panels) // beside)
    height = down * (2.1 if columns == 1 else 2.5) + 0.3 if len(panels) > 1 else 1.0 + 1.6 * columns
    with sized(columns):
        figure = canvas(WIDTH[columns], height)
        for number, panel in enumerate(panels, 1):
            axes = figure.add_subplot(down, beside, number)
            axes.set(xlabel=across, ylabel=metric_name(panel.metric))
            for label, curve in panel.curves.items():
                _curve(axes, labels.index(label), curve, label, panel)
            if log:
                axes.set_xscale("log")
            else:
                _place_names(axes, names)
            _tidy(axes)
        if heading:
            figure.suptitle(heading)
        if len(panels) == 1 and columns == 2 and len(labels) <= MOST_LINES:
            figure.axes[0].legend(frameon=False)
        elif len(labels) > 1:
            _legend_below(figure, height, columns)
        save_figure(figure, path)


def _curve(
    axes: Axes,
    index: int,
    curve: Mapping[int, Interval] | Mapping[float, Interval],
    label: str,
    panel: Panel,
) -> None:
    unit, shade = scale_of(panel.metric), colour(index)
    if label in panel.levels:
        text = _legend(f"{label} (sends nothing)")
        axes.axhline(unit * panel.levels[label], color=shade, linestyle=(0, (1, 1)), label=text)
        return
    xs, point = list(curve), marker(index) if len(curve) <= 12 else None
    mean = [unit * interval.mean for interval in curve.values()]
    style = line_style(index)
    axes.plot(xs, mean, style, color=shade, marker=point, markersize=3.5, label=_legend(label))
    if any(interval.n > 1 for interval in curve.values()):
        least, most = (0.0, 100.0) if panel.metric.is_share else (-math.inf, math.inf)
        halves = [
            unit * interval.half if math.isfinite(interval.half) else 0.0
            for interval in curve.values()
        ]
        low = [max(least, y - half) for y, half in zip(mean, halves, strict=True)]
        high = [min(most, y + half) for y, half in zip(mean, halves, strict=True)]
        axes.fill_between(xs, low, high, color=shade, alpha=0.14, linewidth=0)


def _place_names(axes: Axes, names: Sequence[str]) -> None:
    """Label the positions by name, or rounds by integers from 0."""
    from matplotlib.ticker import MaxNLocator

    if names:
        if len(names) <= MOST_NAMED:
            axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
        return
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, -0.03 * high), high)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _legend_below(figure: Figure, height: float, columns: Columns) -> None:
    """Add a legend below the panels, and increase the height of the figure to fit it."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    longest = max((len(line) for label in labels for line in label.splitlines()), default=1)
    beside = max(1, min(len(labels), (48 * columns) // (longest + 6)))
    lines = sum(len(label.splitlines()) for label in labels) / beside
    figure.set_size_inches(WIDTH[columns], height + 0.16 * math.ceil(lines))
    figure.legend(handles, labels, loc="outside lower center", ncols=beside, frameon=False)


def figure_rounds(
    groups: Sequence[RunGroup], metrics: Sequence[Metric], path: Path, columns: Columns = 2
) -> None:
    """Draw metrics by round, one panel per metric, for the best `MOST_CURVES` groups."""
    shown = _shown(groups, metrics[0])
    panels = [Panel(m, {member.label: member.curve(m.name) for member in shown}) for m in metrics]
    figure_curves(panels, path, "round", heading=_heading(shown, groups), columns=columns)


def figure_traffic(
    groups: Sequence[RunGroup], metric: Metric, path: Path, columns: Columns = 2
) -> None:
    """Draw a metric by cumulative traffic; methods without traffic become horizontal lines."""
    shown = _shown(groups, metric)
    curves: dict[str, dict[float, Interval]] = {}
    levels = {}
    for member in shown:
        curve, total = member.curve(metric.name), member.traffic()
        points = {total[r] / 1e6: interval for r, interval in curve.items() if r in total}
        if max(total.values()) == 0:
            levels[member.label] = list(curve.values())[-1].mean
        curves[member.label] = points
    ends = [max(curve) for label, curve in curves.items() if label not in levels]
    log = bool(ends) and max(ends) > LOG_SPAN * min(ends)
    if log:  # zero traffic has no logarithm
        curves = {k: {x: y for x, y in curve.items() if x > 0} for k, curve in curves.items()}
    across = "MB sent, up and down, all clients"
    panel = Panel(metric, curves, levels)
    figure_curves([panel], path, across, heading=_heading(shown, groups), columns=columns, log=log)


def _shown(groups: Sequence[RunGroup], metric: Metric) -> list[RunGroup]:
    return [member for member in groups if member.curve(metric.name)][:MOST_CURVES]


def _heading(shown: Sequence[RunGroup], groups: Sequence[RunGroup]) -> str:
    """Return a heading about omitted curves, and about groups that are not comparable."""
    texts = []
    if len(shown) < len(groups):
        more = len(groups) - len(shown)
        texts.append(f"the best {len(shown)}; {more} more are in the table")
    if len(blocks_of(shown)) > 1:
        texts.append("not all are comparable: see the table")
    return "\n".join(texts)


def error_points(
    axes: Axes,
    positions: Sequence[float],
    intervals: Sequence[Interval],
    shade: str,
    label: str | None = None,
    *,
    joined: bool = False,
    horizontal: bool = False,
    ranges: bool = False,
    unit: float = 1.0,
) -> None:
    """Draw means as points and intervals as bars; single seeds have no bar.

    Args:
        axes: the axes.
        positions: positions of the points on the axis that does not show values.
        intervals: one interval per point.
        shade: the colour.
        label: label in the legend.
        joined: whether the points are connected.
        horizontal: whether values are on the horizontal axis.
        ranges: whether few seeds show their range and a dot for each, see `Interval.spread`.
        unit: factor to the displayed unit.
    """
    means = [unit * interval.mean for interval in intervals]
    ends = [interval.spread if ranges else (interval.low, interval.high) for interval in intervals]
    bars: Any = None
    if any(interval.n > 1 for interval in intervals):
        sides = [(unit * low, unit * high) for low, high in ends]
        below = [mean - low for mean, (low, _) in zip(means, sides, strict=True)]
        above = [high - mean for mean, (_, high) in zip(means, sides, strict=True)]
        bars = [[size if math.isfinite(size) else 0.0 for size in side] for side in (below, above)]
    x, y = (means, positions) if horizontal else (positions, means)
    style: dict[str, Any] = {"markersize": 4, "linewidth": 1.4, "elinewidth": 0.9, "capsize": 3}
    style |= {"xerr" if horizontal else "yerr": bars, "fmt": "o-" if joined else "o"}
    axes.errorbar(x, y, color=shade, label=label, **style)
    for position, interval in zip(positions, intervals, strict=True):
        if ranges and is_range(interval):
            seeds = [unit * value for value in interval.values]
            axes.plot([position] * len(seeds), seeds, ".", color=shade, alpha=0.5, markersize=4)


# --- sweeps --------------------------------------------------------------------------------------


def figure_sweep(
    trials: pandas.DataFrame,
    parameter: str | Sequence[str],
    path: Path,
    metric: Metric,
    *,
    title: str = "",
) -> None:
    """Draw the objective by a swept parameter, with intervals over seeds.

    Each combination of the other parameters becomes a line if there are few combinations;
    otherwise every configuration is a point. The axis is logarithmic if values span more than
    `LOG_SPAN`, and categorical for strings.

    Args:
        trials: a row per configuration: the swept keys, `interval` over seeds of the metric, and
            `is_best`, whether it is circled. Rows without a finite mean are left out.
        parameter: a swept key, or several keys for one panel each.
        path: the file of the figure.
        metric: the metric of the intervals.
        title: title of the figure.

    Raises:
        ValueError: if no row has a finite value.
    """
    rows = trials.to_dict("records")
    rows = [row for row in rows if math.isfinite(row["interval"].mean)]
    if not rows:
        raise ValueError("no configuration has a value")
    parameters = [parameter] if isinstance(parameter, str) else list(parameter)
    best = next((row for row in rows if row["is_best"]), None)
    across = 2 if len(parameters) == 4 else min(len(parameters), 3)
    down = -(-len(parameters) // across)
    size = (6.4, 4.2) if across == 1 else (3.9 * across, 3.4 * down)
    figure = canvas(*size)
    for index, name in enumerate(parameters):
        axes = figure.add_subplot(down, across, index + 1)
        _panel(axes, rows, name, metric, best)
        if index % across == 0:
            axes.set_ylabel(metric_name(metric))
    if title:
        figure.suptitle(fill(literal(title), round(11 * size[0])), fontsize=10)
    save_figure(figure, path)


def _panel(
    axes: Axes, rows: Sequence[Tree], parameter: str, metric: Metric, best: Tree | None
) -> None:
    values = [row[parameter] for row in rows]
    position = place_values(axes, values)
    unit = scale_of(metric)
    lines, joined = _lines(rows, parameter)
    joined = joined and all(is_number(value) for value in values)
    for index, (label, members) in enumerate(lines):
        members = sorted(members, key=lambda row: position[repr(row[parameter])])
        xs = [position[repr(row[parameter])] for row in members]
        named = _legend(label, 28) if label else None
        points = [row["interval"] for row in members]
        shade = colour(index)
        error_points(axes, xs, points, shade, named, joined=joined, ranges=True, unit=unit)
    if best is not None:
        axes.plot(
            position[repr(best[parameter])],
            unit * best["interval"].mean,
            "o",
            markersize=11,
            markerfacecolor="none",
            markeredgecolor="#222222",
            markeredgewidth=1.1,
        )
    axes.set_xlabel(parameter.replace("algorithm.", ""))
    if metric.is_share:
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, -2.0), min(high, 102.0))  # an interval may leave 0 to 100 %
    if any(label for label, _ in lines):
        axes.legend(fontsize=7, frameon=False)
    _tidy(axes)


def place_values(axes: Axes, values: Sequence[Any]) -> dict[str, float]:
    """Set up the horizontal axis for values; return the position of each value by its repr."""
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
    names = [show_value(value) for value in distinct]
    axes.set_xlim(*_margins(axes, distinct))
    if _fit(axes, distinct, names):
        from matplotlib.ticker import NullLocator

        axes.set_xticks(distinct, names)
        axes.xaxis.set_minor_locator(NullLocator())
    elif axes.get_xscale() == "log":
        _label_decades(axes)
    return {repr(value): float(value) for value in values}


def _margins(axes: Axes, values: Sequence[Any]) -> tuple[float, float]:
    """Return the ends of the horizontal axis: the values with a margin of five per cent."""
    convert = axes.xaxis.get_transform()
    low, high = convert.transform([float(values[0]), float(values[-1])])
    margin = 0.05 * (high - low) or 0.5
    first, last = convert.inverted().transform([low - margin, high + margin])
    return float(first), float(last)


def _fit(axes: Axes, values: Sequence[Any], names: Sequence[str]) -> bool:
    """Return True if the names of all values fit side by side below the axis."""
    places = axes.transAxes.inverted().transform(
        axes.transData.transform([(float(value), 0.0) for value in values])
    )[:, 0]
    figure = axes.get_figure(root=True)
    assert figure is not None
    inches = axes.get_position().width * figure.get_size_inches()[0]
    ends = [
        (inches * x, LETTER * (len(name) + 1) / 2) for x, name in zip(places, names, strict=True)
    ]
    return all(left + half <= right - other for (left, half), (right, other) in pairwise(ends))


def _label_decades(axes: Axes) -> None:
    """Label 1, 2 and 5 times each power of ten, or over two decades the powers alone."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axes.get_xlim()
    steps = (1.0,) if high > 100 * low else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _lines(rows: Sequence[Tree], parameter: str) -> tuple[list[tuple[str, list[Tree]]], bool]:
    """Group rows by the other parameters' values if there are few; return whether to join them."""
    other_keys = sorted(rows[0].keys() - {parameter, "interval", "is_best"})
    other_keys = [key for key in other_keys if len({repr(row[key]) for row in rows}) > 1]
    combined: dict[str, list[Tree]] = defaultdict(list)
    for row in rows:
        words = [f"{k.rsplit('.', 1)[-1]}={show_value(row[k])}" for k in other_keys]
        combined[" ".join(words)].append(row)
    if len(combined) <= MOST_LINES and len(rows) >= 2 * len(combined):
        return list(combined.items()), True
    return [("", list(rows))], len(combined) == 1


# --- clients and matrices ------------------------------------------------------------------------


def figure_clients(
    values: Mapping[str, Sequence[float]], quantity: Metric, path: Path, columns: Columns = 2
) -> None:
    """Draw each client's value as a point, in one row per label, with a line at the mean.

    Args:
        values: values of the clients by label.
        quantity: the metric of the horizontal axis.
        path: the file of the figure.
        columns: width in columns of a paper.
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


def figure_matrix(
    matrix: Sequence[Sequence[float]], names: Sequence[str], title: str, path: Path
) -> None:
    """Draw a matrix as a heat map; cells of small matrices contain their values.

    Args:
        matrix: the values [rows, columns].
        names: names of rows and columns; ignored if their number does not fit.
        title: title of the figure.
        path: the file of the figure.
    """
    import numpy as np

    values = np.asarray(matrix, dtype=float)
    rows, columns = values.shape
    side = min(max(3.2, 0.42 * max(rows, columns)), 11)
    figure = canvas(side + 2.0, side + 1.2)
    axes = figure.add_subplot()
    square = rows == columns and rows > 1
    # the colour range ignores the diagonal, which is 1 in similarity matrices
    shown_values = values[~np.eye(rows, dtype=bool)] if square else values
    image = axes.imshow(
        values, cmap="viridis", vmin=float(shown_values.min()), vmax=float(shown_values.max())
    )
    if len(names) == rows == columns and rows <= 60:
        size = 8 if rows <= 20 else 6
        shown = [literal(name) for name in names]
        axes.set_xticks(range(columns), shown, rotation=90, fontsize=size)
        axes.set_yticks(range(rows), shown, fontsize=size)
    if max(rows, columns) <= 12:
        low, high = float(shown_values.min()), float(shown_values.max())
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
    """Wrap a label, and keep matplotlib from hiding labels with a leading underscore."""
    return fill(literal(f" {label}" if label.startswith("_") else label), width)


def canvas(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _tidy(axes: Axes) -> None:
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Metadata to omit by file format, so that equal figures give equal files."""
FIGURES = tuple(_METADATA)
"""The formats of figures."""


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure atomically and reproducibly."""
    kind = path.suffix.removeprefix(".")
    how: dict[str, Any] = {"format": kind, "dpi": 150, "metadata": _METADATA[kind]}
    replace_whole(path, lambda temporary: save(figure, temporary, **how))
