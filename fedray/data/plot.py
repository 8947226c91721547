"""Plots of a partition and of samples."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

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
    is_small, is_named = max(clients, classes) <= 30, classes <= 100
    cell = 0.42 if is_small else 0.13
    margin = 1.8 + 0.085 * max(len(name) for name in class_names) * is_named
    width, height = min(max(4.5, clients * cell), 16), min(max(2.2, classes * cell), 16)
    figure = _figure(width + margin, min(len(histograms) * (height + 1.2), 160))
    for number, (title, counts) in enumerate(histograms.items(), 1):
        axes = figure.add_subplot(len(histograms), 1, number)
        _draw_cells(axes, counts, with_numbers=is_small)
        axes.set_xticks(steps := np.arange(0, clients, max(1, round(clients / 25))), steps)
        axes.set_xlabel("client")
        labels = np.arange(0, classes, 1 if is_named else max(5, classes // 100 * 5))
        names = [literal(class_names[k]) if is_named else str(k) for k in labels]
        axes.set_yticks(labels, names, fontsize=8 if is_small or not is_named else 6.5)
        axes.set_title(title + _title(counts), fontsize=10)
        figure.colorbar(axes.images[0], ax=axes, label="images", shrink=0.8, fraction=0.05)
    save(figure, path, format="png", metadata={"Software": None})


def _draw_cells(axes: Axes, histogram: Histogram, *, with_numbers: bool) -> None:
    """Draw the table of an int64 [N, C]; with numbers in the cells of a small one."""
    from matplotlib.colors import PowerNorm

    top = max(int(histogram.max()), 1)
    cells = np.ma.masked_equal(histogram.T, 0)
    colours = PowerNorm(0.5, vmin=0, vmax=top)
    axes.imshow(cells, cmap="Blues", norm=colours, aspect="auto", interpolation="nearest")
    for client, k in zip(*np.nonzero(histogram), strict=True) if with_numbers else ():
        count = int(histogram[client, k])
        colour = "white" if count > 0.36 * top else "#222222"
        axes.text(client, k, str(count), ha="center", va="center", fontsize=6, color=colour)


def _title(histogram: Histogram) -> str:
    sizes = histogram.sum(1)
    least, most = sizes.min(), sizes.max()
    size = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return f"{sizes.sum():,} images, {len(histogram)} clients with {size} each"


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
    rows = min(len(class_names), MOST_ROWS)
    columns = max((len(images) for images in samples.values()), default=1)
    figure = _figure(0.7 * columns + 2, 0.7 * rows + 0.2)
    for label, row in enumerate(figure.subplots(rows, columns, squeeze=False)):
        for number, ax in enumerate(row):
            ax.set_axis_off()
            if number < len(samples.get(label, ())):
                ax.imshow(samples[label][number], interpolation="nearest", cmap="gray")
        name = literal(class_names[label])
        row[0].text(-0.1, 0.5, name, transform=row[0].transAxes, ha="right", va="center")
    save(figure, path, format="png", metadata={"Software": None})


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure((width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


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
