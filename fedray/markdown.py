"""Markdown of texts from users, and the one writer of Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_CODE = re.compile(r"((?<!`)`(?!`)[^`\n]+(?<!`)`(?!`))")
"""A span of code on one line, in which HTML is not interpreted."""
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
_NUMBER = re.compile(r"[*`(]*[-+−±]?\d")
"""How a cell with a number begins."""
_NEITHER = re.compile(r"$|–|failed")
"""How a cell begins that is neither a number nor a word."""


def escape_html(text: str) -> str:
    """Return a Markdown text whose HTML is shown, not interpreted; spans of code are not changed.

    Example:
        >>> escape_html("a <b>name</b>, p < 0.05, `<i>`")
        'a &lt;b>name&lt;/b>, p < 0.05, `<i>`'
    """
    parts = _CODE.split(text)
    parts[::2] = [_TAG.sub("&lt;", part) for part in parts[::2]]
    return "".join(parts)


def has_words(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Return which columns are left-aligned: the first, and those with more words than numbers."""
    words = [True]
    for column in range(1, len(header)):
        cells = [row[column] for row in rows if _NEITHER.match(row[column]) is None]
        words.append(2 * sum(_NUMBER.match(cell) is None for cell in cells) > len(cells))
    return words


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; HTML in its cells is shown, not interpreted."""
    rows = list(rows)
    lines = [
        " | ".join(escape_html(text.replace("|", "\\|")) for text in row) for row in (header, *rows)
    ]
    head, *rest = [f"| {line} |" for line in lines]
    sides = [":--" if words else "--:" for words in has_words(header, rows)]
    return "\n".join([head, f"|{'|'.join(sides)}|", *rest])
