"""A page of text, cells and figures, which Markdown, HTML and LaTeX write in their ways."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fedray.markdown import escape_html

NUMBER = re.compile(r"[*`(]*[-+−±]?\d")
"""How a cell with a number begins."""
NEITHER = re.compile(r"$|–|failed")
"""How one begins that is neither a number nor a word: there is none."""


@dataclass(frozen=True)
class Picture:
    """A figure within a page.

    Attributes:
        alt: what it shows, in words.
        content: of the file.
        kind: of the file: "png" or "svg".
        beside: what the file is called that lies beside the page, for Markdown, which has no
            figures inside; empty where none does.
    """

    alt: str
    content: bytes
    kind: str
    beside: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        title: its heading; empty for none.
        text: paragraphs above the cells.
        header: names of the columns; empty without cells.
        rows: texts of the cells.
        below: paragraphs below the cells.
        items: a list, after everything.
        pictures: figures, after the paragraphs above the cells; Markdown shows those whose file
            lies beside the page.
        folded: whether it is closed until somebody opens it, where that is possible.
    """

    title: str
    text: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    below: Sequence[str] = ()
    items: Sequence[str] = field(default_factory=list)
    pictures: Sequence[Picture] = ()
    folded: bool = False


def markdown(sections: Sequence[Section]) -> str:
    """Return the page in Markdown; HTML in its texts is shown, not interpreted."""
    parts: list[str] = []
    for index, section in enumerate(sections):
        if section.title:
            parts.append(f"{'#' if index == 0 else '##'} {escape_html(section.title)}")
        parts += map(escape_html, section.text)
        pictures = [each for each in section.pictures if each.beside]
        parts += [f"![{escape_html(each.alt)}]({each.beside})" for each in pictures]
        if section.header:
            parts.append("\n".join(markdown_table(section.header, section.rows)))
        parts += map(escape_html, section.below)
        if section.items:
            parts.append("\n".join(f"- {escape_html(item)}" for item in section.items))
    return "\n\n".join(parts) + "\n"


def has_words(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Which columns are written from the left: the first, and those of more words than numbers."""
    found = [True]
    for column in range(1, len(header)):
        cells = [row[column] for row in rows if NEITHER.match(row[column]) is None]
        found.append(2 * sum(NUMBER.match(cell) is None for cell in cells) > len(cells))
    return found


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; HTML in its cells is shown, not interpreted."""
    rows = list(rows)
    lines = [
        " | ".join(escape_html(text.replace("|", "\\|")) for text in row) for row in (header, *rows)
    ]
    head, *rest = [f"| {line} |" for line in lines]
    sides = [":--" if words else "--:" for words in has_words(header, rows)]
    return [head, f"|{'|'.join(sides)}|", *rest]
