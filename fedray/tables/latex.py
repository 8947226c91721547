"""The table in LaTeX, for the package booktabs."""

from __future__ import annotations

from fedray.tables.outcome import Outcome
from fedray.tables.page import MARK, caption, main_cells

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
    "±": r"$\pm$",
    "–": "--",
    ">": "$>$",
    "<": "$<$",
    "λ": r"$\lambda$",
    "τ": r"$\tau$",
    MARK: r"$^\dagger$",
}


def escaped(text: str) -> str:
    """A text that LaTeX prints as it is."""
    return "".join(_SPECIAL.get(char, char) for char in text)


def latex(found: Outcome) -> str:
    """The first metric's table, with its caption."""
    metric = found.metrics[0]
    header, rows = main_cells(found, metric)
    body = [" & ".join(map(escaped, row)) + r" \\" for row in (header, *rows)]
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{escaped(caption(found, metric))}}}",
        rf"  \label{{tab:{found.plan.table.replace('_', '-')}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
        r"    \toprule",
        f"    {body[0]}",
        r"    \midrule",
        *(f"    {line}" for line in body[1:]),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
