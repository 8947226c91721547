"""The figures of what was swept: a metric against every key in which a method's groups differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedray.files import file_name
from fedray.records import Metric
from fedray.report.figures import Row, figure_sweep
from fedray.report.palette import Columns
from fedray.report.runs import At, Group, differing, how_chosen, is_number


def swept_figures(
    groups: Sequence[Group], out: Path, metric: Metric, at: At, kind: str, columns: Columns = 2
) -> list[Path]:
    """The metric against every key in which groups of one method differ by number.

    Args:
        groups: all of them.
        out: the folder of the figures.
        metric: what is shown.
        at: its best or its last value.
        kind: "png", "svg" or "pdf".
        columns: how many columns of a paper a figure spans.

    Returns:
        The files.
    """
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
                path = out / f"sweep_{file_name(method)}_{file_name(key)}.{kind}"
                title = f"{method}, {how_chosen(members, at)}"
                figure_sweep(rows, key, path, metric, title=title, columns=columns)
                files.append(path)
    return files
