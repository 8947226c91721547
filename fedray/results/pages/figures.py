"""The figures of results: curves by rounds or bytes, points with intervals, and matrices.

Values are in the unit that is shown. Bands and bars are intervals over seeds; of fewer than four
seeds of a sweep they are ranges, with a dot per seed. Curves differ in colour (the first eight can
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
        joined: whether points are connected.
        ranges: whether bars of few seeds are their ranges, see `Interval.spread`.
        printed: a paper's mean and spread by position.
        ring: position of a point that is circled; None for none.
        is_level: whether a curve is a horizontal line at its last value.
    """

    points: Mapping[Any, Interval]
    label: str = ""
    colour: int = 0
    joined: bool = False
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
        positions: all positions in their order; names stand beside each other. Of curves: names of
            the positions 0, 1, ...; empty for a numeric axis.
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
    """Draw panels of curves with bands.

    The horizontal axis is logarithmic if the ends of curves differ by more than `LOG_SPAN`.

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
            axes.set(xlabel=plot.along, ylabel=plot.value)
            for series in plot.series:
                _draw_curve(axes, series, plot)
            ends = [max(series.points) for series in plot.series if not series.is_level]
            if min(ends, default=0) > 0 and max(ends) > LOG_SPAN * min(ends):
                axes.set_xscale("log", nonpositive="mask")
            elif plot.positions:
                places = range(len(plot.positions))
                axes.set_xticks(places, plot.positions, rotation=30, ha="right")
            elif all(isinstance(x, int) for series in plot.series for x in series.points):
                axes.locator_params("x", integer=True)
            _tidy(axes)
        if heading:
            figure.suptitle(heading)
        if labels > 1:
            handles, texts = figure.axes[0].get_legend_handles_labels()
            where = "outside lower center"
            figure.legend(handles, texts, loc=where, ncols=columns, frameon=False)
        _save(figure, path)


def _draw_curve(axes: Axes, series: Series, plot: Plot) -> None:
    shade = COLOURS[series.colour % len(COLOURS)]
    xs, intervals = list(series.points), list(series.points.values())
    if series.is_level:
        text = _legend(f"{series.label} (sends nothing)")
        axes.axhline(intervals[-1].mean, color=shade, linestyle=(0, (1, 1)), label=text)
        return
    means, (low, high) = [i.mean for i in intervals], _ends(intervals, is_share=plot.is_share)
    style = STYLES[series.colour // len(COLOURS) % len(STYLES)]
    marker = MARKERS[series.colour % len(MARKERS)] if len(xs) <= 12 else None
    axes.plot(
        xs, means, style, color=shade, marker=marker, markersize=3.5, label=_legend(series.label)
    )
    if low != high:
        axes.fill_between(xs, low, high, color=shade, alpha=0.14, linewidth=0)


def _ends(
    intervals: Sequence[Interval], *, is_share: bool, ranges: bool = False
) -> tuple[list[float], list[float]]:
    """Return the lower and the upper ends of intervals; the means where they have none."""
    least, most = (0.0, 100.0) if is_share else (-math.inf, math.inf)
    low, high = [], []
    for interval in intervals:
        ends = interval.spread if ranges else (interval.low, interval.high)
        if not all(map(math.isfinite, ends)):
            ends = (interval.mean, interval.mean)
        low.append(max(least, ends[0]))
        high.append(min(most, ends[1]))
    return low, high


# --- points --------------------------------------------------------------------------------------


def figure_points(
    plots: Sequence[Plot], path: Path, *, title: str = "", horizontal: bool = False
) -> None:
    """Draw panels of points with intervals, at most three in a row.

    Args:
        plots: the panels.
        path: the file of the figure.
        title: title of the figure.
        horizontal: whether values are on the horizontal axis, and positions are lines of names.
    """
    across = 2 if len(plots) == 4 else min(len(plots), 3)
    down = math.ceil(len(plots) / across)
    size = (6.4, 4.2) if len(plots) == 1 else (3.9 * across, 3.4 * down)
    if horizontal:
        size = (2.2 + 3.0 * across, 0.9 + down * (0.9 + 0.3 * len(plots[0].positions)))
    figure = _canvas(*size)
    for index, plot in enumerate(plots):
        axes = figure.add_subplot(down, across, index + 1)
        places = _place_positions(axes, plot.positions, horizontal=horizontal)
        for series in plot.series:
            _draw_points(axes, series, plot, places, horizontal=horizontal)
        axes.set_title(literal(plot.title), fontsize=10)
        names = (plot.value, plot.along) if horizontal else (plot.along, plot.value)
        axes.set(xlabel=literal(names[0]), ylabel=literal(names[1]) if index % across == 0 else "")
        if horizontal and index % across:
            axes.tick_params(labelleft=False)
        if plot.zero:
            axes.axvline(0, color="black", linewidth=0.8)
        _tidy(axes)
        if not horizontal and any(series.label for series in plot.series):
            axes.legend(frameon=False, fontsize=7)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if horizontal and labels:
        where = "outside upper center"
        figure.legend(handles, labels, loc=where, ncols=3, frameon=False, fontsize=8)
    if title:
        figure.suptitle(fill(literal(title), round(11 * size[0])), fontsize=10)
    _save(figure, path)


def _draw_points(
    axes: Axes, series: Series, plot: Plot, places: Mapping[str, float], *, horizontal: bool
) -> None:
    shade = COLOURS[series.colour % len(COLOURS)]
    xs, intervals = [places[repr(key)] for key in series.points], list(series.points.values())

    def order(x: Any, y: Any) -> tuple[Any, Any]:
        return (y, x) if horizontal else (x, y)

    for x, interval in zip(xs, intervals, strict=True):
        if interval.n > 1 and interval.values:
            spot = order([x] * interval.n, interval.values)
            axes.plot(*spot, ".", color=shade, alpha=0.5, markersize=4)
    means = [interval.mean for interval in intervals]
    low, high = _ends(intervals, is_share=plot.is_share, ranges=series.ranges)
    style: dict[str, Any] = {"markersize": 4, "linewidth": 1.4, "elinewidth": 0.9, "capsize": 3}
    if low != high:
        below = [mean - end for mean, end in zip(means, low, strict=True)]
        above = [end - mean for mean, end in zip(means, high, strict=True)]
        style["xerr" if horizontal else "yerr"] = [below, above]
    label = _legend(series.label, 28) if series.label else None
    axes.errorbar(
        *order(xs, means), fmt="o-" if series.joined else "o", color=shade, label=label, **style
    )
    if series.printed:
        beside = [places[repr(key)] + 0.25 * horizontal for key in series.printed]
        papers = [mean for mean, _ in series.printed.values()]
        style = {"mfc": "none", "color": COLOURS[1], "markersize": 5, "label": "the paper"}
        if series.joined:
            style |= {"color": shade, "label": None}
        axes.plot(*order(beside, papers), "D--" if series.joined else "D", **style)
    if series.ring is not None:
        mean = series.points[series.ring].mean
        axes.plot(
            *order(places[repr(series.ring)], mean), "o", markersize=11, mfc="none", mec="#222222"
        )


def _place_positions(axes: Axes, positions: Sequence[Any], *, horizontal: bool) -> dict[str, float]:
    """Set up the axis of positions; return the place of each position by its repr."""
    names = {repr(position): show_value(position) for position in positions}
    places = {text: float(index) for index, text in enumerate(names)}
    if horizontal:
        axes.set_yticks(range(len(names)), [literal(name) for name in names.values()])
        axes.set_ylim(len(names) - 0.5, -0.5)
    elif all(is_number(position) for position in positions):
        places = {repr(position): float(position) for position in positions}
        _scale_numbers(axes, sorted(places.values()))
    else:
        axes.set_xticks(range(len(names)), [_legend(name, 12) for name in names.values()])
        axes.set_xlim(-0.5, len(names) - 0.5)
    return places


def _scale_numbers(axes: Axes, values: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic if the values need it; name few values."""
    sizes = sorted(abs(value) for value in values if value)
    if sizes and sizes[-1] > LOG_SPAN * sizes[0]:
        axes.set_xscale("symlog", linthresh=sizes[0])  # logarithmic beyond the smallest value
    if len(values) <= MOST_NAMED:
        axes.set_xticks(values, [show_value(value) for value in values], rotation=30)
        axes.set_xticks([], minor=True)


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
