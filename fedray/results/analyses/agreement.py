"""Agreement of runs on the similarity of classes (FedTSP's supplementary I.1).

In the paper, two language models describe the classes, and the similarity matrices of the text
prototypes agree moderately before training and almost perfectly after it. For every two
configurations and every common seed, this analysis correlates the upper triangles of the matrices,
from the first and from the last round with matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch

from fedray.base.errors import UserError
from fedray.evaluation.similarity import matrix_agreement
from fedray.results.analyses.harness import AnalysisRequest, analysis
from fedray.results.frame import RunGroup, interval_of
from fedray.results.pages.cells import SPREAD, cell
from fedray.results.pages.page import Section
from fedray.storage.metric import Metric
from fedray.storage.run_folder import RunFolder

CORRELATION = Metric("correlation", "correlation", None, None)
HEADER = ("configurations", "n", *(
    f"{name} {when}" for name in ("Pearson", "Spearman") for when in ("before", "after")
))  # fmt: skip


@analysis()
def command(request: AnalysisRequest) -> Sequence[Section]:
    """Correlate class similarity matrices between configurations, before and after training."""
    groups = request.groups
    if len(groups) < 2:
        raise UserError(
            f"the folders hold runs of {len(groups)} configuration; pass runs of two or more, for "
            "example with different text.descriptions"
        )
    rows = [row for a, b in combinations(groups, 2) if (row := _row(a, b))]
    below = (
        f"Upper triangles of the matrices, mean {SPREAD} n common seeds. Before: the first matrix, "
        "before any server step if the method stored it; after: the last matrix."
    )
    return [Section("", (), HEADER, rows, [below])]


def _row(a: RunGroup, b: RunGroup) -> list[str]:
    """Return the line of two configurations; empty if they have no seed in common."""
    by_seed = {run.seed: RunFolder(run.folder) for run in b.runs}
    pairs = [(RunFolder(run.folder), by_seed[run.seed]) for run in a.runs if run.seed in by_seed]
    columns = zip(*(agreements(*pair) for pair in pairs), strict=True)
    cells = [cell(interval_of(values, CORRELATION), CORRELATION) for values in columns]
    return [f"{a.label} / {b.label}", str(len(pairs)), *cells] if pairs else []


def agreements(a: RunFolder, b: RunFolder) -> tuple[float, float, float, float]:
    """Correlate the upper triangles of the first matrices of two runs.

    Returns:
        Pearson before and after, Spearman before and after training.

    Raises:
        UserError: if the runs have different classes, or one lacks the matrix.
    """
    if a.class_names() != b.class_names():
        raise UserError(
            f"{a.path} and {b.path} have different classes; compare runs on one data set"
        )
    name = next(iter(a.read_matrices()), "similarity")
    before, after = [], []
    for folder in (a, b):
        first, last = folder.read_matrices("first"), folder.read_matrices()
        if name not in last:
            raise UserError(f"{folder.path} has no matrix '{name}'; leave the run out")
        untrained = f"{name}_untrained"
        before.append(torch.tensor(first[untrained if untrained in first else name]))
        after.append(torch.tensor(last[name]))
    (pearson, spearman), (pearson_after, spearman_after) = (
        matrix_agreement(*matrices) for matrices in (before, after)
    )
    return pearson, pearson_after, spearman, spearman_after
