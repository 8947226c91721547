"""`python -m fedray.report DIR [DIR ...]`: from results to a table and figures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from fedray.command import CommandLine, as_path, as_word, run_command
from fedray.errors import UserError
from fedray.files import file_name, make_folder, write_atomic
from fedray.records import HEADLINE, RunFolder, Select
from fedray.report.compared import Compared
from fedray.report.figures import (
    FIGURES,
    figure_matrix,
    figure_rounds,
    figure_traffic,
)
from fedray.report.html import html
from fedray.report.page import page
from fedray.report.palette import Columns
from fedray.report.runs import At, Group, differing, group, load, metric_of
from fedray.report.selecting import filtered, relabelled
from fedray.report.sweeps import swept_figures
from fedray.report.table import ordered, print_table, write_csv, write_latex, write_markdown

TABLES = ("md", "csv", "tex")
FORMATS = (*TABLES, *FIGURES, "html")
"""What a report can be."""
USUAL_FORMATS = ("md", "csv", "png")
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
        description="Compare runs: one line and one curve per configuration, over its seeds. "
        "Only what is comparable is compared: same images, clients, protocol and choice of rounds.",
    )
    add_runs(cli)
    add_outputs(cli)
    add_rows(cli)
    cli.add_argument(
        "--metric",
        type=as_word,
        action="append",
        help=f"repeatable, the first one ranks; default: {HEADLINE}",
    )
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


def add_rows(cli: argparse.ArgumentParser) -> None:
    """Add which runs it is about, and what their rows are called."""
    cli.add_argument(
        "--filter",
        type=as_word,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only runs whose experiment has this value (or one of several: seed=0,1); repeatable",
    )
    cli.add_argument(
        "--label",
        type=as_word,
        action="append",
        default=[],
        metavar="RUN=TEXT",
        help="what a row is called: RUN is a method, a label of the table or a run's folder; "
        "repeatable",
    )


def add_outputs(cli: argparse.ArgumentParser) -> None:
    """Add where the report goes, and in which form."""
    cli.add_argument(
        "--out",
        type=as_path,
        action="append",
        default=[],
        metavar="PATH",
        help=f"a file ({', '.join(f'.{kind}' for kind in FORMATS)}) or a folder for tables and "
        "figures; repeatable; default: DIR/report, or ./report for several DIRs",
    )
    cli.add_argument(
        "--format",
        action="append",
        choices=FORMATS,
        help="what a folder gets; repeatable; default: md, csv and png",
    )
    cli.add_argument(
        "--figure",
        choices=["rounds", "traffic"],
        default="rounds",
        help="what a figure's file shows the metric against",
    )
    cli.add_argument(
        "--columns",
        type=int,
        choices=[1, 2],
        default=2,
        help="how many columns of a paper figures span",
    )


def add_folders(cli: argparse.ArgumentParser) -> None:
    """Add what every other report takes: the runs' folders, and where it writes."""
    add_runs(cli)
    cli.add_argument(
        "--out",
        type=as_path,
        metavar="DIR",
        help="default: DIR/report, or ./report for several DIRs",
    )


def add_runs(cli: argparse.ArgumentParser) -> None:
    """Add the runs' folders."""
    cli.add_argument(
        "folders",
        nargs="+",
        type=as_path,
        metavar="DIR",
        help="runs' folders, or folders of them",
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
    folder: Path = args.out or default_folder(args.folders)
    make_folder(folder)
    return folder


def default_folder(folders: Sequence[Path]) -> Path:
    """Where a report goes that nobody says a place for."""
    return (folders[0] if len(folders) == 1 else Path()) / "report"


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), _main, argv)


