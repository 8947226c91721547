"""The table in LaTeX, for the package booktabs."""

from __future__ import annotations

from fedray.report.latex import latex_table
from fedray.tables.outcome import Outcome
from fedray.tables.page import caption, main_cells


def latex(found: Outcome) -> str:
    """The first metric's table, with its caption."""
    metric = found.metrics[0]
    return latex_table(*main_cells(found, metric), caption(found, metric), found.plan.table)
