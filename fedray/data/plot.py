"""Plots of a partition and of samples."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedray.base.errors import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Histogram = NDArray[np.int64]
Pixels = NDArray[np.uint8]
MOST_ROWS = 20
"""Number of classes of which samples are drawn."""
_MISSING = re.compile(r"Glyph (\d+) .* missing from")
"""Matplotlib's warning of a letter that no font of a text has."""
log = logging.getLogger("fedray")
MOST_CELLS = 2000
"""Beyond this number of clients, cells are smaller than a pixel; drawing an image is faster."""


class _Layout(NamedTuple):
    """Settings that depend on the size of the table; lengths in inches."""

    cell: float
    numbered: bool
    named: bool


def plot_partition(
    histograms: Mapping[str, Histogram], class_names: Sequence[str], path: Path | str | BinaryIO
) -> None:
    """Plot the number of images of each class that each client holds, as a PNG.

    Rows are classes, columns are clients; darker cells hold more images, and white cells hold
    none. Small tables show the numbers, too.

    Args:
        histograms: by title, int64 [N, C] of the same clients; drawn below each other.
        class_names: C names.
        path: the PNG's path, or a file that is open for writing.
    """
    clients, classes = next(iter(histograms.values())).shape
    small = max(clients, classes) <= 30
    layout = _Layout(cell=0.42 if small else 0.13, numbered=small, named=classes <= 100)
    figure = _figure(clients, class_names, layout, len(histograms))
    for number, (title, counts) in enumerate(histograms.items(), 1):
        axes = figure.add_subplot(len(histograms), 1, number)
        mesh = _draw_cells(axes, counts)
        if layout.numbered:
            _write_counts(axes, counts)
        _label_clients(axes, clients)
        _label_classes(axes, class_names, layout)
        axes.tick_params(length=2)
        axes.set_title(title + _title(counts), fontsize=10)
        figure.colorbar(mesh, ax=axes, label="images", shrink=0.8, fraction=0.05, aspect=30)
    save(figure, path, format="png", metadata={"Software": None})


def plot_samples(
    samples: Mapping[int, Sequence[Pixels]],
    class_names: Sequence[str],
    path: Path | str | BinaryIO,
) -> None:
    """Draw a few images of each class, one row per class, as a PNG.

    Args:
        samples: by class, images uint8 [S, S, 3]; a class may have none.
        class_names: C names; the first `MOST_ROWS` are drawn.
        path: the PNG's path, or a file that is open for writing.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = min(len(class_names), MOST_ROWS)
    columns = max((len(images) for images in samples.values()), default=1)
    figure = Figure((0.7 * columns + 2, 0.7 * rows + 0.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for label, row in enumerate(axes):
        for number, ax in enumerate(row):
            ax.set_axis_off()
            if number < len(samples.get(label, ())):
                ax.imshow(samples[label][number], interpolation="nearest", cmap="gray")
        name = literal(class_names[label])
        row[0].text(-0.1, 0.5, name, transform=row[0].transAxes, ha="right", va="center")
    save(figure, path, format="png", metadata={"Software": None})


def save(figure: Figure, path: Path | str | BinaryIO, **options: Any) -> None:
    """Save a figure; letters that the usual font lacks are drawn in an installed font.

    Without such a font, one warning names the letters.
    """
    import matplotlib
    from matplotlib.font_manager import fontManager, get_font

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure.savefig(path, **options)
    missing = {int(found[1]) for w in caught if (found := _MISSING.match(str(w.message)))}
    if not missing:
        return
    fonts = {
        font.name
        for font in fontManager.ttflist
        if "Last" not in font.name and missing <= {*get_font(font.fname).get_charmap()}
    }  # matplotlib's last resort has a box for every letter
    if not fonts:
        letters = "".join(map(chr, sorted(missing)))
        log.warning(
            "a figure lacks the letters %s: no installed font has them; install one, such as "
            "Noto Sans CJK, or use other names",
            letters,
        )
        return
    if not isinstance(path, str | Path):
        path.seek(0)
        path.truncate()
    family = [*matplotlib.rcParams["font.sans-serif"], min(fonts)]
    with matplotlib.rc_context({"font.sans-serif": family}):
        figure.savefig(path, **options)


def literal(text: str) -> str:
    """Escape control characters, and dollar signs, which matplotlib would read as formulas."""
    return printable(text).replace("$", r"\$")


def _figure(clients: int, class_names: Sequence[str], layout: _Layout, panels: int) -> Figure:
    """Return an empty figure; its size fits the cells and names, within limits."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width = min(max(4.5, clients * layout.cell), 16)
    height = min(max(2.2, len(class_names) * layout.cell), 16)
    margin = 0.6 + 0.085 * max(len(name) for name in class_names) * layout.named
    size = (width + margin + 1.2, min(panels * (height + 1.2), 160))
    figure = Figure(size, dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_cells(axes: Axes, histogram: Histogram) -> Any:
    from matplotlib.colors import PowerNorm

    cells = np.ma.masked_equal(histogram.T, 0)
    colours = PowerNorm(0.5, vmin=0, vmax=max(int(histogram.max()), 1))
    if len(histogram) > MOST_CELLS:
        classes, clients = cells.shape
        mesh: Any = axes.imshow(
            cells,
            cmap="Blues",
            norm=colours,
            aspect="auto",
            interpolation="nearest",
            origin="lower",
            extent=(0, clients, 0, classes),
        )
    else:
        mesh = axes.pcolormesh(
            cells,
            cmap="Blues",
            norm=colours,
            edgecolors="#e6e6e6",
            linewidth=0.4 if max(histogram.shape) <= 200 else 0,
        )
    axes.invert_yaxis()
    return mesh


def _write_counts(axes: Axes, histogram: Histogram) -> None:
    top = max(int(histogram.max()), 1)
    for client, k in zip(*np.nonzero(histogram), strict=True):
        count = int(histogram[client, k])
        axes.text(
            client + 0.5,
            k + 0.5,
            str(count),
            ha="center",
            va="center",
            fontsize=7 if top < 10_000 else 6,
            color="white" if count > 0.36 * top else "#222222",
        )


def _label_clients(axes: Axes, clients: int) -> None:
    """Label about 25 clients, in steps of 1, 2 or a multiple of 5."""
    step = max(1, round(clients / 25))
    ticks = np.arange(0, clients, step if step in (1, 2) else max(5, round(step / 5) * 5))
    axes.set_xticks(ticks + 0.5, [str(tick) for tick in ticks], fontsize=8)
    axes.set_xlabel("client")


def _label_classes(axes: Axes, class_names: Sequence[str], layout: _Layout) -> None:
    """Label every class by name, or, if there are many, some classes by number."""
    classes = len(class_names)
    if layout.named:
        size = 8 if layout.numbered else 6.5
        names = [literal(name) for name in class_names]
        axes.set_yticks(np.arange(classes) + 0.5, names, fontsize=size)
        return
    shown = np.arange(0, classes, max(5, classes // 100 * 5))
    axes.set_yticks(shown + 0.5, [str(k) for k in shown], fontsize=8)
    axes.set_ylabel("class")


def _title(histogram: Histogram) -> str:
    sizes = histogram.sum(1)
    least, most = sizes.min(), sizes.max()
    size = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return f"{sizes.sum():,} images, {len(histogram)} clients with {size} each"
