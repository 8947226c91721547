"""One line per group: for the terminal, as Markdown, LaTeX and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fedray.files import write_atomic, write_rows
from fedray.markdown import escape_html
from fedray.records import BEST, Metric
from fedray.report.cells import NOTHING, cell, in_megabytes, pretty, short
from fedray.report.compared import ALPHA, Compared, Row
from fedray.report.latex import latex_table
from fedray.report.means import mean_sections
from fedray.report.runs import At, Group, how_chosen
from fedray.report.section import Section, markdown_table
from fedray.report.terminal import print_sections


def ordered(groups: Sequence[Group], metric: Metric, at: At) -> list[Group]:
    """Groups by the mean of what chooses, the best first; then by the metric; others last."""
    sign = 1 if metric.direction == "min" else -1

    def worth(member: Group) -> tuple[bool, bool, float]:
        chooser, stat = member.worth(metric, at), member.stat(metric.name, at)
        value = chooser if chooser is not None else stat.mean if stat else 0.0
        return stat is None, chooser is None, sign * value

    return sorted(groups, key=worth)


def sections(found: Compared) -> list[Section]:
    """The tables and the comparisons, a table for each set of groups that may be compared."""
    several = len(found.tables) > 1
    parts = []
    for number, groups in enumerate(found.tables, 1):
        title = f"Comparable runs {number}: {groups[0].data}" if several else ""
        parts.append(_table(found, groups, title))
        if len(found.blocks) == len(found.tables) and len(groups) > 1:
            parts.append(_differences(found, groups))
    return [*parts, *mean_sections(found)]


def _table(found: Compared, groups: Sequence[Group], title: str) -> Section:
    first, *further = found.metrics
    header = ["method", "n", how_chosen(groups, "best"), "final"]
    header += [short(metric) for metric in further]
    rows = [
        [
            member.label,
            str(len(member.runs)),
            _best_cell(member, first, groups),
            _mean(member, first, "final"),
            *(_mean(member, metric, found.at) for metric in further),
            in_megabytes(member.per_round("up")),
            in_megabytes(member.per_round("down")),
        ]
        for member in groups
    ]
    return Section(title, (), [*header, "MB up", "MB down"], rows, [caption(found, groups)])


def _best_cell(member: Group, metric: Metric, groups: Sequence[Group]) -> str:
    """The best value; where others were chosen on other images, with how this one was."""
    shown = _mean(member, metric, "best")
    mixed = how_chosen(groups, "best") == "best" and shown != NOTHING
    return f"{shown} ({BEST[member.select]})" if mixed else shown


def _mean(member: Group, metric: Metric, at: At) -> str:
    """A mean over the group's seeds; over how many, where not all of them have the number."""
    stat = member.stat(metric.name, at)
    shown = cell(stat, metric)
    return shown if stat is None or stat.n == len(member.runs) else f"{shown} (n = {stat.n})"


def caption(found: Compared, groups: Sequence[Group]) -> str:
    """What the numbers of a table are."""
    first, *further = found.metrics
    scales = " and ".join(sorted({str(member.keys.get("scale", "?")) for member in groups}))
    many = any(len(member.runs) > 1 for member in groups)
    spread = ", mean ± standard deviation over n seeds" if many else ""
    others = "".join(f"; {pretty(metric)}, {how_chosen(groups, found.at)}" for metric in further)
    chosen = found.at == "best" and all(member.select == "validation" for member in groups)
    order = "; the best on validation first" if chosen and len(groups) > 1 else ""
    return f"{pretty(first)}{spread} [{scales} scale]{others}; MB of all clients per round{order}."


