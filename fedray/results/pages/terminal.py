"""Printing of sections on a terminal, or in a log with 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedray.base.errors import printable
from fedray.base.markdown import has_words
from fedray.results.pages.page import Section

WHOLE = 21
"""Numbers of at most this many characters, with their intervals, are never wrapped."""


class Terminal(Console):
    """A console on standard output, without highlighting of numbers."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> None:
        """Raise `BrokenPipeError`, which commands handle, instead of exiting."""
        raise BrokenPipeError


def print_sections(sections: Sequence[Section], console: Console | None = None) -> None:
    """Print sections without their figures; a table that cannot be made narrower sticks out.

    Args:
        sections: the sections.
        console: the console; None: standard output.
    """
    console = console or Terminal()
    for section in sections:
        if section.title:
            console.print(printable(section.title), markup=False, style="bold")
        for text in section.text:
            console.print(_plain(text), markup=False)
        if section.header:
            table = _table(section)
            least = Measurement.get(console, console.options, table).minimum
            console.print(table, width=max(console.width, least), crop=False)
        for text in section.below:
            console.print(_plain(text), markup=False)
        for item in section.items:
            wrapped = fill(_plain(item), console.width, initial_indent="- ", subsequent_indent="  ")
            console.print(wrapped, markup=False)
        console.print()


def _table(section: Section) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    words = has_words(section.header, section.rows)
    rows = [[_plain(cell) for cell in row] for row in section.rows]
    for name, is_text, *cells in zip(section.header, words, *rows, strict=True):
        is_whole = not is_text and all(len(cell) <= WHOLE for cell in cells)
        least = max(map(len, cells), default=0)
        table.add_column(
            fill(_plain(name), max(least, 10)) if is_whole else _plain(name),
            justify="left" if is_text else "right",
            no_wrap=is_whole,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _plain(text: str) -> str:
    """Return a text without Markdown markup and control characters."""
    return printable(text.replace("**", "").replace("`", ""))
