"""The templates of the generated pages, and the filters that they use."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

_CODE = re.compile(r"(`[^`]*`)")


def render(template: str, **values: Any) -> str:
    """Return a page; lines between its parts are single empty ones."""
    text = _environment().get_template(f"{template}.md.j2").render(**values)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("_build"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        autoescape=False,  # pages are Markdown
    )
    environment.filters |= {"linked": linked, "cell": cell, "plain": plain}
    return environment


def linked(paper: str) -> str:
    """Return a citation with its arXiv number as a link."""
    return re.sub(r"arXiv:(\d{4}\.\d{5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", paper)


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("|", "\\|")


def plain(text: str) -> str:
    """Return Markdown that shows the characters of a docstring; code stays code."""
    parts = _CODE.split(text)
    parts[::2] = [re.sub(r"([<>*\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)
