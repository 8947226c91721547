"""`fedray report DIR [DIR ...]`: finished runs as tables, figures and one page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import click

from fedray.analyses.harness import default_folder
from fedray.command import PATH, WORD, Command
from fedray.compare.blocks import Report
from fedray.compare.frame import (
    NO_BEST,
    At,
    filter_runs,
    group,
    load,
    metric_of,
    rank_groups,
    relabel,
)
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


@dataclass(frozen=True)
class Look:
    """How a report is written.

    Attributes:
        folders: the runs', which a page names.
        formats: what a folder gets.
        figure: what a figure's file shows the metric against.
        columns: how many columns of a paper figures span.
        order: the labels as the command named their runs, for LaTeX.
    """

    folders: Sequence[Path]
    formats: Sequence[str]
    figure: Literal["rounds", "traffic"]
    columns: Literal[1, 2]
    order: Sequence[str]


@click.command(cls=Command)
@click.argument("folders", nargs=-1, required=True, type=PATH, metavar="DIR...")
@click.option(
    "--out",
    "outs",
    type=PATH,
    multiple=True,
    help=f"A file ({', '.join(f'.{kind}' for kind in FORMATS)}) or a folder for tables and "
    "figures; repeatable; default: DIR/report, or ./report for several DIRs.",
)
@click.option(
    "--format",
    "formats",
    type=click.Choice(FORMATS),
    multiple=True,
    help="What a folder gets; repeatable; default: md, csv and png.",
)
@click.option(
    "--figure",
    type=click.Choice(["rounds", "traffic"]),
    default="rounds",
    show_default=True,
    help="What a figure's file shows the metric against.",
)
@click.option(
    "--columns",
    type=click.Choice([1, 2]),
    default=2,
    show_default=True,
    help="How many columns of a paper figures span.",
)
@click.option(
    "--filter",
    "wanted",
    type=WORD,
    multiple=True,
    metavar="KEY=VALUE",
    help="Only runs whose experiment has this value, or one of several: seed=0,1; repeatable.",
)
@click.option(
    "--label",
    "labels",
    type=WORD,
    multiple=True,
    metavar="RUN=TEXT",
    help="What a row is called: RUN is a method, a label of the table or a run's folder; "
    "repeatable.",
)
@click.option(
    "--metric",
    "names",
    type=WORD,
    multiple=True,
    default=[HEADLINE],
    show_default=True,
    help="Repeatable; the first one ranks.",
)
@click.option(
    "--at",
    type=click.Choice(get_args(At)),
    help="What is ranked; default: best, or final where no run has a best round.",
)
@click.option(
    "--select",
    type=click.Choice(get_args(Select)),
    help="Choose best rounds on these images; default: as each run's report.select says.",
)
@click.option(
    "--base",
    type=WORD,
    metavar="METHOD",
    help="What the others are compared with, seed by seed: a method, or a whole label of the "
    "table; default: the best.",
)
def command(
    folders: Sequence[Path],
    outs: Sequence[Path],
    formats: Sequence[str],
    figure: Literal["rounds", "traffic"],
    columns: Literal[1, 2],
    wanted: Sequence[str],
    labels: Sequence[str],
    names: Sequence[str],
    at: At | None,
    select: Select | None,
    base: str | None,
) -> None:
    """Compare runs: one line and one curve per configuration, over its seeds.

    Only what is comparable is compared: same images, clients, protocol and choice of rounds.
    """
    runs = filter_runs(load(folders, select), wanted)
    metrics = [metric_of(runs, name) for name in dict.fromkeys(names)]
    groups, notes = group(runs)
    groups = relabel(groups, labels)
    some_best = any(member.by_seed(metrics[0].name, "best") for member in groups)
    at = at or ("best" if some_best else "final")
    notes += [] if some_best else [NO_BEST]
    report = Report(rank_groups(groups, metrics[0], at), metrics, at, base, notes)
    print_sections([*sections(report), *caveats(report)])
    order = [member.label for member in groups]
    look = Look(folders, formats or USUAL_FORMATS, figure, columns, order)
    files: list[Path] = []
    for out in outs or [default_folder(folders)]:
        if is_file(out):
            make_folder(out.parent)
            write_file(report, out, look)
            files.append(out)
        else:
            make_folder(out)
            files += write_folder(report, out, look)
    print("wrote " + "\n      ".join(map(str, files)))


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


def write_file(report: Report, path: Path, look: Look) -> None:
    """Write the report as the file's suffix says."""
    writers: dict[str, Callable[[], str]] = {
        ".md": lambda: markdown([*sections(report), *caveats(report)]),
        ".tex": lambda: latex(report, path.stem, look.order),
        ".html": lambda: html(page(report, look.folders)),
    }
    if path.suffix in writers:
        write_atomic(path, writers[path.suffix]())
    elif path.suffix == ".csv":
        write_csv(report, path)
    elif look.figure == "traffic":
        figure_traffic(report.groups, report.metric, path, look.columns)
    else:
        figure_rounds(report.groups, report.metrics, path, look.columns)


def write_folder(report: Report, out: Path, look: Look) -> list[Path]:
    """Write tables and figures into a folder, each format once; returns the files."""
    files = []
    for kind in dict.fromkeys(look.formats):
        if kind in FIGURES:
            by_round, by_traffic = out / f"by_round.{kind}", out / f"by_traffic.{kind}"
            figure_rounds(report.groups, report.metrics, by_round, look.columns)
            figure_traffic(report.groups, report.metric, by_traffic, look.columns)
            files += [by_round, by_traffic]
            files += swept_figures(report.groups, out, report.metric, report.at, kind, look.columns)
            files += write_heat_maps(report.groups, out, kind)
        else:
            files.append(out / ("page.html" if kind == "html" else f"table.{kind}"))
            write_file(report, files[-1], look)
    return files
