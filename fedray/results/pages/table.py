"""The page of a table: cells, claims, controls, chosen configurations, caveats and origin."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean

from fedray.base.units import size_of
from fedray.results.design import seeds_text
from fedray.results.labels import config_label
from fedray.results.pages.cells import (
    NOTHING,
    SPREAD,
    cell,
    cost_text,
    difference_cell,
    metric_name,
    number,
    p_text,
    range_text,
)
from fedray.results.pages.figures import Plot, Series, figure_curves, figure_points
from fedray.results.pages.page import Picture, Section, html, latex, markdown
from fedray.results.paired import Side
from fedray.results.record import CellRecord, ClaimResult, TableRecord
from fedray.storage.files import write_atomic
from fedray.storage.metric import Metric

MARK = "†"
"""Marks numbers that were selected on test images."""
PAGE, LATEX, HTML = "table.md", "table.tex", "table.html"
FIGURE, FIGURE_PDF = "figure.png", "figure.pdf"


def write(record: TableRecord, folder: Path) -> list[Section]:
    """Write a table as Markdown, LaTeX, HTML and figures into a folder; return its page."""
    sections = table_page(record)
    if record.has_numbers:
        draw_table(record, folder / FIGURE)
        draw_table(record, folder / FIGURE_PDF)
    write_atomic(folder / PAGE, markdown(sections))
    write_atomic(folder / LATEX, table_latex(record))
    write_atomic(folder / HTML, html(sections))
    return sections


def table_page(record: TableRecord) -> list[Section]:
    """Return the sections of the page, the main table first."""
    plan, (main, *others) = record.plan, [main_table(record, each) for each in record.shown]
    if record.has_numbers:
        main = replace(main, pictures=[Picture("the table as a figure", FIGURE)])
    end = "" if plan.answers.endswith(("?", ".")) else "."
    compared = [_claims(record), _controls(record), _differences(record)]
    sections = [
        Section(plan.title, [f"{plan.answers}{end}"]),
        main,
        *others,
        *([_beside_paper(record)] if plan.is_printed else compared),
        _chosen(record),
        Section("Before you compare", items=[f"{note}." for note in record.notes]),
        _made(record),
    ]
    return [section for section in sections if section.text or section.rows or section.items]


def table_latex(record: TableRecord) -> str:
    """Return the table of the first metric as LaTeX."""
    return latex(main_table(record, record.shown[0]), record.plan.name)


# --- the table ------------------------------------------------------------------------------------


def main_table(record: TableRecord, metric: Metric) -> Section:
    """Return the table of a metric, the first with the paper's numbers.

    The best number of a column is bold if claims decide that it is.
    """
    plan, is_first = record.plan, metric is record.shown[0]
    several = len(plan.columns) > 1
    header, rows = ["method"], [[row_text(record, row)] for row in plan.rows]
    for column in plan.shown_columns:
        header.append((column or "mean") if several else plan.only_column)
        papers = any(plan.paper_of(row, column, metric.name) for row in plan.rows)
        header += ["paper"] if papers else []
        best = decided_best(record, column, metric)
        for row, cells in zip(plan.rows, rows, strict=True):
            text = cell_text(record, row, column, metric)
            cells.append(f"**{text}**" if row == best else text)
            cells += [paper_text(record, row, column, metric)] if papers else []
    title = "" if is_first else metric_name(metric)
    below = [_caption(record, metric, is_bold=any("**" in text for row in rows for text in row))]
    if is_first and plan.left_out:
        below.append(f"Not at this scale: {plan.left_out}.")
    return Section(title, (), header, rows, below, _glosses(record) if is_first else [])


def row_text(record: TableRecord, row: str) -> str:
    """Return a row's label, with the row's name if others have the label, marked if a control."""
    plan, labels = record.plan.rows[row], [of.label for of in record.plan.rows.values()]
    label = plan.label if labels.count(plan.label) == 1 else f"{plan.label} [{row}]"
    return f"{label} (control)" if plan.control else label


def cell_text(record: TableRecord, row: str, column: str | None, metric: Metric) -> str:
    """Format the number of a cell, or of a row's mean, with marks and the count of failed seeds."""
    cells = [of for of in record.cells if of.row == row and column in (None, of.column)]
    if all(of.phase == "failed" for of in cells):
        return "failed"
    lost = len({seed for of in cells for seed in record.reasons(of)})
    interval = record.numbers.interval(Side(row, column), metric.name)
    if interval is None:
        return "failed" if lost else NOTHING
    mark = MARK if record.plan.select == "test" else ""
    return cell(interval, metric) + mark + (f" ({lost} failed)" if lost else "")


