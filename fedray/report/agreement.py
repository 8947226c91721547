"""`python -m fedray.report.agreement DIR DIR [...]`: how far runs agree which classes are alike.

FedTSP's supplementary I.1: two language models describe the classes; the similarity matrices of the
text prototypes agree somewhat before training and almost wholly after it. For every two
configurations, and every seed that both have, the correlation of the matrices' upper triangles, of
the first analysis and of the last.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import combinations

import torch

from fedray.command import CommandLine, as_word, run_command
from fedray.errors import UserError, nearest
from fedray.evaluation.similarity import matrix_agreement
from fedray.files import write_atomic
from fedray.records import Metric, RunFolder
from fedray.report.cells import cell
from fedray.report.command import add_folders, out_folder
from fedray.report.runs import Group, LoadedRun, Stat, group, load
from fedray.report.section import markdown_table

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


def parser() -> CommandLine:
    """The command line of `python -m fedray.report.agreement`."""
    cli = CommandLine(
        prog="python -m fedray.report.agreement",
        description="Correlation of the runs' class similarity matrices, pair by pair, before and "
        "after training.",
    )
    add_folders(cli)
    cli.add_argument(
        "--matrix",
        type=as_word,
        metavar="NAME",
        help="which matrix of matrices.json; default: the first that all runs have",
    )
    cli.add_debug()
    return cli


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(), _main, argv)


def _main(args: argparse.Namespace) -> int:
    groups, notes = group(load(args.folders))
    if len(groups) < 2:
        raise UserError(
            f"the folders hold runs of {len(groups)} configuration; pass runs of two or more, for "
            "example with other text.descriptions"
        )
    name = matrix_name(groups, args.matrix)
    rows = [row for a, b in combinations(groups, 2) if (row := _row(a, b, name)) is not None]
    lines = [
        *markdown_table(HEADER, rows),
        "",
        f"Upper triangles of `{name}`, mean ± standard deviation over n common seeds. Before: "
        "the first analysis, before any server step where the method kept it; after: the last.",
        *(f"\n**Warning:** {note}." for note in notes),
    ]
    file = out_folder(args) / "agreement.md"
    write_atomic(file, "\n".join(lines) + "\n")
    print("\n".join(lines))
    print(f"wrote {file}")
    return 0


def matrix_name(groups: Sequence[Group], asked: str | None) -> str:
    """The matrix to compare: the one that is asked for, or the first that all runs have.

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


def _row(a: Group, b: Group, name: str) -> tuple[str, ...] | None:
    """One line for two configurations; None where they have no seed in common."""
    others = {loaded.seed: loaded for loaded in b.runs}
    pairs = [(loaded, others[loaded.seed]) for loaded in a.runs if loaded.seed in others]
    if not pairs:
        return None
    found = [agreements(first, second, name) for first, second in pairs]
    columns = [Stat.of(values) for values in zip(*found, strict=True)]
    texts = (cell(stat, CORRELATION) for stat in columns)
    return f"{a.label} / {b.label}", str(len(pairs)), *texts


def agreements(a: LoadedRun, b: LoadedRun, name: str) -> tuple[float, float, float, float]:
    """Pearson before and after, Spearman before and after, of two runs' upper triangles.

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
    """The matrix before any server step, else that of the first analysis."""
    found = folder.read_matrices("first")
    matrix = found.get(f"{name}_untrained", found.get(name))
    if matrix is None:
        raise UserError(
            f"{folder.matrices} has no first '{name}', as an earlier version wrote it; run it again"
        )
    return matrix


if __name__ == "__main__":
    raise SystemExit(main())
