"""Texts from users, made safe for Markdown pages and for the notes that MLflow shows."""

from __future__ import annotations

import re

_CODE = re.compile(r"((?<!`)`(?!`)[^`\n]+(?<!`)`(?!`))")
"""A span of code on one line, in which HTML is not interpreted."""
_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def escape_html(text: str) -> str:
    """Return a Markdown text whose HTML is shown, not interpreted; spans of code stay as they are.

    Example:
        >>> escape_html("a <b>name</b>, p < 0.05, `<i>`")
        'a &lt;b>name&lt;/b>, p < 0.05, `<i>`'
    """
    parts = _CODE.split(text)
    parts[::2] = [_TAG.sub("&lt;", part) for part in parts[::2]]
    return "".join(parts)
