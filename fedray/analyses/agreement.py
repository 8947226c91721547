"""How far do runs agree which classes are alike (FedTSP's supplementary I.1)?

Two language models describe the classes; the similarity matrices of the text prototypes agree
somewhat before training and almost wholly after it. For every two configurations, and every seed
that both have, this correlates the matrices' upper triangles, of the first analysis and of the
last.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import click
import torch

from fedray.analyses.harness import Findings, Request, analysis
from fedray.command import WORD
from fedray.compare.frame import Group, LoadedRun
from fedray.compare.paired import t_interval
from fedray.errors import UserError, nearest
from fedray.evaluation.similarity import matrix_agreement
from fedray.records import Metric, RunFolder
from fedray.render.cells import SPREAD, cell
from fedray.render.page import Section

CORRELATION = Metric("correlation", "correlation", None, None)
HEADER = (
    "configurations",
    "n",
    "Pearson before",
    "Pearson after",
    "Spearman before",
    "Spearman after",
)
Matrix = list[list[float]]


@analysis(
    "agreement",
    click.Option(
        ["--matrix"],
        type=WORD,
        metavar="NAME",
        help="Which matrix of matrices.json; default: the first that all runs have.",
    ),
)
def correlate_matrices(request: Request) -> Findings:
    """Correlate the runs' class similarity matrices, pair by pair, before and after training."""
    groups = request.groups
    if len(groups) < 2:
        raise UserError(
            f"the folders hold runs of {len(groups)} configuration; pass runs of two or more, for "
            "example with other text.descriptions"
        )
    name = matrix_name(groups, request.options["matrix"])
    rows = [row for a, b in combinations(groups, 2) if (row := _row(a, b, name)) is not None]
    below = (
        f"Upper triangles of `{name}`, mean {SPREAD} n common seeds. Before: the first analysis, "
        "before any server step where the method kept it; after: the last."
    )
    return Findings([Section("", (), HEADER, rows, [below])])


def matrix_name(groups: Sequence[Group], asked: str | None) -> str:
    """Return the name of the matrix to compare: `asked`, or the first that all runs have.

    Raises:
        UserError: when a run has none of that name.
    """
    folders = [RunFolder(loaded.folder) for member in groups for loaded in member.runs]
    for folder in folders:
        names = list(folder.read_matrices())
        asked = asked or next(iter(names), None)
        if asked is None or not names:
            raise UserError(
                f"{folder.path} has no matrices.json, as its method keeps no similarity matrix; "
                "leave the run out"
            )
        if asked not in names:
            hint = nearest(asked, names)
            raise UserError(f"{folder.path} has no matrix '{asked}'; leave the run out.{hint}")
    assert asked is not None
    return asked


def _row(a: Group, b: Group, name: str) -> list[str] | None:
    """Return one line for two configurations; None where they have no seed in common."""
    others = {loaded.seed: loaded for loaded in b.runs}
    pairs = [(loaded, others[loaded.seed]) for loaded in a.runs if loaded.seed in others]
    if not pairs:
        return None
    values = [agreements(first, second, name) for first, second in pairs]
    cells = [cell(t_interval(column), CORRELATION) for column in zip(*values, strict=True)]
    return [f"{a.label} / {b.label}", str(len(pairs)), *cells]


def agreements(a: LoadedRun, b: LoadedRun, name: str) -> tuple[float, float, float, float]:
    """Return Pearson before and after, Spearman before and after, of two runs' upper triangles.

    Raises:
        UserError: when they have other classes, or no first analysis.
    """
    folders = [RunFolder(loaded.folder) for loaded in (a, b)]
    if folders[0].class_names() != folders[1].class_names():
        raise UserError(f"{a.folder} and {b.folder} have other classes; compare runs on one set")
    first = [torch.tensor(_first(folder, name)) for folder in folders]
    last = [torch.tensor(folder.read_matrices()[name]) for folder in folders]
    before, after = matrix_agreement(*first), matrix_agreement(*last)
    return before[0], after[0], before[1], after[1]


def _first(folder: RunFolder, name: str) -> Matrix:
    """Return the matrix before any server step, else that of the first analysis."""
    found = folder.read_matrices("first")
    matrix = found.get(f"{name}_untrained", found.get(name))
    if matrix is None:
        raise UserError(
            f"{folder.matrices} has no first '{name}', as an earlier version wrote it; run it again"
        )
    return matrix
