"""A page as one HTML file, with its figures inside: nothing else is needed to look at it."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from html import escape

from fedray.report.section import Picture, Section, has_words

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em;
       color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; border-top: 2px solid; border-bottom: 2px solid; }
th { border-bottom: 1px solid; } th, td { padding: .25em .8em; text-align: right; }
.words { text-align: left; }
tr:nth-child(even) td { background: #f4f6f8; }
.holds { color: #00683f; } .refuted { color: #a33600; } .open { color: #555; }
img { max-width: 100%; } code { background: #f0f0f0; padding: 0 .2em; overflow-wrap: anywhere; }
summary { cursor: pointer; font-size: 1.15em; font-weight: bold; margin: 1.4em 0 .6em; }
.below { font-size: .9em; color: #444; }
"""


def html(sections: Sequence[Section]) -> str:
    """The page.

    Args:
        sections: its parts, the first one with the title of all.
    """
    parts: list[str] = []
    for index, section in enumerate(sections):
        parts += _section(section, "h1" if index == 0 else "h2")
    title = escape(sections[0].title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n'
        f"<body>\n{chr(10).join(parts)}\n</body></html>\n"
    )


def _section(section: Section, level: str) -> list[str]:
    title = escape(section.title)
    if section.folded:
        return [f"<details><summary>{title}</summary>", *_content(section), "</details>"]
    return [*([f"<{level}>{title}</{level}>"] if title else []), *_content(section)]


def _content(section: Section) -> list[str]:
    parts = [f"<p>{_text(text)}</p>" for text in section.text]
    parts += [_picture(each) for each in section.pictures]
    if section.header:
        words = has_words(section.header, section.rows)
        head = _cells("th", section.header, words)
        body = [f"<tr>{_cells('td', row, words)}</tr>" for row in section.rows]
        table = "\n".join([f"<thead><tr>{head}</tr></thead><tbody>", *body, "</tbody>"])
        parts.append(f'<div class="wide"><table>\n{table}</table></div>')
    parts += [f'<p class="below">{_text(text)}</p>' for text in section.below]
    if section.items:
        items = "\n".join(f"<li>{_text(item)}</li>" for item in section.items)
        parts.append(f"<ul>\n{items}\n</ul>")
    return parts


def _cells(tag: str, texts: Sequence[str], words: Sequence[bool]) -> str:
    return "".join(
        f"<{tag}{' class=words' if left else ''}>{_text(text)}</{tag}>"
        for text, left in zip(texts, words, strict=True)
    )


def _picture(picture: Picture) -> str:
    kind = {"svg": "svg+xml"}.get(picture.kind, picture.kind)
    data = base64.b64encode(picture.content).decode()
    return f'<img alt="{escape(picture.alt)}" src="data:image/{kind};base64,{data}">'


def _text(text: str) -> str:
    """A text with its **verdicts** and `commands`."""
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*(.+?)\*\*", _strong, safe)


def _strong(match: re.Match[str]) -> str:
    words = match[1]
    kind = "open"
    if words.startswith(("refuted", "explains")):
        kind = "refuted"
    elif words.startswith(("holds", "does not")):
        kind = "holds"
    return f'<strong class="{kind}">{words}</strong>'