def paper_text(record: TableRecord, row: str, column: str | None, metric: Metric) -> str:
    """Format the paper's number for a cell, or for a row's mean."""
    entry = record.plan.paper_of(row, column, metric.name)
    if entry is None:
        return NOTHING
    mean, spread = entry
    return f"{mean:g}" if spread is None else f"{mean:g} ± {spread:g}"


def decided_best(record: TableRecord, column: str | None, metric: Metric) -> str | None:
    """Return the row whose claims decide that it is better than all others in a column, or None."""
    beaten: dict[str, set[str]] = {
        row: set()
        for row in record.plan.rows
        if record.numbers.interval(Side(row, column), metric.name) is not None
    }
    for result in record.claims:
        claim = result.claim
        larger, smaller = claim.better, claim.worse
        if {claim.metric, claim.than} != {metric.name} or larger.other or smaller.other:
            continue
        if result.verdict == "refuted" and claim.margin <= 0:
            larger, smaller = smaller, larger
        elif result.verdict != "holds" or claim.margin < 0:
            continue
        winner, loser = (smaller, larger) if metric.direction == "min" else (larger, smaller)
        if winner.column == loser.column == column:
            beaten[winner.row].add(loser.row)
    best = (row for row in beaten if len(beaten) > 1 and beaten.keys() - {row} <= beaten[row])
    return next(best, None)


def _caption(record: TableRecord, metric: Metric, *, is_bold: bool) -> str:
    """Return the caption: metric, seeds, interval, selection and marks."""
    plan = record.plan
    where = {"validation": "validation images", "test": f"TEST images ({MARK})"}[plan.select]
    chosen = f"Configuration and best round chosen on {where}"
    if plan.at == "final":
        chosen = f"Numbers of the last round, configuration chosen on {where}"
    name = metric_name(metric)
    sentences = [
        f"{name[:1].upper()}{name[1:]}, mean {SPREAD} {seeds_text(plan.report.seeds)}",
        chosen,
        "Bold: better than every other row, each decided by a claim" if is_bold else "",
    ]
    runs = [run for of in record.cells for run in record.reported(of).values()]
    if metric is record.shown[0] and (
        counts := {run.test_images for run in runs if run.test_images}
    ):
        images = " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))
        sentences.append(f"The clients of a run are tested on {images} images")
    if metric is record.shown[0] and plan.paper is not None:
        sentences.append(f"Paper: {plan.paper.source}")
    if any(record.reasons(of) and record.reported(of) for of in record.cells):
        sentences.append(
            "Where seeds failed, a mean is that of the others, and a difference that of the seeds "
            "which both sides have"
        )
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def _glosses(record: TableRecord) -> list[str]:
    """Return explanations of rows and columns, and names of rows whose labels differ from them."""
    plan = record.plan
    texts = []
    for name, row in plan.rows.items():
        gloss = plan.glosses.get(name)
        if gloss is not None or _letters(row.label) != _letters(name):
            texts.append(f"{row.label}: `{name}`" + (f", {gloss}" if gloss else ""))
    columns = [name for name in plan.columns if name in plan.glosses]
    return [*texts, *(f"{name}: {plan.glosses[name]}" for name in columns)]


def _letters(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())


# --- comparisons ----------------------------------------------------------------------------------


def verdict_text(result: ClaimResult) -> str:
    """Return the text of a verdict, with the reason why a claim cannot be decided."""
    if result.verdict == "not asked":
        return "no runs"
    if result.verdict == "undecided" and result.comparison.is_same:
        return "undecided: the same on every seed"
    if result.verdict == "undecided" and len(result.comparison.differences) < 2:
        return "undecided: needs two seeds at least"
    return result.verdict


def _claims(record: TableRecord) -> Section:
    rows = []
    for result in record.claims:
        claim, comparison = result.claim, result.comparison
        metric, interval = record.metric(claim.metric), comparison.interval
        named = claim.metric == claim.than != record.plan.metrics[0]
        shows = NOTHING
        if interval and (least := comparison.test.decidable(interval, len(record.claims))):
            shows = number(least, metric, interval.half)
        rows.append(
            [
                f"{claim.question} ({claim.metric})" if named else claim.question,
                difference_cell(interval, metric),
                shows,
                p_text(result.p_holm),
                f"**{verdict_text(result)}**",
                claim.source,
            ]
        )
    if not rows:
        return Section("Claims")
    decided = sum(result.verdict in ("holds", "refuted") for result in record.claims)
    plan, test = record.plan, record.plan.paired_test
    below = (
        f"{decided} of {len(rows)} claims are decided. Differences seed by seed, less what is "
        f"claimed, with their {100 * test.interval_level:.3g} % t interval; the least difference "
        f"that these seeds could have shown; p of the two-sided paired t-test, corrected for "
        f"{len(rows)} comparisons; decided below {test.alpha:.2g}."
    )
    if test.looks > 1:
        below += f" It is look {test.looks} at these claims: each p is multiplied by {test.looks}."
    if any(row.space for row in plan.rows.values()):
        below += " Each seed chose its own configuration, so p includes the variation by tuning."
    header = ["claim", "difference", "could show", "p (Holm)", "verdict", "source"]
    width = len(header) if any(row[-1] for row in rows) else len(header) - 1
    return Section("Claims", (), header[:width], [row[:width] for row in rows], [below])


