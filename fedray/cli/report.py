"""`fedray report DIR [DIR ...]`: compare finished runs in tables, figures and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from fedray.command import PATH, Command
from fedray.results.analyses.harness import default_folder
from fedray.results.comparisons import Report
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
from fedray.results.pages.figures import FIGURES, Columns
from fedray.results.pages.report import report_page, write_report
from fedray.results.pages.terminal import print_sections
from fedray.storage.metric import HEADLINE

FORMATS = ("md", "csv", "tex", "html", *FIGURES)
"""Formats of a report."""
USUAL_FORMATS = ("md", "csv", "png")


@click.command(cls=Command)
@click.argument("folders", nargs=-1, required=True, type=PATH, metavar="DIR...")
@click.option(
    "--out",
    type=PATH,
    metavar="DIR",
    help="Folder for pages and figures; default: DIR/report, or ./report for several DIRs.",
)
@click.option(
    "--format",
    "formats",
    type=click.Choice(FORMATS),
    multiple=True,
    default=USUAL_FORMATS,
    show_default=True,
    help="Format of a page, of all numbers (csv) or of the figures; repeatable.",
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
    multiple=True,
    metavar="KEY=VALUE",
    help="Only runs with this value, or one of several values (seed=0,1); repeatable.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="WHO=TEXT",
    help="Label of a row: WHO is a method or a label of the table; repeatable.",
)
@click.option(
    "--metric",
    "names",
    multiple=True,
    default=[HEADLINE],
    show_default=True,
    help="Metric to report (see fedray ls metrics); repeatable; the first one ranks the rows "
    "and chooses the round in which all are read.",
)
def command(
    folders: Sequence[Path],
    out: Path | None,
    formats: Sequence[str],
    columns: Columns,
    wanted: Sequence[str],
    labels: Sequence[str],
    names: Sequence[str],
) -> None:
    """Compare finished runs in a table and figures, averaged over seeds.

    Runs are compared only if their images, clients, protocol and selection of rounds are equal;
    the best row is the one with which the others are compared.
    """
    runs = filter_runs(load_runs(folders), wanted)
    metrics = [metric_of(runs, name) for name in dict.fromkeys(names)]
    groups, notes = group_runs(runs, metrics[0].name)
    groups = relabel(groups, labels)
    some_best = any(member.by_seed(metrics[0], "best") for member in groups)
    at: At = "best" if some_best else "final"
    notes += [] if some_best else [NO_BEST]
    report = Report(rank_groups(groups, metrics[0], at), metrics, at, notes)
    print_sections(report_page(report))
    files = write_report(report, out or default_folder(folders), formats, columns)
    print("wrote " + "\n      ".join(map(str, files)))
