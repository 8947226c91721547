"""The page of `fedray report`: tables, comparisons and caveats; and its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedray.data.plot import plot_partition
from fedray.results.comparisons import Report, incompatibilities
from fedray.results.frame import LoadedRun, RunGroup, frame_of_groups, selection_label
from fedray.results.numbers import OF_MEANS
from fedray.results.pages.cells import (
    NOTHING,
    SPREAD,
    cell,
    in_megabytes,
    metric_name,
    p_text,
    short_name,
)
from fedray.results.pages.figures import (
    FIGURES,
    Columns,
    Plot,
    Series,
    figure_curves,
    figure_matrix,
)
from fedray.results.pages.page import Picture, Section, html, latex, markdown
from fedray.results.paired import ALPHA, Comparison, Side, t_interval
from fedray.storage.files import file_name, write_atomic
from fedray.storage.metric import Metric
from fedray.storage.run_folder import RunFolder

MOST_CURVES = 12
"""Maximal number of curves in a figure; the best ones are drawn."""
MOST_PARTITIONS = 3
"""Maximal number of partitions that are drawn."""
MOST_MATRICES = 12
"""Maximal number of matrices that are drawn."""


def report_page(report: Report) -> list[Section]:
    """Return the table of all groups, the comparisons with the best ones, and the caveats."""
    parts = [_table(report)]
    if report.differences:
        parts.append(_differences(report))
    if len(report.numbers.columns) > 1:
        parts += [_over_data(report, metric) for metric in report.metrics]
    notes = [f"{note}." for note in report.caveats]
    return [*parts, *([Section("Before you compare", items=notes)] if notes else [])]


def _table(report: Report) -> Section:
    """Return the table of groups: every metric in the chosen round, the first in the last, too."""
    (first, *further), groups = report.metrics, report.groups
    frames = [(report.numbers, metric) for metric in report.metrics]
    header = ["method", "n", selection_label(groups, report.at), *map(short_name, further)]
    if report.at == "best":
        frames.append((frame_of_groups(groups, [first], "final"), first))
        header.append("final")
    rows = []
    for member in groups:
        count, texts = len(member.runs), list[str]()
        for numbers, metric in frames:
            interval = numbers.interval(member.side, metric.name)
            few = f" (n = {interval.n})" if interval and interval.n < count else ""
            texts.append(cell(interval, metric) + few)
        megabytes = (in_megabytes(member.per_round(way)) for way in ("up", "down"))
        rows.append([member.label, str(count), *texts, *megabytes])
    scales = " and ".join(sorted({str(member.keys.get("scale", "?")) for member in groups}))
    many = any(len(member.runs) > 1 for member in groups)
    below = f"{metric_name(first)}{f', mean {SPREAD} n seeds' if many else ''} [{scales} scale]; "
    below += "".join(f"{metric_name(metric)}, in the same round; " for metric in further)
    below += "MB of all clients per round; the best row first."
    return Section("", (), [*header, "MB up", "MB down"], rows, [below])


def _differences(report: Report) -> Section:
    """Return the comparisons with the best group of each data set."""
    metric, rows, bests = report.metrics[0], list[list[str]](), dict[str, None]()
    for member, comparison, p in report.differences:
        text = cell(comparison.interval, metric, sign="+")
        reading = difference_in_words(comparison, p)
        rows.append([member.label, str(len(comparison.differences)), text, p_text(p), reading])
        bests |= {str(comparison.worse): None}
    below = (
        f"{metric_name(metric)}, {selection_label(report.groups, report.at)}: difference to "
        f"{' and '.join(bests)}, paired by seed, mean {SPREAD} n seeds; p of the two-sided t-test, "
        f"corrected by Holm for the comparisons with one row; within the spread where it is above "
        f"{ALPHA:g}."
    )
    header = ["method", "n", "difference", "p (Holm)", "reading"]
    return Section("", (), header, rows, [below])


def difference_in_words(comparison: Comparison, p: float | None) -> str:
    """Return a difference in words: within or beyond the spread."""
    if comparison.interval is None:
        return "no seed in common"
    if p is None:
        return "one seed: no spread"
    return "within the spread" if p > ALPHA else "beyond the spread"


def _over_data(report: Report, metric: Metric) -> Section:
    """Return the table of methods by data sets, with their mean."""
    numbers = report.numbers
    parts = OF_MEANS.get(metric.name, ())
    rows = []
    for row in dict.fromkeys(member.row for member in report.groups):
        sides = [Side(row, column) for column in (*numbers.columns, None)]
        values = [numbers.interval(side, metric.name) for side in sides]
        if parts:
            found = numbers.of_means(Side(row, None), metric.name)
            values.append(t_interval(list(found.values())) if found else None)
        rows.append([row, *(cell(value, metric) for value in values)])
    below = (
        f"{metric_name(metric)}, {selection_label(report.groups, report.at)}. Mean: over data "
        f"sets, seed by seed, then over seeds, {SPREAD} seeds; {NOTHING} where one is missing."
    )
    if parts:
        below += f" Of means: computed of the means of {', '.join(parts)}."
    header = ["method", *numbers.columns, "mean", *(["of means"] if parts else [])]
    return Section(f"Over data sets: {metric_name(metric)}", (), header, rows, [below])


# --- files ----------------------------------------------------------------------------------------


def write_report(
    report: Report, out: Path, formats: Sequence[str], columns: Columns = 2
) -> list[Path]:
    """Write page, numbers and figures of a report in all formats into a folder; return the files.

    Pages show the figures if png is among the formats.
    """
    out.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for kind in dict.fromkeys(formats):
        if kind in FIGURES:
            files += [out / f"by_round.{kind}", out / f"by_traffic.{kind}"]
            draw_rounds(report, files[-2], columns)
            draw_traffic(report, files[-1], columns)
            files += _write_matrices(report.groups, out, kind)
    if "png" in formats:
        files += write_partitions(report.groups, out)
    pictures = [Picture(p.stem.replace("_", " "), p.name) for p in files if p.suffix == ".png"]
    title = f"{len(report.groups)} configurations on {', '.join(report.numbers.columns)}"
    sections = [Section(title), *report_page(report)]
    sections += [Section("Figures", pictures=pictures)] if pictures else []
    tables = [section for section in sections if section.header]
    labels = ["table", *(f"table-{number}" for number in range(2, len(tables) + 1))]
    texts = {
        "md": markdown(sections),
        "html": html(sections),
        "tex": "\n".join(map(latex, tables, labels)),
        "csv": report.numbers.frame.to_csv(index=False),
    }
    for kind, text in texts.items():
        if kind in formats:
            files.append(out / f"table.{kind}")
            write_atomic(files[-1], text)
    return files


def draw_rounds(report: Report, path: Path, columns: Columns = 2) -> None:
    """Draw all metrics by round, one panel per metric, for the best `MOST_CURVES` groups."""
    shown, plots = _shown(report), []
    for metric in report.metrics:
        curves = [Series(g.curve(metric), g.label, index) for index, g in enumerate(shown)]
        plots.append(Plot(curves, "round", metric_name(metric), is_share=metric.is_share))
    figure_curves(plots, path, heading=_heading(report, shown), columns=columns)


def draw_traffic(report: Report, path: Path, columns: Columns = 2) -> None:
    """Draw the first metric by traffic; methods without traffic become horizontal lines."""
    shown, metric, curves = _shown(report), report.metrics[0], []
    for index, member in enumerate(shown):
        total = member.traffic()
        points = {total[r] / 1e6: i for r, i in member.curve(metric).items() if r in total}
        curves.append(Series(points, member.label, index, is_level=max(total.values()) == 0))
    along = "MB sent, up and down, all clients"
    plot = Plot(curves, along, metric_name(metric), is_share=metric.is_share)
    figure_curves([plot], path, heading=_heading(report, shown), columns=columns)


def _shown(report: Report) -> list[RunGroup]:
    return [member for member in report.groups if member.curve(report.metrics[0])][:MOST_CURVES]


def _heading(report: Report, shown: Sequence[RunGroup]) -> str:
    """Return a heading about omitted curves, and about groups that are not comparable."""
    texts, more = [], len(report.groups) - len(shown)
    if more:
        texts.append(f"the best {len(shown)}; {more} more are in the table")
    if any(incompatibilities(shown[0], other) for other in shown[1:]):
        texts.append("not all are comparable: see the table")
    return "\n".join(texts)


def _write_matrices(groups: Sequence[RunGroup], out: Path, kind: str) -> list[Path]:
    """Draw the matrices of each group's first seed; return the files."""
    files: list[Path] = []
    for index, member in enumerate(groups, 1):
        folder = RunFolder(member.runs[0].folder)
        for name, matrix in folder.read_matrices().items():
            if len(files) == MOST_MATRICES:
                print(f"only the first {MOST_MATRICES} matrices are drawn")
                return files
            stem = f"heatmap_{index:02d}_{file_name(member.method)}_{file_name(name)}"
            files.append(out / f"{stem}.{kind}")
            title = f"{name.replace('_', ' ')}: {member.label}, seed {member.runs[0].seed}"
            figure_matrix(matrix, folder.class_names(), title, files[-1])
    return files


def write_partitions(groups: Sequence[RunGroup], out: Path) -> list[Path]:
    """Draw the first distinct partitions: the images by class and client; return the files.

    Phases of evolving data stand below each other.
    """
    by_hash: dict[str | None, LoadedRun] = {}
    for loaded in (run for member in groups for run in member.runs):
        if RunFolder(loaded.folder).class_names():
            by_hash.setdefault(loaded.run.info.partition_sha256, loaded)
    files = []
    for number, loaded in enumerate([*by_hash.values()][:MOST_PARTITIONS], 1):
        folder = RunFolder(loaded.folder)
        histograms = folder.histograms()
        ends = [*list(histograms)[1:], loaded.run.info.planned + 1]
        panels = {
            f"seed {loaded.seed}, rounds {max(first, 1)} to {end - 1}: ": counts
            for (first, counts), end in zip(histograms.items(), ends, strict=True)
        }
        files.append(out / f"partition_{number}.png")
        plot_partition(panels, folder.class_names(), files[-1])
    return files