def _main(args: argparse.Namespace) -> int:
    runs = filtered(load(args.folders, args.select), args.filter)
    metrics = [metric_of(runs, name) for name in dict.fromkeys(args.metric or [HEADLINE])]
    groups, notes = group(runs)
    some_best = any(member.stat(metrics[0].name, "best") for member in groups)
    at: At = args.at or ("best" if some_best else "final")
    if not some_best:
        notes.append(NO_BEST)
    groups = ordered(relabelled(groups, args.label), metrics[0], at)
    found = Compared(groups, metrics, at, args.base, notes)
    found.check_base()
    print_table(found)
    files: list[Path] = []
    for out in args.out or [default_folder(args.folders)]:
        if is_file(out):
            make_folder(out.parent)
            files.append(write_file(found, out, args))
        else:
            make_folder(out)
            files += write_folder(found, out, args)
    print("wrote " + "\n      ".join(str(path) for path in files))
    return 0


def is_file(out: Path) -> bool:
    """Whether a path names a file that a report can be; a folder of such a name is a folder.

    Raises:
        UserError: when it ends like a file of another kind.
    """
    if out.is_dir():
        return False
    kind = out.suffix.removeprefix(".")
    if kind in FORMATS:
        return True
    if kind.lower() in FORMATS:
        raise UserError(f"--out {out}: end the name in .{kind.lower()}, in small letters")
    if kind in ("jpg", "jpeg", "xlsx", "docx", "htm", "eps", "txt", "json", "tsv"):
        raise UserError(f"--out {out}: a report is {', '.join(FORMATS)}; end the name in one")
    return False


def write_file(found: Compared, path: Path, args: argparse.Namespace) -> Path:
    """Write the report as the file's suffix says; returns the file."""
    kind = path.suffix.removeprefix(".")
    if kind in TABLES:
        write_table(found, path)
    elif kind == "html":
        write_atomic(path, html(page(found, args.folders)))
    elif args.figure == "traffic":
        figure_traffic(found.groups, found.metric, path, args.columns)
    else:
        figure_rounds(found.groups, found.metrics, path, args.columns)
    return path


def write_table(found: Compared, path: Path) -> None:
    """Write the tables as the file's suffix says."""
    if path.suffix == ".md":
        write_markdown(found, path)
    elif path.suffix == ".tex":
        write_latex(found, path)
    else:
        write_csv(found, differing(found.groups), path)


def write_folder(found: Compared, out: Path, args: argparse.Namespace) -> list[Path]:
    """Write tables and figures into a folder, in each format once; returns the files."""
    files = []
    for kind in dict.fromkeys(args.format or USUAL_FORMATS):
        if kind in TABLES:
            files.append(out / f"table.{kind}")
            write_table(found, files[-1])
        elif kind == "html":
            files.append(out / "page.html")
            write_atomic(files[-1], html(page(found, args.folders)))
        else:
            files += _figures(found, out, kind, args.columns)
    return files


def _figures(found: Compared, out: Path, kind: str, columns: Columns) -> list[Path]:
    files = [out / f"by_round.{kind}", out / f"by_traffic.{kind}"]
    figure_rounds(found.groups, found.metrics, files[0], columns)
    figure_traffic(found.groups, found.metric, files[1], columns)
    sweeps = swept_figures(found.groups, out, found.metric, found.at, kind, columns)
    return [*files, *sweeps, *_heat_maps(found.groups, out, kind)]


def _heat_maps(groups: Sequence[Group], out: Path, kind: str) -> list[Path]:
    """The matrices of each group's first seed."""
    files: list[Path] = []
    for index, member in enumerate(groups):
        first = member.runs[0]
        folder = RunFolder(first.folder)
        for name, matrix in folder.read_matrices().items():
            if len(files) == MOST_HEAT_MAPS:
                print(f"only the first {MOST_HEAT_MAPS} heat maps are drawn")
                return files
            stem = f"heatmap_{index + 1:02d}_{file_name(member.method)}_{file_name(name)}"
            path = out / f"{stem}.{kind}"
            title = f"{name.replace('_', ' ')}: {member.label}, seed {first.seed}"
            figure_matrix(matrix, folder.class_names(), title, path)
            files.append(path)
    return files
