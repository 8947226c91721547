"""Tables in LaTeX, for the package booktabs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedray.report.section import has_words

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
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "ε": r"$\varepsilon$",
    "η": r"$\eta$",
    "θ": r"$\theta$",
    "κ": r"$\kappa$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "ρ": r"$\rho$",
    "σ": r"$\sigma$",
    "τ": r"$\tau$",
    "φ": r"$\varphi$",
    "ω": r"$\omega$",
}
"""Also `[`, which at the beginning of a row would be read as the space before it."""
_NEGATIVE = re.compile(r"^-(?=\d)")


def escaped(text: str) -> str:
    """A text that LaTeX prints as it is; a number's minus is one, and no hyphen."""
    return "".join(_SPECIAL.get(char, char) for char in _NEGATIVE.sub("−", text))


def latex_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], caption: str, label: str
) -> str:
    """A table with its caption; words are written from the left, numbers from the right.

    Args:
        header: names of the columns.
        rows: texts of the cells.
        caption: what the numbers are.
        label: what the text refers to it by, after "tab:"; its letters, digits, dots and hyphens.
    """
    sides = "".join("l" if words else "r" for words in has_words(header, rows))
    body = [" & ".join(map(escaped, row)) + r" \\" for row in (header, *rows)]
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{escaped(caption)}}}",
        rf"  \label{{tab:{re.sub(r'[^A-Za-z0-9.-]', '-', label)}}}",
        rf"  \begin{{tabular}}{{{sides}}}",
        r"    \toprule",
        f"    {body[0]}",
        r"    \midrule",
        *(f"    {line}" for line in body[1:]),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
