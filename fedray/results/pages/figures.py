"""The figures of results: curves by rounds or bytes, points with intervals, and matrices.

Values are in the unit that is shown. Bands and bars are intervals over seeds; of fewer than four
seeds of a sweep they are ranges. Curves differ in colour (the first eight can
be told apart by colour-blind readers: Okabe and Ito, 2008) and in style, for print in black.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

from fedray.data.plot import literal, save
from fedray.results.labels import is_number, show_value
from fedray.results.paired import Interval
from fedray.storage.files import replace_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#4d4d4d")
STYLES, MARKERS = ("-", "--", ":", "-."), "osD^vP*Xh<"
Columns = Literal[1, 2]
"""Width of a figure, in columns of a two-column paper."""
WIDTH: Mapping[Columns, float] = {1: 3.35, 2: 6.9}
"""Width of a figure in inches, by columns."""
LOG_SPAN = 20
"""The axis is logarithmic if values span more than this factor."""
BARS: Mapping[str, Any] = {"markersize": 4, "elinewidth": 0.9, "capsize": 3}
"""The style of points with bars."""
MOST_NAMED = 8
"""At most so many numbers are named on their axis."""
_METADATA: Mapping[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Metadata to omit by file format, so that equal figures give equal files."""
FIGURES = tuple(_METADATA)
"""The formats of figures."""


@dataclass(frozen=True)
class Series:
    """Values with intervals.

    Attributes:
        points: intervals by position: numbers, or names in their order.
        label: label in the legend; empty for none.
        colour: index of the colour, and of the style of a curve.
        joined: whether the points of a curve are connected.
        ranges: whether bars of few seeds are their ranges, see `Interval.spread`.
        printed: a paper's mean and spread by position.
        ring: position of a point that is circled; None for none.
        is_level: whether a curve is a horizontal line at its last value.
    """

    points: Mapping[Any, Interval]
    label: str = ""
    colour: int = 0
    joined: bool = True
    ranges: bool = False
    printed: Mapping[Any, tuple[float, float | None]] = field(default_factory=dict)
    ring: Hashable = None
    is_level: bool = False


@dataclass(frozen=True)
class Plot:
    """A panel of a figure.

    Attributes:
        series: the values.
        along: name of the axis of positions; empty for none.
        value: name of the axis of values.
        positions: all positions that are named, in their order; empty: those of rounds or bytes.
        title: title of the panel.
        zero: whether a line marks the value 0.
        is_share: whether values lie between 0 and 100.
    """

    series: Sequence[Series]
    along: str
    value: str
    positions: Sequence[Any] = ()
    title: str = ""
    zero: bool = False
    is_share: bool = False


# --- curves --------------------------------------------------------------------------------------


def figure_curves(
    plots: Sequence[Plot], path: Path, *, heading: str = "", columns: Columns = 2
) -> None:
    """Draw panels of curves with bands; points that are not joined have bars.

    Args:
        plots: the panels, with the same labels.
        path: the file of the figure.
        heading: heading above all panels.
        columns: width in columns of a paper.
    """
    beside, labels = min(columns, len(plots)), len(plots[0].series)
    down = math.ceil(len(plots) / beside)
    with _sized(columns):
        figure = _canvas(WIDTH[columns], 0.6 + 0.2 * labels / columns + 2.4 * down)
        for number, plot in enumerate(plots, 1):
            axes = figure.add_subplot(down, beside, number)
            axes.set(xlabel=literal(plot.along), ylabel=literal(plot.value))
            _set_positions(axes, plot)
            for series in plot.series:
                _draw_curve(axes, series, plot)
            _tidy(axes)
        if heading:
            figure.suptitle(fill(literal(heading), round(13 * WIDTH[columns])))
        _add_legend(figure, "outside lower center", columns)
        _save(figure, path)