def _differences(found: Compared, groups: Sequence[Group]) -> Section:
    """The comparison with the base: number of seeds, difference, corrected p, what it says."""
    metric, base = found.metric, found.base_of(groups)
    rows = []
    for row in found.rows(groups):
        sign = "+" if row.difference is not None and row.difference.mean >= 0 else ""
        n = "0" if row.difference is None else str(row.difference.n)
        p = NOTHING if row.p is None else f"{row.p:.2g}"
        rows.append([row.member.label, n, sign + cell(row.difference, metric), p, row.reading])
    below = (
        f"{pretty(metric)}, {how_chosen(groups, found.at)}: difference to {base.label}, paired by "
        "seed, mean ± standard deviation"
    )
    if any(row[3] != NOTHING for row in rows):
        below += (
            f"; p of the two-sided t-test, corrected for {len(rows)} comparison(s) by Holm; within "
            f"the spread where it is above {ALPHA:g}"
        )
    return Section(
        "", (), ["method", "n", "difference", "p (Holm)", "reading"], rows, [f"{below}."]
    )


def print_table(found: Compared, console: Console | None = None) -> None:
    """Print the tables, the comparisons and the warnings below."""
    console = console or Console(highlight=False)
    print_sections(sections(found), console)
    for warning in found.warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)


def write_markdown(found: Compared, path: Path) -> None:
    """The tables and the comparisons for a page."""
    warnings = [escape_html(f"**Warning:** {warning}.") for warning in found.warnings]
    parts = [_in_markdown(section) for section in sections(found)]
    write_atomic(path, "\n\n".join([*parts, *warnings]) + "\n")


def _in_markdown(section: Section) -> str:
    title = [f"## {escape_html(section.title)}"] if section.title else []
    table = "\n".join(markdown_table(section.header, section.rows))
    return "\n\n".join([*title, table, *map(escape_html, section.below)])


def write_latex(found: Compared, path: Path) -> None:
    """The tables for a paper, each with its caption; the comparisons and warnings as comments."""
    parts = []
    for number, section in enumerate(sections(found), 1):
        text = " ".join([*([f"{section.title}."] if section.title else []), *section.below])
        label = path.stem if number == 1 else f"{path.stem}-{number}"
        parts.append(latex_table(section.header, section.rows, text, label))
    warnings = "".join(f"% warning: {warning}\n" for warning in found.warnings)
    write_atomic(path, warnings + "\n".join(parts))


def write_csv(found: Compared, keys: Sequence[str], path: Path) -> None:
    """The table for other programs: fractions and bytes, unrounded; a line per group and metric.

    Args:
        found: what is compared; differences are of the first metric.
        keys: the configuration's keys that become columns.
        path: where it goes.
    """
    against = {
        row.member.label: row
        for block in found.blocks
        for row in found.rows(block)
        if row.difference is not None
    }
    names = [f"{at}_{what}" for at in ("best", "final") for what in ("mean", "std")]
    head = ["label", "algorithm", "data", *keys, "n", "seeds", "metric", *names, *DIFFERENCE]
    traffic = ["up_bytes_per_round", "down_bytes_per_round"]
    rows: list[list[Any]] = [[*head, *traffic, "chosen", "partition_sha256", "data_sha256"]]
    for metric in found.metrics:
        for member in found.groups:
            row = against.get(member.label) if metric is found.metric else None
            rows.append(_csv_row(found, member, metric, row, keys))
    write_rows(path, rows)


DIFFERENCE = ("difference_to", "difference_at", "difference_mean", "difference_std", "p_holm")


def _csv_row(
    found: Compared, member: Group, metric: Metric, against: Row | None, keys: Sequence[str]
) -> list[Any]:
    cells: list[Any] = [member.label, member.method, member.data]
    cells += [member.keys.get(key, "") for key in keys]
    cells += [len(member.runs), " ".join(map(str, member.seeds)), metric.name]
    for stat in (member.stat(metric.name, "best"), member.stat(metric.name, "final")):
        cells += ["", ""] if stat is None else [stat.mean, stat.std]
    if against is None or against.difference is None:
        cells += [""] * len(DIFFERENCE)
    else:
        difference, p = against.difference, "" if against.p is None else against.p
        cells += [against.base.label, found.at, difference.mean, difference.std, p]
    infos = [loaded.run.info for loaded in member.runs]
    cells += [member.per_round("up"), member.per_round("down"), BEST[member.select]]
    cells.append(" ".join(info.partition_sha256 or "?" for info in infos))
    return [*cells, infos[0].data_sha256 or "?"]
