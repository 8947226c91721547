"""Tables in LaTeX, for the package booktabs."""

from __future__ import annotations

from collections.abc import Sequence

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
    "†": r"$^\dagger$",
    "‡": r"$^\ddagger$",
}


def escaped(text: str) -> str:
    """A text that LaTeX prints as it is."""
    return "".join(_SPECIAL.get(char, char) for char in text)


def latex_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], caption: str, label: str
) -> str:
    """A table with its caption; the first column is text, the others numbers.

    Args:
        header: names of the columns.
        rows: texts of the cells.
        caption: what the numbers are.
        label: what the text refers to it by, after "tab:".
    """
    body = [" & ".join(map(escaped, row)) + r" \\" for row in (header, *rows)]
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{escaped(caption)}}}",
        rf"  \label{{tab:{label.replace('_', '-')}}}",
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