def _controls(record: TableRecord) -> Section:
    rows = []
    for name, row in record.plan.controls.items():
        share = record.share_of_gain(name)
        reached = NOTHING if share is None else f"{100 * share:.0f} %"
        over = "" if row.over is None else f" over {row.over}"
        reading = f"**{record.reading(name)}**"
        rows.append([f"{name} for {row.of}", row.control or "", f"{reached}{over}", reading])
    below = [
        "A control explains the gain of a method if it has more than half of it: if it is better "
        "than the mean of method and baseline. It does not if the method is better than the "
        "control; if both hold, it explains most of the gain. Controls are read only if the "
        "uncorrected interval of the gain lies above 0."
    ]
    header = ["control", "would refute", "share of the gain", "reading"]
    return Section("Controls", (), header, rows, below) if rows else Section("Controls")


def _differences(record: TableRecord) -> Section:
    metric, plan = record.shown[0], record.plan
    first, *others = plan.rows
    cells: dict[str, list[str]] = {row: [row_text(record, row)] for row in others}
    for difference in record.against:
        cells[difference.worse.row].append(difference_cell(difference.interval, metric))
    names = [column or "mean" for column in plan.shown_columns]
    level = f"{100 * plan.paired_test.interval_level:.3g} %"
    below = [f"Paired by seed, with {level} t intervals, not corrected for their number."]
    title = f"{plan.rows[first].label} minus the others"
    header = ["method", *(names if len(names) > 1 else ["difference"])]
    return Section(title, (), header, list(cells.values()), below)


def _beside_paper(record: TableRecord) -> Section:
    """Return each number at scale `printed` beside the paper's; empty without any."""
    plan, rows = record.plan, list[list[str]]()
    for metric, row, column in product(record.shown, plan.rows, plan.shown_columns):
        printed = plan.paper_of(row, column, metric.name)
        values = list(record.numbers.by_seed(Side(row, column), metric.name).values())
        if printed is None or not values:
            continue
        (mean, spread), low, high = printed, min(values), max(values)
        is_met = low <= mean + (spread or 0.0) and mean - (spread or 0.0) <= high
        is_judged = len(values) > 1 or spread is not None
        is_judged = is_judged and not plan.is_doubtful(row, column, metric.name)
        difference = fmean(values) - mean
        rows.append(
            [
                plan.rows[row].label,
                column or "mean",
                metric_name(metric),
                number(fmean(values), metric),
                f"{number(low, metric)} to {number(high, metric)}",
                paper_text(record, row, column, metric),
                f"{'+' if difference >= 0 else ''}{number(difference, metric)}",
                ("yes" if is_met else "no") if is_judged else "-",
            ]
        )
    words = [row[-1] for row in rows]
    below = (
        f"{len(rows)} printed numbers stand beside ours; {words.count('yes')} of "
        f"{len(words) - words.count('-')} lie within the spread of our seeds: the range of our "
        "seeds, smallest to largest, meets the paper's number with its own spread. What one seed "
        "has beside a number without spread is not judged (-), nor are numbers that the paper "
        "contradicts elsewhere."
    )
    header = ["row", "column", "metric", "ours", "seeds", "paper", "difference", "within"]
    return Section("Beside the paper", (), header, rows, [below]) if rows else Section("")


# --- how it was made ------------------------------------------------------------------------------


def tried_text(cell: CellRecord) -> str:
    """Return how many configurations a seed tried, "3" or "3 to 5"."""
    tried = Counter(seed for attempt in cell.tried for seed in attempt.runs)
    return range_text(tried.values() or [1])