def _set_positions(axes: Axes, plot: Plot) -> None:
    """Name the positions of curves; make an axis of numbers logarithmic if they need it."""
    if not all(map(is_number, plot.positions)):
        names = [_legend(show_value(position), 12) for position in plot.positions]
        axes.set_xticks(range(len(names)), names, rotation=30 * (len(names) > MOST_NAMED))
        return
    values = sorted({*plot.positions})
    ends = [max(series.points) for series in plot.series if not series.is_level]
    sizes = [abs(value) for value in values if value] or ends
    if sizes and max(sizes) > LOG_SPAN * min(sizes) > 0:
        axes.set_xscale("symlog", linthresh=min(sizes))  # linear below the smallest
    elif all(isinstance(x, int) for series in plot.series for x in series.points):
        axes.locator_params("x", integer=True)
    if 0 < len(values) <= MOST_NAMED:
        axes.set_xticks(values, [show_value(value) for value in values], rotation=30)
        axes.set_xticks([], minor=True)


def _draw_curve(axes: Axes, series: Series, plot: Plot) -> None:
    shade, label = COLOURS[series.colour % len(COLOURS)], _legend(series.label)
    places: dict[str, Any] = {repr(x): x for x in (*series.points, *series.printed)}
    if not all(map(is_number, plot.positions)):
        places = {repr(name): index for index, name in enumerate(plot.positions)}
    xs, intervals = [places[repr(x)] for x in series.points], list(series.points.values())
    means, (low, high) = [i.mean for i in intervals], _ends(series, is_share=plot.is_share)
    style = STYLES[series.colour // len(COLOURS) % len(STYLES)]
    marker = MARKERS[series.colour % len(MARKERS)] if len(xs) <= 12 else ""
    if series.is_level:
        label = _legend(f"{series.label} (sends nothing)")
        axes.axhline(means[-1], color=shade, linestyle=(0, (1, 1)), label=label)
    elif series.joined:
        axes.plot(xs, means, f"{marker}{style}", color=shade, markersize=3.5, label=label)
        if low != high:
            axes.fill_between(xs, low, high, color=shade, alpha=0.14, linewidth=0)
    else:
        bars = _bars(means, low, high)
        axes.errorbar(xs, means, bars, fmt="o", color=shade, label=label, **BARS)
    if series.printed:
        papers = [mean for mean, _ in series.printed.values()]
        axes.plot([places[repr(x)] for x in series.printed], papers, "D--", color=shade, mfc="none")
    if series.ring is not None:
        spot = places[repr(series.ring)], series.points[series.ring].mean
        axes.plot(*spot, "o", markersize=11, mfc="none", mec="#222222")


def _ends(series: Series, *, is_share: bool) -> tuple[list[float], list[float]]:
    """Return the lower and the upper ends of intervals; the means where they have none."""
    least, most = (0.0, 100.0) if is_share else (-math.inf, math.inf)
    low, high = [], []
    for interval in series.points.values():
        ends = interval.spread if series.ranges else (interval.low, interval.high)
        if not all(map(math.isfinite, ends)):
            ends = (interval.mean, interval.mean)
        low.append(max(least, ends[0]))
        high.append(min(most, ends[1]))
    return low, high


def _bars(
    means: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> list[list[float]] | None:
    """Return the lengths of bars below and above the means; None if there are none."""
    if low == high:
        return None
    below = [mean - end for mean, end in zip(means, low, strict=True)]
    return [below, [end - mean for mean, end in zip(means, high, strict=True)]]


# --- points --------------------------------------------------------------------------------------


def figure_points(plots: Sequence[Plot], path: Path) -> None:
    """Draw panels of points with intervals, at most three beside each other; a line per position.

    Args:
        plots: the panels, with the same positions.
        path: the file of the figure.
    """
    names = {repr(position): index for index, position in enumerate(plots[0].positions)}
    across = 2 if len(plots) == 4 else min(len(plots), 3)
    down = math.ceil(len(plots) / across)
    figure = _canvas(2.2 + 3.0 * across, 0.9 + down * (0.9 + 0.3 * len(names)))
    for index, plot in enumerate(plots):
        axes = figure.add_subplot(down, across, index + 1)
        axes.set_yticks(range(len(names)), [literal(show_value(name)) for name in plot.positions])
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.tick_params(labelleft=index % across == 0)
        axes.set_title(literal(plot.title), fontsize=10)
        axes.set_xlabel(literal(plot.value))
        for series in plot.series:
            _draw_points(axes, series, names, is_share=plot.is_share)
        if plot.zero:
            axes.axvline(0, color="black", linewidth=0.8)
        _tidy(axes)
    _add_legend(figure, "outside upper center", 3)
    _save(figure, path)


def _draw_points(axes: Axes, series: Series, names: Mapping[str, int], *, is_share: bool) -> None:
    shade, label = COLOURS[series.colour % len(COLOURS)], _legend(series.label, 28)
    ys, intervals = [names[repr(key)] for key in series.points], list(series.points.values())
    for y, interval in zip(ys, intervals, strict=True):
        if interval.n > 1:
            axes.plot(interval.values, [y] * interval.n, ".", color=shade, alpha=0.5, markersize=4)
    means, ends = [interval.mean for interval in intervals], _ends(series, is_share=is_share)
    bars = _bars(means, *ends)
    axes.errorbar(means, ys, xerr=bars, fmt="o", color=shade, label=label, **BARS)
    if series.printed:
        beside = [names[repr(key)] + 0.25 for key in series.printed]
        papers = [mean for mean, _ in series.printed.values()]
        axes.plot(papers, beside, "D", mfc="none", color=COLOURS[1], label="the paper")


# --- matrices ------------------------------------------------------------------------------------


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
    figure = _canvas(side + 2.0, side + 1.2)
    axes = figure.add_subplot()
    # the colour range ignores the diagonal, which is 1 in similarity matrices
    coloured = values[~np.eye(rows, dtype=bool)] if rows == columns > 1 else values
    low, high = float(coloured.min()), float(coloured.max())
    image = axes.imshow(values, cmap="viridis", vmin=low, vmax=high)
    if len(names) == rows == columns and rows <= 60:
        size = 8 if rows <= 20 else 6
        shown = [literal(name) for name in names]
        axes.set_xticks(range(columns), shown, rotation=90, fontsize=size)
        axes.set_yticks(range(rows), shown, fontsize=size)
    if max(rows, columns) <= 12:
        for (row, column), value in np.ndenumerate(values):
            dark = high == low or value < low + 0.6 * (high - low)
            shade = "white" if dark else "#111111"
            text = f"{value:.2f}"
            axes.text(column, row, text, ha="center", va="center", fontsize=7, color=shade)
    axes.tick_params(length=2)
    axes.set_title(fill(literal(title), 60), fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.8, fraction=0.05)
    _save(figure, path)


# --- common --------------------------------------------------------------------------------------


@contextmanager
def _sized(columns: Columns) -> Iterator[None]:
    """Set text sizes for a figure of one or two columns, and embed text in PDFs as text."""
    from matplotlib import rc_context

    size = {1: 7.5, 2: 9.0}[columns]
    sizes = {"font.size": size, "figure.titlesize": size, "axes.titlesize": size}
    small = dict.fromkeys(("legend.fontsize", "xtick.labelsize", "ytick.labelsize"), size - 1)
    kept = {"pdf.fonttype": 42, "svg.hashsalt": "fedray"}
    with rc_context({**sizes, **small, **kept}):
        yield


def _legend(label: str, width: int = 46) -> str:
    """Wrap a label, and keep matplotlib from hiding labels with a leading underscore."""
    return fill(literal(f" {label}" if label.startswith("_") else label), width)


def _add_legend(figure: Figure, where: str, columns: int) -> None:
    """Add one legend for all panels if several labels need it."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc=where, ncols=columns, frameon=False)


def _canvas(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _tidy(axes: Axes) -> None:
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, path: Path) -> None:
    """Write a figure atomically and reproducibly."""
    kind = path.suffix.removeprefix(".")
    how: dict[str, Any] = {"format": kind, "dpi": 150, "metadata": _METADATA[kind]}
    replace_whole(path, lambda temporary: save(figure, temporary, **how))
