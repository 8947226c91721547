"""One line per group: for the terminal, as Markdown, as CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from fedray.files import write_atomic
from fedray.records import BEST, Metric
from fedray.report.runs import At, Group, Stat, how_chosen
from fedray.report.section import markdown_table

NOTHING = "–"


def pretty(metric: Metric) -> str:
    """A metric's name for people, with its unit."""
    return metric.name.replace("_", " ") + (" (%)" if metric.is_share else "")


def cell(stat: Stat | None, metric: Metric) -> str:
    """Mean ± standard deviation; without the latter for one seed."""
    if stat is None:
        return NOTHING
    if metric.is_share:
        mean, std = f"{100 * stat.mean:.2f}", f"{100 * stat.std:.2f}"
    else:
        mean, std = f"{stat.mean:.4g}", f"{stat.std:.2g}"
    return f"{mean} ± {std}" if stat.n > 1 else mean


def in_megabytes(count: float) -> str:
    """Bytes as a number of MB (10^6), with three digits that count."""
    size = count / 1e6
    return f"{size:.0f}" if size >= 100 or size == 0 else f"{size:.3g}"


def header(groups: Sequence[Group]) -> tuple[str, ...]:
    """The table's columns; the best one says on which images it was chosen."""
    return ("method", "n", how_chosen(groups, "best"), "final", "MB up", "MB down")


def _best_cell(member: Group, metric: Metric, groups: Sequence[Group]) -> str:
    """The best value; where others were chosen on other images, with how this one was."""
    shown = cell(member.stat(metric.name, "best"), metric)
    mixed = how_chosen(groups, "best") == "best" and shown != NOTHING
    return f"{shown} ({BEST[member.select]})" if mixed else shown


def cells(groups: Sequence[Group], metric: Metric) -> list[tuple[str, ...]]:
    """The table's rows: label, number of seeds, best, final, MB per round up and down."""
    return [
        (
            member.label,
            str(len(member.runs)),
            _best_cell(member, metric, groups),
            cell(member.stat(metric.name, "final"), metric),
            in_megabytes(member.per_round("up")),
            in_megabytes(member.per_round("down")),
        )
        for member in groups
    ]


DIFFERENCES = ("method", "n", "difference", "p")


def difference_cells(
    groups: Sequence[Group], base: Group, metric: Metric, at: At
) -> list[tuple[str, ...]]:
    """The rows of the comparison with `base`: label, number of seeds, difference, p."""
    rows: list[tuple[str, ...]] = []
    for member in groups:
        found = None if member is base else member.difference(base, metric.name, at)
        if found is not None:
            sign = "+" if found.stat.mean >= 0 else ""
            p = NOTHING if found.p is None else f"{found.p:.2g}"
            rows.append((member.label, str(found.stat.n), sign + cell(found.stat, metric), p))
    return rows


def difference_caption(groups: Sequence[Group], base: Group, metric: Metric, at: At) -> str:
    """What the comparison's numbers are."""
    return (
        f"{pretty(metric)}, {how_chosen(groups, at)}: difference to {base.label}, paired by seed;\n"
        "p of the two-sided t-test, not corrected for the number of comparisons"
    )


def ordered(groups: Sequence[Group], metric: Metric, at: At) -> list[Group]:
    """Groups by the mean of what chooses, the best first; then by the metric; others last."""
    sign = 1 if metric.direction == "min" else -1

    def worth(member: Group) -> tuple[bool, bool, float]:
        chooser, stat = member.worth(metric, at), member.stat(metric.name, at)
        value = chooser if chooser is not None else stat.mean if stat else 0.0
        return stat is None, chooser is None, sign * value

    return sorted(groups, key=worth)


def caption(groups: Sequence[Group], metric: Metric) -> str:
    """What the numbers are."""
    scales = " and ".join(sorted({str(member.keys.get("scale", "?")) for member in groups}))
    many = any(len(member.runs) > 1 for member in groups)
    spread = ", mean ± standard deviation over n seeds" if many else ""
    return f"{pretty(metric)}{spread} [{scales} scale];\nMB of all clients per round"


def print_table(
    groups: Sequence[Group],
    base: Group,
    metric: Metric,
    at: At,
    warnings: Sequence[str],
    console: Console | None = None,
) -> None:
    """Print the table, the comparison with `base` and the warnings below."""
    console = console or Console(highlight=False)
    _print(console, caption(groups, metric), header(groups), cells(groups, metric))
    differences = difference_cells(groups, base, metric, at)
    if differences:
        _print(console, difference_caption(groups, base, metric, at), DIFFERENCES, differences)
    for warning in warnings:
        console.print(f"warning: {warning}", style="yellow", markup=False)


def _print(
    console: Console, above: str, header: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name in header:
        table.add_column(
            name,
            justify="left" if name == "method" else "right",
            overflow="fold",
            no_wrap=name != "method",
        )
    for row in rows:
        table.add_row(*row)
    console.print(above, markup=False)
    console.print(table)


def write_markdown(
    groups: Sequence[Group],
    base: Group,
    metric: Metric,
    at: At,
    warnings: Sequence[str],
    path: Path,
) -> None:
    """The table and the comparison with `base` for a page."""
    lines = [
        *markdown_table(header(groups), cells(groups, metric)),
        "",
        caption(groups, metric).replace("\n", " ") + ".",
    ]
    differences = difference_cells(groups, base, metric, at)
    if differences:
        below = difference_caption(groups, base, metric, at).replace("\n", " ")
        lines += ["", *markdown_table(DIFFERENCES, differences), "", f"{below}."]
    for warning in warnings:
        lines += ["", f"**Warning:** {warning}."]
    write_atomic(path, "\n".join(lines) + "\n")


def write_csv(
    groups: Sequence[Group], base: Group, metric: Metric, at: At, keys: Sequence[str], path: Path
) -> None:
    """The table for other programs: fractions and bytes, unrounded.

    Args:
        groups: the rows.
        base: what the others are compared with.
        metric: what was measured.
        at: which of its values is compared.
        keys: the configuration's keys that become columns.
        path: where it goes.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = [f"{at}_{what}" for at in ("best", "final") for what in ("mean", "std")]
        traffic = ["up_bytes_per_round", "down_bytes_per_round"]
        compared = ["difference_to", "difference_at", "difference_mean", "difference_std", "p"]
        head = ["label", "algorithm", *keys, "n", "seeds", "metric", *names, *compared, *traffic]
        writer.writerow([*head, "chosen", "partition_sha256", "data_sha256"])
        for member in groups:
            row = [member.label, member.method, *(member.keys.get(key, "") for key in keys)]
            row += [len(member.runs), " ".join(map(str, member.seeds)), metric.name]
            for stat in (member.stat(metric.name, "best"), member.stat(metric.name, "final")):
                row += ["", ""] if stat is None else [stat.mean, stat.std]
            found = None if member is base else member.difference(base, metric.name, at)
            row += (
                [""] * len(compared)
                if found is None
                else [
                    base.label,
                    at,
                    found.stat.mean,
                    found.stat.std,
                    "" if found.p is None else found.p,
                ]
            )
            row += [member.per_round("up"), member.per_round("down")]
            infos = [loaded.run.info for loaded in member.runs]
            row.append(BEST[member.select])
            row.append(" ".join(info.partition_sha256 or "?" for info in infos))
            writer.writerow([*row, infos[0].data_sha256 or "?"])
    temporary.replace(path)
