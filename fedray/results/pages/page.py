"""Pages of text, tables and figures, as Markdown, HTML and LaTeX."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape

from jinja2 import Environment, PackageLoader

from fedray.errors import printable
from fedray.markdown import escape_html, has_words, markdown_table

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
    "‡": r"$^\ddagger$",
    "ε": r"$\varepsilon$",
    "φ": r"$\varphi$",
}
"""LaTeX of special characters; at the start of a row, LaTeX would read `[` as an option."""
_GREEK = "alpha beta gamma delta eta theta kappa lambda mu rho sigma tau omega"
_SPECIAL |= {
    letter: rf"$\{name}$" for letter, name in zip("αβγδηθκλμρστω", _GREEK.split(" "), strict=True)
}
_NEGATIVE = re.compile(r"^-(?=\d)")


@dataclass(frozen=True)
class Picture:
    """A figure in a page.

    Attributes:
        alt: description of the figure.
        content: content of the image file.
        kind: "png" or "svg".
        file: name of the image file next to the page, for Markdown, which cannot embed figures;
            "" if there is no such file.
    """

    alt: str
    content: bytes
    kind: str
    file: str = ""

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
        folded: whether the section is collapsed, in HTML.
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
    """Return a page in Markdown; HTML in texts is escaped."""
    text = _rendered("page.md.j2", sections=sections)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def html(sections: Sequence[Section]) -> str:
    """Return a page as one HTML file with embedded figures, titled by the first section."""
    return _rendered("page.html.j2", sections=sections)


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
    return _rendered(
        "table.tex.j2",
        caption=escape_latex(caption),
        label=re.sub(r"[^A-Za-z0-9.-]", "-", label),
        sides="".join("l" if words else "r" for words in has_words(header, rows)),
        header=map(escape_latex, header),
        rows=cells,
    )


def _rendered(template: str, **values: object) -> str:
    """Return a filled-in template, whose names of strangers hold no control characters."""
    text = _templates().get_template(template).render(values)
    return "\n".join(map(printable, text.split("\n")))


def escape_latex(text: str) -> str:
    """Escape a text for LaTeX; the hyphen of a negative number becomes a minus sign."""
    text = _NEGATIVE.sub("−", printable(text))
    return "".join(_SPECIAL.get(char, char) for char in text)


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("fedray.results.pages"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # each filter escapes for its format
    )
    templates.filters |= {
        "md": escape_html,
        "md_table": lambda section: markdown_table(section.header, section.rows),
        "html": escape,
        "html_text": _html_text,
        "sides": lambda section: has_words(section.header, section.rows),
    }
    return templates


def _html_text(text: str) -> str:
    """Return a text as HTML, with **verdicts** and `commands` marked up."""
    safe = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*(.+?)\*\*", _strong, safe)


def _strong(match: re.Match[str]) -> str:
    words, kind = match[1], ""
    if words.startswith(("refuted", "explains")):
        kind = ' class="refuted"'
    elif words.startswith(("holds", "does not")):
        kind = ' class="holds"'
    elif words.startswith(("undecided", "open", "no runs", "there is no")):
        kind = ' class="open"'
    return f"<strong{kind}>{words}</strong>"
