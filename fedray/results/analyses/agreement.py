"""Agreement of runs on the similarity of classes (FedTSP's supplementary I.1).

In the paper, two language models describe the classes, and the similarity matrices of the text
prototypes agree moderately before training and almost perfectly after it. For every two
configurations and every common seed, this analysis correlates the upper triangles of the matrices,
from the first and from the last round with matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import click
import torch

from fedray.base.errors import UserError, nearest
from fedray.command import WORD
from fedray.evaluation.similarity import matrix_agreement
from fedray.results.analyses.harness import AnalysisRequest, Findings, analysis
from fedray.results.frame import LoadedRun, RunGroup
from fedray.results.pages.cells import SPREAD, cell
from fedray.results.pages.page import Section
from fedray.results.paired import t_interval
from fedray.storage.metric import Metric
from fedray.storage.run_folder import RunFolder

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
    click.Option(
        ["--matrix"],
        type=WORD,
        metavar="NAME",
        help="A matrix of matrices.json; default: the first one of the first run.",
    ),
)
def command(request: AnalysisRequest) -> Findings:
    """Correlate class similarity matrices between configurations, before and after training."""
    groups = request.groups
    if len(groups) < 2:
        raise UserError(
            f"the folders hold runs of {len(groups)} configuration; pass runs of two or more, for "
            "example with different text.descriptions"
        )
    name = matrix_name(groups, request.options["matrix"])
    rows = [row for a, b in combinations(groups, 2) if (row := _row(a, b, name)) is not None]
    below = (
        f"Upper triangles of `{name}`, mean {SPREAD} n common seeds. Before: the first matrix, "
        "before any server step if the method stored it; after: the last matrix."
    )
    return Findings([Section("", (), HEADER, rows, [below])])


def matrix_name(groups: Sequence[RunGroup], name: str | None) -> str:
    """Return the name of the matrix to compare: `name`, or the first run's first matrix.

    Raises:
        UserError: if a run lacks the matrix.
    """
    folders = [RunFolder(loaded.folder) for member in groups for loaded in member.runs]
    for folder in folders:
        names = list(folder.read_matrices())
        name = name or next(iter(names), None)
        if name is None or not names:
            raise UserError(
                f"{folder.path} has no matrices.json, because its method stores no similarity "
                "matrix; leave the run out"
            )
        if name not in names:
            hint = nearest(name, names)
            raise UserError(f"{folder.path} has no matrix '{name}'; leave the run out.{hint}")
    assert name is not None
    return name


def _row(a: RunGroup, b: RunGroup, name: str) -> list[str] | None:
    """Return the line of two configurations; None if they have no seed in common."""
    by_seed = {loaded.seed: loaded for loaded in b.runs}
    pairs = [(loaded, by_seed[loaded.seed]) for loaded in a.runs if loaded.seed in by_seed]
    if not pairs:
        return None
    values = [agreements(first, second, name) for first, second in pairs]
    cells = [cell(t_interval(column), CORRELATION) for column in zip(*values, strict=True)]
    return [f"{a.label} / {b.label}", str(len(pairs)), *cells]


def agreements(a: LoadedRun, b: LoadedRun, name: str) -> tuple[float, float, float, float]:
    """Correlate the upper triangles of two runs' matrices.

    Returns:
        Pearson before and after, Spearman before and after training.

    Raises:
        UserError: if the runs have different classes,.
    """
    folders = [RunFolder(loaded.folder) for loaded in (a, b)]
    if folders[0].class_names() != folders[1].class_names():
        raise UserError(
            f"{a.folder} and {b.folder} have different classes; compare runs on one data set"
        )
    first = [torch.tensor(_first(folder, name)) for folder in folders]
    last = [torch.tensor(folder.read_matrices()[name]) for folder in folders]
    before, after = matrix_agreement(*first), matrix_agreement(*last)
    return before[0], after[0], before[1], after[1]


def _first(folder: RunFolder, name: str) -> Matrix:
    """Return the matrix before any server step or, if missing, the first stored matrix."""
    matrices = folder.read_matrices("first")
    untrained = f"{name}_untrained"
    matrix: Matrix = matrices[untrained if untrained in matrices else name]
    return matrix
