"""Colours, line styles and sizes of figures.

The first eight colours can be distinguished by colour-blind readers (Okabe and Ito, 2008, without
yellow, which is too light for lines). Lines also differ in style, for print in black and white.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

COLOURS = (
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
)
STYLES = ("-", "--", ":", "-.")
MARKERS = "osD^vP*Xh<"
Columns = Literal[1, 2]
"""Width of a figure, in columns of a two-column paper."""
WIDTH: dict[Columns, float] = {1: 3.35, 2: 6.9}
"""Width of a figure in inches, by columns."""


def colour(index: int) -> str:
    """Return the index-th colour, cyclically."""
    return COLOURS[index % len(COLOURS)]


def line_style(index: int) -> str:
    """Return the index-th line style, which changes after each cycle of colours."""
    return STYLES[index // len(COLOURS) % len(STYLES)]


def marker(index: int) -> str:
    """Return the index-th marker, cyclically."""
    return MARKERS[index % len(MARKERS)]


@contextmanager
def sized(columns: Columns) -> Iterator[None]:
    """Set text sizes for a figure of one or two columns, and embed text in PDFs as text."""
    from matplotlib import rc_context

    size = {1: 7.5, 2: 9.0}[columns]
    sizes = dict.fromkeys(
        ("font.size", "axes.labelsize", "axes.titlesize", "figure.titlesize"), size
    )
    small = dict.fromkeys(("legend.fontsize", "xtick.labelsize", "ytick.labelsize"), size - 1)
    kept = {"pdf.fonttype": 42, "svg.hashsalt": "fedray"}
    with rc_context({**sizes, **small, **kept}):
        yield