def _chosen(record: TableRecord) -> Section:
    plan, tuning, rows = record.plan, record.plan.tuning, []
    for of in record.cells:
        place, runs = of.place, list(record.reported(of).values())
        leader = plan.leader(place)
        rows.append(
            [
                str(place) if len(plan.columns) > 1 else place.row,
                _choices(of) or NOTHING,
                tried_text(of) if leader == place else f"as {leader}",
                range_text(run.round for run in runs),
                cost_text((run.seconds for run in runs), (run.bytes for run in runs)),
            ]
        )
    count = len(plan.report.seeds)
    text = (
        f"Every row, in every column: at most {tuning.configurations} configurations by "
        f"{tuning.search} search, each of {count} seeds by itself, {record.made.tuning_rounds} "
        f"rounds; then {count} report seeds, {record.made.report_rounds} rounds. Time and traffic "
        "of a reported run are means over seeds."
    )
    header = ["cell", "chosen", "tried", "round", "a run"]
    return Section("Chosen configurations", [text], header, rows)


def _choices(cell: CellRecord) -> str:
    """Return the seeds' choices, the most frequent first: "lr=0.1 (3 of 5 seeds), lr=0.3"."""
    choices = [config_label(config) or "as given" for config in cell.choices.values()]
    ranked = sorted(dict.fromkeys(choices), key=choices.count, reverse=True)
    if len(ranked) > 1:
        ranked[0] += f" ({choices.count(ranked[0])} of {len(choices)} seeds)"
    return ", ".join(ranked)


def _made(record: TableRecord) -> Section:
    made, commits = record.made, ", ".join(record.commits)
    written = "" if commits in ("", made.commit) else f"; this page {made.commit}"
    items = [
        f"command: `{made.command}`",
        f"{len(record.distinct)} runs ({made.shared} of them existed before), "
        f"{record.seconds / 3600:.2f} hours of computing, {size_of(record.bytes)} sent and "
        "received",
        f"commit {commits or made.commit}{written}; {made.versions}",
        f"machine: {made.machine}; made {made.when}",
    ]
    return Section("How it was made", items=items)


# --- the figure -----------------------------------------------------------------------------------


def draw_table(record: TableRecord, path: Path) -> None:
    """Draw the first metric of a table, which has numbers, into a file.

    If the columns are values of one numeric key, each row becomes a curve. Otherwise each column
    becomes a panel, and a further panel shows the first row minus each other row.
    """
    if record.plan.curve is not None:
        figure_curves([_curves(record, record.plan.curve)], path)
    else:
        panels = [*map(_panel, [record] * len(record.plan.columns), record.plan.columns)]
        figure_points([*panels, _against(record)], path)


def _curves(record: TableRecord, key: str) -> Plot:
    """Return a panel with each row as a line over the values of a key."""
    plan, metric = record.plan, record.shown[0]
    places = {column: float(keys[key]) for column, keys in plan.columns.items()}
    series = []
    for index, (row, of_row) in enumerate(plan.rows.items()):
        found = {c: record.numbers.interval(Side(row, c), metric.name) for c in places}
        points = {places[c]: interval for c, interval in found.items() if interval is not None}
        papers = {places[c]: entry for c in places if (entry := plan.paper_of(row, c))}
        if points:
            series.append(Series(points, of_row.label, index, printed=papers))
    name = metric_name(metric)
    return Plot(series, key, name, list(places.values()), is_share=metric.is_share)


def _panel(record: TableRecord, column: str) -> Plot:
    """Return a panel with the cells of a column, one below the other."""
    plan, metric = record.plan, record.shown[0]
    names = {row: row_text(record, row) for row in plan.rows}
    found = {row: record.numbers.interval(Side(row, column), metric.name) for row in names}
    points = {names[row]: interval for row, interval in found.items() if interval is not None}
    papers = {names[row]: entry for row in names if (entry := plan.paper_of(row, column))}
    title = column if len(plan.columns) > 1 else ""
    label = "mean, 95 % interval, seeds"
    series = [Series(points, label, printed=papers)]
    positions = list(names.values())
    return Plot(series, "", metric_name(metric), positions, title, is_share=metric.is_share)


def _against(record: TableRecord) -> Plot:
    """Return a panel with the first row minus each other row, for the mean over columns."""
    plan, metric = record.plan, record.shown[0]
    points = {
        row_text(record, difference.worse.row): difference.interval
        for difference in record.against
        if difference.worse == plan.whole(difference.worse.row) and difference.interval
    }
    title = "paired by seed" + (", mean over columns" if len(plan.columns) > 1 else "")
    unit = ", points" if metric.is_share else ""
    name = f"{next(iter(plan.rows.values())).label} minus the row{unit}"
    positions = [row_text(record, row) for row in plan.rows]
    return Plot([Series(points)], "", name, positions, title, zero=True)
