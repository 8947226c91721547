"""Escape user texts for Markdown, and format Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"((?<!`)`(?!`)[^`\n]+(?<!`)`(?!`))")
"""A code span on one line; Markdown does not interpret HTML in it."""
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_NUMBER = re.compile(r"[*`(]*[-+−±]?\d")
"""The beginning of a cell that holds a number."""
_NEITHER = re.compile(r"$|–|failed")
"""The beginning of a cell that holds neither a number nor a word."""


def escape_html(text: str) -> str:
    """Escape the HTML tags and double underscores in a Markdown text, except in code spans.

    Texts are bold by `**`; `__` belongs to names such as `A.__init__()` in reasons of failures.

    Example:
        >>> escape_html("a <b>name</b>, p < 0.05, `<i>`")
        'a &lt;b>name&lt;/b>, p < 0.05, `<i>`'
    """
    parts = _CODE.split(text)
    parts[::2] = [_TAG.sub("&lt;", part).replace("__", r"\_\_") for part in parts[::2]]
    return "".join(parts)


def has_words(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Return, per column, True if it is left-aligned: the first, and those with mostly words."""
    words = [True]
    for column in range(1, len(header)):
        cells = [row[column] for row in rows if _NEITHER.match(row[column]) is None]
        words.append(2 * sum(_NUMBER.match(cell) is None for cell in cells) > len(cells))
    return words


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; HTML tags in its cells are escaped."""
    rows = list(rows)
    lines = [
        " | ".join(escape_html(text.replace("|", "\\|")) for text in row) for row in (header, *rows)
    ]
    head, *body = [f"| {line} |" for line in lines]
    sides = [":--" if words else "--:" for words in has_words(header, rows)]
    return "\n".join([head, f"|{'|'.join(sides)}|", *body])
