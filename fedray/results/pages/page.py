"""Pages of text, tables and figures, as Markdown, HTML and LaTeX."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import chain, repeat

from markdown_it import MarkdownIt

from fedray.base.errors import printable
from fedray.base.markdown import escape_html, has_words, markdown_table

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "[": "{[}",
    "*": "{*}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "−": "$-$",
    "–": "--",
    ">": "$>$",
    "<": "$<$",
    "†": r"$^\dagger$",
    "ε": r"$\varepsilon$",
    "φ": r"$\varphi$",
}
"""LaTeX of special characters; at the start of a row, LaTeX would read `[` as an option."""
_GREEK = "alpha beta gamma delta eta theta kappa lambda mu rho sigma tau omega"
_SPECIAL |= {
    letter: rf"$\{name}$" for letter, name in zip("αβγδηθκλμρστω", _GREEK.split(" "), strict=True)
}
HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em;
       color: #222; }}
h1 {{ font-size: 1.5em; }} h2 {{ font-size: 1.15em; margin-top: 2em; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; width: fit-content;
        max-width: 100%; border: solid; border-width: 2px 0; }}
th {{ border-bottom: 1px solid; }} th, td {{ padding: .25em .8em; }}
tr:nth-child(even) td {{ background: #f4f6f8; }}
.holds {{ color: #00683f; }} .refuted {{ color: #a33600; }} .undecided {{ color: #555; }}
td[style*=right] {{ white-space: nowrap; }}
img {{ max-width: 100%; }} code {{ background: #f0f0f0; padding: 0 .2em; overflow-wrap: anywhere; }}
table + p {{ font-size: .9em; color: #444; }}
</style></head>
<body>
"""
_NEGATIVE = re.compile(r"^-(?=\d)")


@dataclass(frozen=True)
class Picture:
    """A figure in a page.

    Attributes:
        alt: description of the figure.
        content: content of the image file.
        kind: "png" or "svg".
        file: name of the image file next to the page; unique on the page.
    """

    alt: str
    content: bytes
    kind: str
    file: str

    @property
    def uri(self) -> str:
        """Return the figure as a data URI."""
        kind = {"svg": "svg+xml"}.get(self.kind, self.kind)
        return f"data:image/{kind};base64,{base64.b64encode(self.content).decode()}"


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: the heading; empty for none.
        text: paragraphs above the table.
        header: names of the columns; empty without a table.
        rows: texts of the cells.
        below: paragraphs below the table.
        items: a bulleted list at the end.
        pictures: figures between the paragraphs and the table.
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
        blocks += [f"![{escape_html(each.alt)}]({each.file})" for each in section.pictures]
        blocks += [markdown_table(section.header, section.rows)] if section.header else []
        blocks += map(escape_html, section.below)
        blocks.append("\n".join(f"- {escape_html(item)}" for item in section.items))
    return _printable("\n\n".join(filter(None, blocks))) + "\n"


def html(sections: Sequence[Section]) -> str:
    """Return a page as one HTML file with embedded figures, titled by the first section.

    Its body is that of the page in Markdown. It has no links, and only its own pictures.
    """
    pictures = {picture.file: picture.uri for section in sections for picture in section.pictures}
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table").disable("link")
    renderer.validateLink = pictures.__contains__  # type: ignore[method-assign, assignment]
    body = str(renderer.render(markdown(sections)))
    for file, uri in pictures.items():
        body = body.replace(f'src="{file}"', f'src="{uri}"', 1)
    body = re.sub(r"<strong>(holds|refuted|undecided)", r'<strong class="\1">\1', body)
    title = escape(printable(sections[0].title))
    return f"{HEAD.format(title=title)}{body}</body></html>\n"


def latex_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str,
    label: str,
    best: Sequence[tuple[int, int]] = (),
) -> str:
    """Return a LaTeX table for the package booktabs; text is left-aligned, numbers right-aligned.

    Args:
        header: names of the columns.
        rows: texts of the cells.
        caption: the caption.
        label: label for references, after "tab:"; characters other than letters, digits, dots and
            hyphens are replaced.
        best: (row, column) of cells in bold.
    """
    cells = [[escape_latex(text) for text in row] for row in rows]
    for row, column in best:
        cells[row][column] = rf"\textbf{{{cells[row][column]}}}"
    sides = "".join("l" if words else "r" for words in has_words(header, rows))
    lines = [f"    {' & '.join(row)} \\\\" for row in [map(escape_latex, header), *cells]]
    return _printable(
        "\n".join(
            [
                r"% needs \usepackage{booktabs}",
                r"\begin{table}",
                r"  \centering",
                rf"  \caption{{{escape_latex(caption)}}}",
                rf"  \label{{tab:{re.sub(r'[^A-Za-z0-9.-]', '-', label)}}}",
                rf"  \begin{{tabular}}{{{sides}}}",
                r"    \toprule",
                lines[0],
                r"    \midrule",
                *lines[1:],
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
    text = _NEGATIVE.sub("−", printable(text))
    return "".join(_SPECIAL.get(char, char) for char in text)
