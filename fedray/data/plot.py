"""A partition, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def draw_partition(
    histogram: NDArray[np.int64], class_names: Sequence[str], path: Path | str
) -> None:
    """Draw how many images of each class each client holds, as a PNG.

    Classes run down, clients to the right; a cell is darker the more images it stands for, white
    is none. Small tables have their numbers written in.

    Args:
        histogram: int64 [N, C].
        class_names: C names.
        path: where the PNG goes.

    Raises:
        ValueError: when the names do not fit the histogram.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    clients, classes = histogram.shape
    if len(class_names) != classes:
        raise ValueError(f"{len(class_names)} class names for {classes} classes")
    longest = max(len(name) for name in class_names)
    labelled = classes <= 100
    cell = 0.42 if max(clients, classes) <= 30 else 0.13
    width = min(max(4.5, clients * cell), 16)
    height = min(max(2.2, classes * cell), 16)
    margin = 0.6 + 0.085 * longest * labelled
    figure = Figure((width + margin + 1.2, height + 1.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    counts = np.ma.masked_equal(histogram.T, 0)
    top = max(int(histogram.max()), 1)
    mesh = axes.pcolormesh(
        counts,
        cmap="Blues",
        norm=PowerNorm(0.5, vmin=0, vmax=top),
        edgecolors="#e6e6e6",
        linewidth=0.4 if max(clients, classes) <= 200 else 0,
    )
    axes.invert_yaxis()
    if cell > 0.2:
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
    step = max(1, round(clients / 25))
    ticks = np.arange(0, clients, step if step in (1, 2) else max(5, round(step / 5) * 5))
    axes.set_xticks(ticks + 0.5, [str(tick) for tick in ticks], fontsize=8)
    if labelled:
        axes.set_yticks(np.arange(classes) + 0.5, class_names, fontsize=8 if cell > 0.2 else 6.5)
    else:
        shown = np.arange(0, classes, max(5, classes // 100 * 5))
        axes.set_yticks(shown + 0.5, [str(k) for k in shown], fontsize=8)
    axes.tick_params(length=2)
    sizes = histogram.sum(1)
    axes.set_xlabel("client")
    axes.set_ylabel("" if labelled else "class")
    least, most = sizes.min(), sizes.max()
    size = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    axes.set_title(f"{sizes.sum():,} images, {clients} clients with {size} each", fontsize=10)
    figure.colorbar(mesh, ax=axes, label="images", shrink=0.8, fraction=0.05, aspect=30)
    figure.savefig(path, format="png", metadata={"Software": None})
