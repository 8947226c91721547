"""Sections on a terminal, or in a job's log at 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table

from fedray.report.section import Section

WHOLE = 18
"""Characters of a cell that is never broken: a number with its spread or interval."""
GAP = 3
"""Characters between two columns."""


def print_sections(sections: Sequence[Section], console: Console | None = None) -> None:
    """Print sections: everything is wrapped, and what does not fit even so is named.

    Args:
        sections: what is printed, without figures.
        console: where; None: standard output.
    """
    console = console or Console(highlight=False)
    for section in sections:
        if section.title:
            console.print(section.title, markup=False, style="bold")
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
        [_plain(cell) for cell in column]
        for column in zip(section.header, *section.rows, strict=True)
    ]
    widths = _widths(columns, console.width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for index, width in enumerate(widths):
        name, *cells = columns[index]
        is_text = index == 0 or any(len(cell) > WHOLE for cell in cells)
        justify: Literal["left", "right"] = "left" if is_text else "right"
        table.add_column(fill(name, width), justify=justify, no_wrap=True)
    _, *rows = zip(*columns[: len(widths)], strict=True)
    for row in rows:
        table.add_row(*(fill(cell, width) for cell, width in zip(row, widths, strict=True)))
    console.print(table)
    left = [column[0] for column in columns[len(widths) :] if column[0]]
    if left:
        console.print(f"Too wide for here: {', '.join(left)}.", markup=False)


def _widths(columns: Sequence[Sequence[str]], width: int) -> list[int]:
    """The widths of the columns that fit, from the left; wide ones give way first."""
    least = [max(_least(column, index)) for index, column in enumerate(columns)]
    while len(least) > 1 and sum(least) + GAP * len(least) > width:
        least.pop()
    found = [max(1, *map(len, column)) for column in columns[: len(least)]]
    while sum(found) + GAP * len(found) > width and found != least:
        free = [wide - narrow for wide, narrow in zip(found, least, strict=True)]
        found[max(range(len(found)), key=lambda index: (free[index] > 0) * found[index])] -= 1
    return found


def _least(column: Sequence[str], index: int) -> Iterator[int]:
    """What each cell of a column needs: its longest word, or all of a short one with numbers."""
    for number, cell in enumerate(column):
        whole = index > 0 and number > 0 and len(cell) <= WHOLE
        yield len(cell) if whole else max(map(len, cell.split()), default=1)


def _plain(text: str) -> str:
    """Text without the marks of Markdown."""
    return text.replace("**", "").replace("`", "")
