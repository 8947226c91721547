"""`python -m fedray.report DIR [DIR ...]`: from results to a table and figures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from fedray.command import CommandLine, as_path, as_word, run_command
from fedray.errors import UserError, nearest
from fedray.files import file_name
from fedray.records import HEADLINE, Metric, RunFolder, Select
from fedray.report.figures import Row, figure_matrix, figure_rounds, figure_sweep, figure_traffic
from fedray.report.runs import (
    At,
    Group,
    differing,
    group,
    how_chosen,
    is_number,
    load,
    metric_of,
)
from fedray.report.runs import warnings_of as unfair
from fedray.report.table import ordered, print_table, write_csv, write_markdown

MOST_HEAT_MAPS = 12
NO_BEST = (
    "no best round: no run has validation images (data.validation_fraction); --select test chooses "
    "on the test, as the papers do"
)
"""What is said where nothing may choose."""


PROG = "python -m fedray.report"


def parser(prog: str = PROG) -> CommandLine:
    """The command line of `python -m fedray.report`."""
    cli = CommandLine(
        prog=prog,
        description="Compare runs: one line and one curve per configuration, over its seeds.",
    )
    add_folders(cli)
    cli.add_argument("--metric", type=as_word, default=HEADLINE, help=f"default: {HEADLINE}")
    cli.add_argument(
        "--at",
        choices=["best", "final"],
        help="what is ranked; default: best, or final where no run has a best round",
    )
    add_select(cli)
    cli.add_argument(
        "--base",
        type=as_word,
        metavar="METHOD",
        help="what the others are compared with, seed by seed: a method, or a whole label of the "
        "table; default: the best",
    )
    cli.add_debug()
    return cli


def add_folders(cli: argparse.ArgumentParser) -> None:
    """Add what every report takes: the runs' folders, and where it writes."""
    cli.add_argument(
        "folders",
        nargs="+",
        type=as_path,
        metavar="DIR",
        help="runs' folders, or folders of them",
    )
    cli.add_argument(
        "--out",
        type=as_path,
        metavar="DIR",
        help="default: DIR/report, or ./report for several DIRs",
    )


def add_select(cli: argparse.ArgumentParser) -> None:
    """Add what every report takes that names best rounds: what chooses them."""
    cli.add_argument(
        "--select",
        choices=get_args(Select),
        help="choose best rounds on validation or test images; default: as each run's "
        "report.select says",
    )


def out_folder(args: argparse.Namespace) -> Path:
    """Where a report goes; made when missing.

    Raises:
        UserError: when it cannot be made.
    """
    out: Path = args.out or (args.folders[0] if len(args.folders) == 1 else Path()) / "report"
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out} cannot be made: {error}") from None
    return out


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), _main, argv)


def _main(args: argparse.Namespace) -> int:
    runs = load(args.folders, args.select)
    metric = metric_of(runs, args.metric)
    groups, notes = group(runs)
    some_best = any(member.stat(metric.name, "best") for member in groups)
    at: At = args.at or ("best" if some_best else "final")
    if not some_best:
        notes.append(NO_BEST)
    groups = ordered(groups, metric, at)
    base = base_of(groups, args.base)
    files = report(groups, base, notes, out_folder(args), metric, at)
    print("wrote " + "\n      ".join(str(path) for path in files))
    return 0


def base_of(groups: Sequence[Group], name: str | None) -> Group:
    """The first group of that label or method; the first of all without a name.

    Raises:
        UserError: when there is none.
    """
    for member in groups:
        if name in (None, member.label, member.method):
            return member
    known = [member.label for member in groups]
    raise UserError(f"--base {name}: there is no such method.{nearest(str(name), known)}")


def report(
    groups: Sequence[Group], base: Group, notes: Sequence[str], out: Path, metric: Metric, at: At
) -> list[Path]:
    """Print the table; write it and the figures.

    Args:
        groups: what is compared, in the table's order.
        base: what the others are compared with.
        notes: what was left out.
        out: the folder to write to.
        metric: a metric that some of the runs have.
        at: whether groups are ranked by the metric's best or last value.

    Returns:
        The files.
    """
    warnings = [*unfair(groups), *notes]
    print_table(groups, base, metric, at, warnings)
    table = [out / "table.md", out / "table.csv"]
    write_markdown(groups, base, metric, at, warnings, table[0])
    write_csv(groups, base, metric, at, differing(groups), table[1])
    figures = [out / "by_round.png", out / "by_traffic.png"]
    figure_rounds(groups, metric, figures[0])
    figure_traffic(groups, metric, figures[1])
    return [*table, *figures, *_sweeps(groups, out, metric, at), *_heat_maps(groups, out)]


def _sweeps(groups: Sequence[Group], out: Path, metric: Metric, at: At) -> list[Path]:
    """The metric against every key in which groups of one method differ by number."""
    files = []
    for method in sorted({member.method for member in groups}):
        members = [member for member in groups if member.method == method]
        keys = differing(members)
        rows = [
            Row(
                {key: member.keys.get(key) for key in keys},
                stat.mean,
                stat.std,
                stat.n,
                member.worth(metric, at),
            )
            for member in members
            if (stat := member.stat(metric.name, at)) is not None
        ]
        for key in keys:
            values = [row.config[key] for row in rows]
            if len(set(map(repr, values))) > 2 and all(is_number(value) for value in values):
                path = out / f"sweep_{file_name(method)}_{file_name(key)}.png"
                figure_sweep(rows, key, path, metric, title=f"{method}, {how_chosen(members, at)}")
                files.append(path)
    return files


def _heat_maps(groups: Sequence[Group], out: Path) -> list[Path]:
    """The matrices of each group's first seed."""
    files: list[Path] = []
    for index, member in enumerate(groups):
        first = member.runs[0]
        folder = RunFolder(first.folder)
        for name, matrix in folder.read_matrices().items():
            if len(files) == MOST_HEAT_MAPS:
                print(f"only the first {MOST_HEAT_MAPS} heat maps are drawn")
                return files
            path = out / f"heatmap_{index + 1:02d}_{file_name(member.method)}_{file_name(name)}.png"
            title = f"{name.replace('_', ' ')}: {member.label}, seed {first.seed}"
            figure_matrix(matrix, folder.class_names(), title, path)
            files.append(path)
    return files
