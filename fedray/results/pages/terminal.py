"""Printing of sections on a terminal, or in a log with 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table

from fedray.base.errors import printable
from fedray.base.markdown import has_words
from fedray.results.pages.page import Section

WHOLE = 18
"""Cells of at most this many characters, such as numbers with intervals, are never wrapped."""
GAP = 3
"""Characters between two columns."""


class Terminal(Console):
    """A console on standard output, without highlighting of numbers."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> None:
        """Raise `BrokenPipeError`, which commands handle, instead of exiting."""
        raise BrokenPipeError


def print_sections(sections: Sequence[Section], console: Console | None = None) -> None:
    """Print sections at the width of the terminal, and name columns that do not fit.

    Args:
        sections: the sections; their figures are not printed.
        console: the console; None: standard output.
    """
    console = console or Terminal()
    for section in sections:
        if section.title:
            console.print(printable(section.title), markup=False, style="bold")
        for text in section.text:
            console.print(_plain(text), markup=False)
        if section.header:
            _print_cells(section, console)
        for text in section.below:
            console.print(_plain(text), markup=False)
        for item in section.items:
            wrapped = fill(_plain(item), console.width, initial_indent="- ", subsequent_indent="  ")
            console.print(wrapped, markup=False)
        console.print()


def _print_cells(section: Section, console: Console) -> None:
    columns = [
        [printable(_plain(cell)) for cell in column]
        for column in zip(section.header, *section.rows, strict=True)
    ]
    widths = _widths(columns, console.width)
    words = has_words(section.header, section.rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for index, width in enumerate(widths):
        name = columns[index][0]
        justify: Literal["left", "right"] = "left" if words[index] else "right"
        table.add_column(fill(name, width), justify=justify, no_wrap=True)
    _, *rows = zip(*columns[: len(widths)], strict=True)
    for row in rows:
        table.add_row(*(fill(cell, width) for cell, width in zip(row, widths, strict=True)))
    console.print(table)
    omitted = [column[0] for column in columns[len(widths) :] if column[0]]
    if omitted:
        console.print(f"Columns omitted for width: {', '.join(omitted)}.", markup=False)


def _widths(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the widths of the first columns that fit, after shrinking the widest ones."""
    least = [max(_least(column, index)) for index, column in enumerate(columns)]
    while len(least) > 1 and sum(least) + GAP * len(least) > width:
        least.pop()
    widths = [max(1, *map(len, column)) for column in columns[: len(least)]]
    while sum(widths) + GAP * len(widths) > width and widths != least:
        free = [wide - narrow for wide, narrow in zip(widths, least, strict=True)]
        widths[max(range(len(widths)), key=lambda index: (free[index] > 0) * widths[index])] -= 1
    return widths


def _least(column: Sequence[str], index: int) -> Iterator[int]:
    """Yield the minimal width of each cell: its longest word, or the whole of a short cell."""
    for number, cell in enumerate(column):
        whole = index > 0 and number > 0 and len(cell) <= WHOLE
        yield len(cell) if whole else max(map(len, cell.split()), default=1)


def _plain(text: str) -> str:
    """Return a text without Markdown markup."""
    return text.replace("**", "").replace("`", "")
