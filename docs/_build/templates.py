"""Render the templates of the generated pages."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedray.base.markdown import escape_html

_CODE = re.compile(r"(`[^`]*`)")


def render(template: str, **values: Any) -> str:
    """Render a template; runs of empty lines become single ones."""
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
    for each in (linked, cell, plain, escape_html):
        environment.filters[each.__name__] = each
    return environment


def linked(paper: str) -> str:
    """Turn the arXiv number in a citation into a link."""
    return re.sub(r"arXiv:(\d{4}\.\d{5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", paper)


def cell(text: str) -> str:
    """Escape a text for a cell of a table."""
    return text.replace("|", "\\|")


def plain(text: str) -> str:
    """Escape the special characters of Markdown in a docstring, except in code spans."""
    parts = _CODE.split(text)
    parts[::2] = [re.sub(r"([<>*\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)
