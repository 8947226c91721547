"""`fedray report DIR [DIR ...]`: compare finished runs in tables, figures and a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import click

from fedray.base.errors import UserError
from fedray.command import PATH, WORD, Command
from fedray.results.analyses.harness import default_folder
from fedray.results.blocks import Report
from fedray.results.frame import (
    NO_BEST,
    At,
    filter_runs,
    group_runs,
    load_runs,
    metric_of,
    rank_groups,
    relabel,
)
from fedray.results.pages.figures import FIGURES, figure_rounds, figure_traffic
from fedray.results.pages.page import html, markdown
from fedray.results.pages.report import (
    caveats,
    report_latex,
    report_page,
    sections,
    write_csv,
    write_heat_maps,
    write_partitions,
)
from fedray.results.pages.terminal import print_sections
from fedray.storage.files import write_atomic
from fedray.storage.metric import HEADLINE, Select

TABLES = ("md", "csv", "tex")
FORMATS = (*TABLES, *FIGURES, "html")
"""Formats of a report."""
USUAL_FORMATS = ("md", "csv", "png")
OTHERS = ("jpg", "jpeg", "xlsx", "docx", "htm", "eps", "txt", "json", "tsv")
"""Suffixes that are refused instead of being taken for the name of a folder."""


@dataclass(frozen=True)
class ReportStyle:
    """Options for writing a report.

    Attributes:
        folders: the folders of the command line; HTML pages take the title from them.
        formats: the formats that are written into a folder.
        columns: width of figures, in columns of a paper.
        order: labels of the rows in the order of the command line, for LaTeX.
    """

    folders: Sequence[Path]
    formats: Sequence[str]
    columns: Literal[1, 2]
    order: Sequence[str]


@click.command(cls=Command)
@click.argument("folders", nargs=-1, required=True, type=PATH, metavar="DIR...")
@click.option(
    "--out",
    "outs",
    type=PATH,
    multiple=True,
    help=f"Output file ({', '.join(f'.{kind}' for kind in FORMATS)}), or folder for tables and "
    "figures; repeatable; default: DIR/report, or ./report for several DIRs.",
)
@click.option(
    "--format",
    "formats",
    type=click.Choice(FORMATS),
    multiple=True,
    help="Format of the files in a folder; repeatable; default: md, csv and png.",
)
@click.option(
    "--columns",
    type=click.Choice([1, 2]),
    default=2,
    show_default=True,
    help="Width of figures, in columns of a paper.",
)
@click.option(
    "--filter",
    "wanted",
    type=WORD,
    multiple=True,
    metavar="KEY=VALUE",
    help="Only runs with this value, or one of several values (seed=0,1); repeatable.",
)
@click.option(
    "--label",
    "labels",
    type=WORD,
    multiple=True,
    metavar="RUN=TEXT",
    help="Label of a row: RUN is a method, a label of the table or a run's folder; repeatable.",
)
@click.option(
    "--metric",
    "names",
    type=WORD,
    multiple=True,
    default=[HEADLINE],
    show_default=True,
    help="Metric to report (see fedray ls metrics); repeatable; the first one ranks the rows "
    "and chooses the round in which all are read.",
)
@click.option(
    "--at",
    type=click.Choice(get_args(At)),
    help="Rank by the best or the final round; default: best, or final if no run has a best round.",
)
@click.option(
    "--select",
    type=click.Choice(get_args(Select)),
    help="Images that select the best round; default: each run's report.select.",
)
@click.option(
    "--base",
    type=WORD,
    metavar="METHOD",
    help="Baseline of the paired comparison by seed: a method or a label of the table; default: "
    "the best.",
)
def command(
    folders: Sequence[Path],
    outs: Sequence[Path],
    formats: Sequence[str],
    columns: Literal[1, 2],
    wanted: Sequence[str],
    labels: Sequence[str],
    names: Sequence[str],
    at: At | None,
    select: Select | None,
    base: str | None,
) -> None:
    """Compare finished runs in a table and figures, averaged over seeds.

    Runs are compared only if their images, clients, protocol and selection of rounds are equal.
    """
    runs = filter_runs(load_runs(folders, select), wanted)
    metrics = [metric_of(runs, name) for name in dict.fromkeys(names)]
    groups, notes = group_runs(runs, metrics[0].name)
    groups = relabel(groups, labels)
    some_best = any(member.by_seed(metrics[0].name, "best") for member in groups)
    at = at or ("best" if some_best else "final")
    notes += [] if some_best else [NO_BEST]
    report = Report(rank_groups(groups, metrics[0], at), metrics, at, base, notes)
    print_sections([*sections(report), *caveats(report)])
    order = [member.label for member in groups]
    style = ReportStyle(folders, formats or USUAL_FORMATS, columns, order)
    files: list[Path] = []
    for out in outs or [default_folder(folders)]:
        if is_file(out):
            out.parent.mkdir(parents=True, exist_ok=True)
            write_file(report, out, style)
            files.append(out)
        else:
            out.mkdir(parents=True, exist_ok=True)
            files += write_folder(report, out, style)
    print("wrote " + "\n      ".join(map(str, files)))


def is_file(out: Path) -> bool:
    """Return True if a path names a report file, False if it names a folder.

    Raises:
        UserError: if the suffix belongs to a format that is not supported.
    """
    if out.is_dir():
        return False
    kind = out.suffix.removeprefix(".")
    if kind in FORMATS:
        return True
    if kind.lower() in FORMATS:
        raise UserError(f"--out {out}: write the suffix in small letters, .{kind.lower()}")
    if kind in OTHERS:
        raise UserError(f"--out {out}: a report cannot be .{kind}; use one of {', '.join(FORMATS)}")
    return False


def write_file(report: Report, path: Path, style: ReportStyle) -> None:
    """Write the report in the format of the file's suffix."""
    writers: dict[str, Callable[[], str]] = {
        ".md": lambda: markdown([*sections(report), *caveats(report)]),
        ".tex": lambda: report_latex(report, path.stem, style.order),
        ".html": lambda: html(report_page(report, style.folders)),
    }
    if path.suffix in writers:
        write_atomic(path, writers[path.suffix]())
    elif path.suffix == ".csv":
        write_csv(report, path)
    else:
        figure_rounds(report.groups, report.metrics, path, style.columns)


def write_folder(report: Report, out: Path, style: ReportStyle) -> list[Path]:
    """Write tables and figures in all formats into a folder; return the files."""
    files = []
    for kind in dict.fromkeys(style.formats):
        if kind in FIGURES:
            by_round, by_traffic = out / f"by_round.{kind}", out / f"by_traffic.{kind}"
            figure_rounds(report.groups, report.metrics, by_round, style.columns)
            figure_traffic(report.groups, report.metric, by_traffic, style.columns)
            files += [by_round, by_traffic]
            files += write_heat_maps(report.groups, out, kind)
            files += write_partitions(report.groups, out) if kind == "png" else []
        else:
            files.append(out / ("page.html" if kind == "html" else f"table.{kind}"))
            write_file(report, files[-1], style)
    return files
