"""Pages of text, tables and figures: Markdown, HTML made from it, and LaTeX tables.

In texts, `**bold**` is bold in every form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import chain, repeat

from markdown_it import MarkdownIt

from fedray.base.errors import printable
from fedray.base.markdown import escape_html, has_words, markdown_table

_GREEK = "alpha beta gamma delta eta theta kappa lambda mu rho sigma tau omega"
_LATEX = str.maketrans(
    {
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
        **{sign: f"${sign}$" for sign in "<>"},
        **{sign: f"{{{sign}}}" for sign in "[*"},  # an option, at the start of a row
        **dict(zip("αβγδηθκλμρστω", (rf"$\{name}$" for name in _GREEK.split()), strict=True)),
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",
        "±": r"$\pm$",
        "×": r"$\times$",
        "≥": r"$\geq$",
        "≤": r"$\leq$",
        "−": "$-$",
        "–": "--",
        "†": r"$^\dagger$",
        "ε": r"$\varepsilon$",
        "φ": r"$\varphi$",
    }
)
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
th {{ border-bottom: 1px solid; }} th, td {{ padding: .25em .8em; }}
tr:nth-child(even) td {{ background: #f4f6f8; }}
img {{ max-width: 100%; }} code {{ background: #f0f0f0; overflow-wrap: anywhere; }}
</style></head>
<body>
"""


@dataclass(frozen=True)
class Picture:
    """A figure in a page: its description, and the name of the PNG next to the page."""

    alt: str
    file: str


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: the heading; empty for none.
        text: paragraphs above the table.
        header: names of the columns; empty without a table.
        rows: texts of the cells.
        below: paragraphs below the table.
        items: a bulleted list.
        pictures: figures at the end.
    """

    title: str
    text: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    below: Sequence[str] = ()
    items: Sequence[str] = field(default_factory=list)
    pictures: Sequence[Picture] = ()


def markdown(sections: Sequence[Section]) -> str:
    """Return a page in Markdown; HTML in texts is escaped."""
    blocks: list[str] = []
    for level, section in zip(chain("#", repeat("##")), sections, strict=False):
        blocks += [f"{level} {escape_html(section.title)}"] if section.title else []
        blocks += map(escape_html, section.text)
        blocks += [markdown_table(section.header, section.rows)] if section.header else []
        blocks += map(escape_html, section.below)
        blocks.append("\n".join(f"- {escape_html(item)}" for item in section.items))
        blocks += [f"![{escape_html(each.alt)}]({each.file})" for each in section.pictures]
    return _printable("\n\n".join(filter(None, blocks))) + "\n"


def html(sections: Sequence[Section]) -> str:
    """Return the Markdown page as HTML, titled by the first section, without links.

    It shows its own pictures only, from the files next to it.
    """
    files = {picture.file for section in sections for picture in section.pictures}
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table").disable("link")
    renderer.validateLink = files.__contains__  # type: ignore[method-assign, assignment]
    title = escape(printable(sections[0].title))
    return f"{HEAD.format(title=title)}{renderer.render(markdown(sections))}</body></html>\n"


def latex(section: Section, label: str) -> str:
    """Return the table of a section in LaTeX, for the package booktabs; `below` is its caption.

    Args:
        section: a section with a table.
        label: label for references, after "tab:"; characters other than letters, digits, dots and
            hyphens are replaced.
    """
    words = has_words(section.header, section.rows)
    first, *lines = [
        f"    {' & '.join(map(escape_latex, row))} \\\\" for row in (section.header, *section.rows)
    ]
    return _printable(
        "\n".join(
            [
                r"% needs \usepackage{booktabs}",
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{{escape_latex(' '.join(section.below))}}}",
                rf"  \label{{tab:{re.sub(r'[^A-Za-z0-9.-]', '-', label)}}}",
                rf"  \begin{{tabular}}{{{''.join('l' if word else 'r' for word in words)}}}",
                r"    \toprule",
                first,
                r"    \midrule",
                *lines,
                r"    \bottomrule",
                r"  \end{tabular}",
                "\\end{table}\n",
            ]
        )
    )


def _printable(text: str) -> str:
    """Return a text whose names of strangers hold no control characters."""
    return "\n".join(map(printable, text.split("\n")))


def escape_latex(text: str) -> str:
    """Escape a text for LaTeX; the hyphen of a negative number becomes a minus sign."""
    parts = [
        re.sub(r"^-(?=\d)", "−", printable(part)).translate(_LATEX) for part in text.split("**")
    ]
    parts[1::2] = [rf"\textbf{{{part}}}" for part in parts[1::2]]
    return "".join(parts)
