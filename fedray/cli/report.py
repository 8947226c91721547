"""`fedray report DIR [DIR ...]`: finished runs as tables, figures and one page."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from fedray.analyses.harness import default_folder
from fedray.command import CommandLine, as_path, as_word, run_command
from fedray.compare.blocks import Report
from fedray.compare.frame import NO_BEST, At, filtered, group, load, metric_of, ordered, relabelled
from fedray.errors import UserError
from fedray.files import make_folder, write_atomic
from fedray.records import HEADLINE, Select
from fedray.render.figures import FIGURES, figure_rounds, figure_traffic, swept_figures
from fedray.render.page import html, markdown
from fedray.render.report import caveats, latex, page, sections, write_csv, write_heat_maps
from fedray.render.terminal import print_sections

TABLES = ("md", "csv", "tex")
FORMATS = (*TABLES, *FIGURES, "html")
"""What a report can be."""
USUAL_FORMATS = ("md", "csv", "png")
OTHERS = ("jpg", "jpeg", "xlsx", "docx", "htm", "eps", "txt", "json", "tsv")
"""Suffixes of files that a report cannot be."""
PROG = "fedray report"


def parser(prog: str = PROG) -> CommandLine:
    """Return the command line of `fedray report`."""
    cli = CommandLine(
        prog=prog,
        description="Compare runs: one line and one curve per configuration, over its seeds. "
        "Only what is comparable is compared: same images, clients, protocol and choice of rounds.",
    )
    cli.add_argument(
        "folders", nargs="+", type=as_path, metavar="DIR", help="runs, or folders of runs"
    )
    _add_outputs(cli)
    _add_rows(cli)
    cli.add_argument(
        "--metric",
        type=as_word,
        action="append",
        help=f"repeatable, the first one ranks; default: {HEADLINE}",
    )
    cli.add_argument(
        "--at",
        choices=get_args(At),
        help="what is ranked; default: best, or final where no run has a best round",
    )
    cli.add_argument(
        "--select",
        choices=get_args(Select),
        help="choose best rounds on these images; default: as each run's report.select says",
    )
    cli.add_argument(
        "--base",
        type=as_word,
        metavar="METHOD",
        help="what the others are compared with, seed by seed: a method, or a whole label of the "
        "table; default: the best",
    )
    cli.add_debug()
    return cli


def _add_rows(cli: argparse.ArgumentParser) -> None:
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


def _add_outputs(cli: argparse.ArgumentParser) -> None:
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


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns the exit code."""
    return run_command(parser(prog), _report, argv)


def _report(args: argparse.Namespace) -> int:
    runs = filtered(load(args.folders, args.select), args.filter)
    metrics = [metric_of(runs, name) for name in dict.fromkeys(args.metric or [HEADLINE])]
    groups, notes = group(runs)
    groups = relabelled(groups, args.label)
    some_best = any(member.by_seed(metrics[0].name, "best") for member in groups)
    at: At = args.at or ("best" if some_best else "final")
    notes += [] if some_best else [NO_BEST]
    report = Report(ordered(groups, metrics[0], at), metrics, at, args.base, notes)
    print_sections([*sections(report), *caveats(report)])
    order = [member.label for member in groups]
    files: list[Path] = []
    for out in args.out or [default_folder(args.folders)]:
        if is_file(out):
            make_folder(out.parent)
            write_file(report, out, args, order)
            files.append(out)
        else:
            make_folder(out)
            files += write_folder(report, out, args, order)
    print("wrote " + "\n      ".join(map(str, files)))
    return 0


def is_file(out: Path) -> bool:
    """Return True if a path names a file that a report can be; an existing folder is a folder.

    Raises:
        UserError: if the path ends like a file of another kind.
    """
    if out.is_dir():
        return False
    kind = out.suffix.removeprefix(".")
    if kind in FORMATS:
        return True
    if kind.lower() in FORMATS:
        raise UserError(f"--out {out}: end the name in .{kind.lower()}, in small letters")
    if kind in OTHERS:
        raise UserError(f"--out {out}: a report is {', '.join(FORMATS)}; end the name in one")
    return False


def write_file(report: Report, path: Path, args: argparse.Namespace, order: Sequence[str]) -> None:
    """Write the report as the file's suffix says."""
    writers: dict[str, Callable[[], str]] = {
        ".md": lambda: markdown([*sections(report), *caveats(report)]),
        ".tex": lambda: latex(report, path.stem, order),
        ".html": lambda: html(page(report, args.folders)),
    }
    if path.suffix in writers:
        write_atomic(path, writers[path.suffix]())
    elif path.suffix == ".csv":
        write_csv(report, path)
    elif args.figure == "traffic":
        figure_traffic(report.groups, report.metric, path, args.columns)
    else:
        figure_rounds(report.groups, report.metrics, path, args.columns)


def write_folder(
    report: Report, out: Path, args: argparse.Namespace, order: Sequence[str]
) -> list[Path]:
    """Write tables and figures into a folder, each format once; returns the files."""
    files = []
    for kind in dict.fromkeys(args.format or USUAL_FORMATS):
        if kind in FIGURES:
            by_round, by_traffic = out / f"by_round.{kind}", out / f"by_traffic.{kind}"
            figure_rounds(report.groups, report.metrics, by_round, args.columns)
            figure_traffic(report.groups, report.metric, by_traffic, args.columns)
            files += [by_round, by_traffic]
            files += swept_figures(report.groups, out, report.metric, report.at, kind, args.columns)
            files += write_heat_maps(report.groups, out, kind)
        else:
            files.append(out / ("page.html" if kind == "html" else f"table.{kind}"))
            write_file(report, files[-1], args, order)
    return files
