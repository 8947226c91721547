"""The page of a table: cells, claims, controls, chosen configurations, caveats and origin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from fedray.base.units import size_of, time_of
from fedray.results.claims import Claim
from fedray.results.design import seeds_text
from fedray.results.labels import config_label
from fedray.results.pages.beside_paper import beside_paper
from fedray.results.pages.cells import NOTHING, SPREAD, metric_name, p_text
from fedray.results.pages.page import Picture, Section, html, latex_table, markdown
from fedray.results.pages.report import titled
from fedray.results.pages.table_figure import draw_table
from fedray.results.paired import Comparison, Interval, PairedTest, Side
from fedray.results.record import CellRecord, ClaimResult, Measured, TableRecord
from fedray.storage.files import write_atomic
from fedray.storage.metric import Metric

MARK = "†"
"""Marks numbers that were selected on test images."""
UNIT = ", %"
"""Suffix of the name of a share."""
MEAN = "mean"
OTHER_SEEDS = (
    "Where seeds failed, a mean is that of the others, and a difference that of the seeds which "
    "both sides have"
)
PAGE, LATEX, HTML = "table.md", "table.tex", "table.html"
FIGURE, FIGURE_PDF = "figure.png", "figure.pdf"


def write(record: TableRecord, folder: Path) -> list[Section]:
    """Write a table as Markdown, LaTeX, HTML and figures into a folder; return its page."""
    sections = table_page(record)
    figure = folder / FIGURE
    draw_table(record, figure)
    draw_table(record, folder / FIGURE_PDF)
    pictured = with_figure(sections, figure)
    write_atomic(folder / PAGE, markdown(pictured))
    write_atomic(folder / LATEX, table_latex(record))
    write_atomic(folder / HTML, html(pictured))
    return sections


def with_figure(sections: Sequence[Section], figure: Path) -> list[Section]:
    """Return a page with the figure inserted below the table, if both exist."""
    if not figure.exists() or len(sections) < 2:
        return [*sections]
    picture = Picture("the table as a figure", figure.read_bytes(), "png", figure.name)
    return [*sections[:2], Section("", pictures=[picture]), *sections[2:]]


def table_page(record: TableRecord) -> list[Section]:
    """Return the sections of the page, the main table first."""
    plan = record.plan
    end = "" if plan.answers.endswith(("?", ".")) else "."
    sections = [
        Section(plan.title, [f"{plan.answers}{end}"]),
        *(_main(record, metric) for metric in record.shown),
        *_comparisons(record),
        _chosen(record),
        Section("Before you compare", items=[f"{note}." for note in record.notes]),
        _made(record),
    ]
    return [section for section in sections if section.text or section.rows or section.items]


def _comparisons(record: TableRecord) -> list[Section]:
    """Return what the numbers are compared with: claims and rows; at scale printed, the paper."""
    if record.plan.is_printed:
        return [beside_paper(record)]
    return [_claims(record), _controls(record), _differences(record)]


def table_latex(record: TableRecord) -> str:
    """Return the table of the first metric as LaTeX, with titles of methods.

    The best number of a column is bold if claims decide that it is.
    """
    plan, metric = record.plan, record.shown[0]
    header, rows = main_cells(record, metric)
    names = [titled(plan.rows[row].label, plan.rows[row].label.lower()) for row in plan.rows]
    controls = [" (control)" * bool(plan.rows[row].control) for row in plan.rows]
    rows = [[f"{n}{c}", *row[1:]] for n, c, row in zip(names, controls, rows, strict=True)]
    own_columns = [index for index, name in enumerate(header) if index and name != "paper"]
    best = [
        (row, index)
        for index, column in zip(own_columns, shown_columns(record), strict=True)
        if (row := decided_best(record, column, metric)) is not None
    ]
    where = {"validation": "validation images", "test": f"test images ({MARK})"}[plan.select]
    what = {"best": "Configuration and best round", "final": "Configuration"}[plan.at]
    spread = SPREAD.replace("95", f"{100 * plan.confidence:g}")
    name = metric_name(metric)
    sentences = [
        f"{name[:1].upper()}{name[1:]}: mean {spread} {len(plan.report.seeds)} seeds",
        f"{what} chosen on {where}{'; numbers of the last round' * (plan.at == 'final')}",
        "Bold: better than every other row, each decided by a claim" if best else "",
        "" if plan.paper is None else f"Paper: {plan.paper.source}",
        OTHER_SEEDS if has_failed_seeds(record) else "",
    ]
    caption = " ".join(f"{sentence}." for sentence in sentences if sentence)
    return latex_table(["Method", *header[1:]], rows, caption, plan.name, best)


def decided_best(record: TableRecord, column: str | None, metric: Metric) -> int | None:
    """Return the row whose claims decide that it is better than all others in a column, or None."""
    rows = list(record.plan.rows)
    measured = [row for row in rows if record.interval(Side(row, column), metric.name) is not None]
    beaten: dict[str, set[str]] = {row: set() for row in rows}
    for claim, _, result in record.tested:
        better, worse = claim.better, claim.worse
        if (better, worse) != (Side(better.row, column), Side(worse.row, column)):
            continue
        if {claim.metric, claim.than} != {metric.name}:
            continue
        larger, smaller = better.row, worse.row
        if result.verdict == "refuted" and claim.margin <= 0:
            larger, smaller = smaller, larger
        elif result.verdict != "holds" or claim.margin < 0:
            continue
        winner, loser = (smaller, larger) if metric.direction == "min" else (larger, smaller)
        beaten[winner].add(loser)
    for index, row in enumerate(rows):
        if len(measured) > 1 and {*measured} - {row} == beaten[row] & {*measured}:
            return index
    return None


def number(value: float, metric: Metric) -> str:
    """Format a number in its displayed unit."""
    return f"{value:.1f}" if metric.is_share else f"{value:.4g}"


def spread_of(interval: Interval, metric: Metric) -> str:
    """Format a mean with half of its interval: "23.5 ± 0.4"; a single seed has no interval."""
    mean = number(interval.mean, metric)
    return mean if not math.isfinite(interval.half) else f"{mean} ± {number(interval.half, metric)}"


def cell_text(record: TableRecord, row: str, column: str | None, metric: Metric) -> str:
    """Format the number of a cell, or of a row's mean, with marks and the count of failed seeds."""
    cells = [cell for cell in record.cells if cell.row == row and column in (None, cell.column)]
    if all(cell.phase == "failed" for cell in cells):
        return "failed"
    lost = len({seed for cell in cells for seed in record.reasons(cell)})
    interval = record.interval(Side(row, column), metric.name)
    if interval is None:
        return "failed" if lost else NOTHING
    mark = MARK if record.plan.select == "test" else ""
    return spread_of(interval, metric) + mark + (f" ({lost} failed)" if lost else "")


def paper_text(record: TableRecord, row: str, column: str | None) -> str:
    """Format the paper's number for a cell, or for a row's mean."""
    entry = record.plan.paper_of(row, column)
    if entry is None:
        return NOTHING
    mean, spread = entry
    return f"{mean:g}" if spread is None else f"{mean:g} ± {spread:g}"


def row_text(record: TableRecord, row: str) -> str:
    """Return a row's label, marked if the row is a control."""
    plan = record.plan.rows[row]
    return f"{plan.label} (control)" if plan.control else plan.label


def glosses(record: TableRecord) -> list[str]:
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


def shown_columns(record: TableRecord) -> list[str | None]:
    """Return the columns, followed by None for their mean if there are several."""
    columns = list(record.plan.columns)
    return [*columns, None] if len(columns) > 1 else [*columns]


def main_cells(record: TableRecord, metric: Metric) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table, with the paper's numbers if there are any."""
    plan, first = record.plan, metric is record.shown[0]
    several = len(plan.columns) > 1
    header, rows = [""], [[row_text(record, row)] for row in plan.rows]
    for column in shown_columns(record):
        header.append((column or MEAN) if several else title_of_column(record))
        papers = first and any(plan.paper_of(row, column) for row in plan.rows)
        header += ["paper"] if papers else []
        for row, cells in zip(plan.rows, rows, strict=True):
            cells.append(cell_text(record, row, column, metric))
            cells += [paper_text(record, row, column)] if papers else []
    return header, rows


def title_of_column(record: TableRecord) -> str:
    """Return the title of the only column: its name, or that of the images."""
    [(column, keys)] = record.plan.columns.items()
    return column if keys else record.plan.data_title


def caption(record: TableRecord, metric: Metric) -> str:
    """Return the caption: metric, seeds, interval and selection."""
    plan = record.plan
    where = {"validation": "validation images", "test": f"TEST images ({MARK})"}[plan.select]
    chosen = f"configuration and best round chosen on {where}"
    if plan.at == "final":
        chosen = f"numbers of the last round, configuration chosen on {where}"
    text = (
        f"{metric_name(metric, UNIT)}: mean over {seeds_text(plan.report.seeds)} ± half of its "
        f"{100 * plan.confidence:g} % t interval; {chosen}"
    )
    if plan.paper is not None and metric is record.shown[0]:
        text += f"; paper: {plan.paper.source}"
    return f"{text}. {OTHER_SEEDS}." if has_failed_seeds(record) else f"{text}."


def has_failed_seeds(record: TableRecord) -> bool:
    """Return True if a cell has a number although some of its seeds failed."""
    return any(record.reasons(cell) and record.reported(cell) for cell in record.cells)


def sources(record: TableRecord) -> str:
    """Return sentences about the intervals and the number of test images."""
    text = f"Intervals are over {len(record.plan.report.seeds)} seeds"
    metric = record.shown[0]
    runs = [run for cell in record.cells for run in record.reported(cell).values()]
    counts = {run.test_images for run in runs}
    known_counts = sorted(count for count in counts if count)
    if not known_counts or len(known_counts) < len(counts):
        return f"{text}; the number of test images is not recorded."
    images = " to ".join(f"{count:,}" for count in sorted({known_counts[0], known_counts[-1]}))
    text += f"; all clients of a run are tested on {images} images"
    sides = [Side(cell.row, cell.column) for cell in record.cells]
    means = [one.mean / 100 for side in sides if (one := record.interval(side, metric.name))]
    if not metric.is_share or not means:
        return f"{text}."
    error = max(100 * math.sqrt(max(0.0, mean * (1 - mean)) / known_counts[0]) for mean in means)
    return f"{text}, where an accuracy has a binomial standard error of up to {error:.1f} points."


def tried_by_seed(cell: CellRecord) -> list[tuple[int, int]]:
    """Return how many configurations each seed tried, and how many of them beyond its grid."""
    seeds = dict.fromkeys(seed for attempt in cell.tried for seed in attempt.runs)
    of_seeds = [[attempt for attempt in cell.tried if seed in attempt.runs] for seed in seeds]
    return [(len(tried), sum(each.added for each in tried)) for tried in of_seeds] or [(1, 0)]


def count_text(counts: Sequence[int]) -> str:
    """Return counts as a text: "4", or "3 to 5" if they differ."""
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def _main(record: TableRecord, metric: Metric) -> Section:
    header, rows = main_cells(record, metric)
    title = "" if metric is record.shown[0] else metric_name(metric, UNIT)
    below, items = [caption(record, metric)], []
    if metric is record.shown[0]:
        below.append(sources(record))
        below += [f"Not at this scale: {record.plan.left_out}"] if record.plan.left_out else []
        items = glosses(record)
    return Section(title, (), header, rows, below, items)


def interval_text(interval: Interval | None, metric: Metric) -> str:
    """Format a difference with its interval: "+1.2 [0.3, 2.1]"."""
    if interval is None:
        return NOTHING
    sign = "+" if interval.mean >= 0 else ""
    text = f"{sign}{number(interval.mean, metric)}"
    if not math.isfinite(interval.half):
        return text
    return f"{text} [{number(interval.low, metric)}, {number(interval.high, metric)}]"


def verdict_text(comparison: Comparison, result: ClaimResult) -> str:
    """Return the text of a verdict, with the reason why a claim cannot be decided."""
    if result.verdict == "not asked":
        return "no runs"
    if result.verdict == "undecided" and comparison.is_same:
        return "undecided: the same on every seed"
    if result.verdict == "undecided" and len(comparison.differences) < 2:
        return "undecided: needs two seeds at least"
    return result.verdict


def claim_text(claim: Claim, record: TableRecord) -> str:
    """Return the text of a claim, with its metric unless that is the first of the table."""
    one = claim.metric == claim.than and claim.metric != record.plan.metrics[0]
    return f"{claim.question} ({claim.metric})" if one else claim.question


def _claims(record: TableRecord) -> Section:
    tested = list(record.tested)
    if not tested:
        return Section("Claims")
    rows = [
        [
            claim_text(claim, record),
            interval_text(comparison.interval, record.metric(claim.metric)),
            decidable_text(record, comparison, record.metric(claim.metric)),
            p_text(result.p_holm),
            f"**{verdict_text(comparison, result)}**",
            claim.source,
        ]
        for claim, comparison, result in tested
    ]
    if not any(row[-1] for row in rows):
        rows = [row[:-1] for row in rows]
    decided = sum(result.verdict in ("holds", "refuted") for result in record.claims)
    test = record.plan.paired_test
    header = ["claim", "difference", "could show", "p (Holm)", "verdict", "source"][: len(rows[0])]
    below = (
        f"{decided} of {len(rows)} claims are decided. Differences seed by seed, less what is "
        f"claimed, with their {interval_name(test)}; the least difference that these seeds could "
        f"have shown; p of the two-sided paired t-test, corrected for {len(rows)} comparisons; "
        f"decided below {test.alpha:.2g}.{_of_looks(test)}{_of_choices(record)}"
    )
    return Section("Claims", (), header, rows, [below])


def decidable_text(record: TableRecord, comparison: Comparison, metric: Metric) -> str:
    """Format the least difference that the seeds of a claim could have shown."""
    interval, count = comparison.interval, len(record.asked)
    least = None if interval is None else comparison.test.decidable(interval, count)
    return NOTHING if least is None else number(least, metric)


def interval_name(test: PairedTest) -> str:
    """Return the name of the intervals of differences, with their level."""
    return f"{100 * test.interval_level:.3g} % t interval"


def _of_looks(test: PairedTest) -> str:
    """Return a sentence about the correction for repeated looks; "" at the first look."""
    if test.looks == 1:
        return ""
    return f" It is look {test.looks} at these claims, so each p is multiplied by {test.looks}."


def _of_choices(record: TableRecord) -> str:
    """Return a sentence about the role of tuning in the verdicts; "" without tuning."""
    plan = record.plan
    if not any(row.space for row in plan.rows.values()):
        return ""
    return " Each seed chose its own configuration, so p includes the variation by tuning."


def _controls(record: TableRecord) -> Section:
    rows = []
    for name, row in record.plan.controls.items():
        share = record.share_of_gain(name)
        reached = NOTHING if share is None else f"{100 * share:.0f} %"
        over = "" if row.over is None else f" over {row.over}"
        reading = f"**{record.reading(name)}**"
        rows.append([f"{name} for {row.of}", row.control or "", f"{reached}{over}", reading])
    below = [
        "A control explains the gain of a method over its baseline if it has more than half of the "
        "gain: if it is better than their mean. It does not explain the gain if the method is "
        "better than the control; if both hold, it explains most of the gain. Both are claims "
        "above. Controls are read only if the uncorrected interval of the gain lies above 0."
    ]
    header = ["control", "would refute", "share of the gain", "reading"]
    return Section("Controls", (), header, rows, below) if rows else Section("Controls")


def _differences(record: TableRecord) -> Section:
    metric, plan = record.shown[0], record.plan
    first, columns = next(iter(plan.rows)), shown_columns(record)
    cells = {
        (difference.worse.row, difference.worse.column): interval_text(difference.interval, metric)
        for difference in record.against
    }
    rows = [
        [row_text(record, row), *(cells[row, column] for column in columns)]
        for row in list(plan.rows)[1:]
    ]
    names = [column or MEAN for column in columns] if len(columns) > 1 else ["difference"]
    intervals = f"{interval_name(plan.paired_test)}s"
    below = [f"Paired by seed, with {intervals}, not corrected for their number."]
    return Section(f"{plan.rows[first].label} minus the others", (), ["", *names], rows, below)


def _chosen(record: TableRecord) -> Section:
    plan = record.plan
    rows = []
    for cell in record.cells:
        place, runs = cell.place, list(record.reported(cell).values())
        rounds = sorted({run.round for run in runs})
        leader, counts = plan.leader(place), tried_by_seed(cell)
        tried = count_text([tried for tried, _ in counts])
        if any(added for _, added in counts):
            tried += f", {count_text([added for _, added in counts])} beyond its grid"
        rows.append(
            [
                str(place) if len(plan.columns) > 1 else place.row,
                NOTHING if cell.chosen is None else _choices(cell),
                tried if leader == place else f"as {leader}",
                ", ".join(f"{edge.name} ({edge.end})" for edge in cell.edges) or "no",
                "-".join(map(str, sorted({rounds[0], rounds[-1]}))) if rounds else NOTHING,
                _cost_of_a_run(runs),
            ]
        )
    tuning = plan.tuning
    text = (
        f"Every row, in every column: at most {tuning.configurations} configurations by "
        f"{tuning.search} search, each of {len(plan.report.seeds)} seeds by itself, "
        f"{record.made.tuning_rounds} rounds; then {len(plan.report.seeds)} report seeds, "
        f"{record.made.report_rounds} rounds. Time and traffic of a reported run are means over "
        "seeds."
    )
    header = ["", "chosen", "tried", "at an edge", "round", "a run"]
    return Section("Chosen configurations", [text], header, rows)


def _choices(cell: CellRecord) -> str:
    """Return the seeds' choices, the most frequent first: "lr=0.1 (3 of 5 seeds), lr=0.3"."""
    choices = list(cell.choices.values())
    distinct = [config for number, config in enumerate(choices) if config not in choices[:number]]
    ranked = sorted(distinct, key=choices.count, reverse=True)
    labels = [config_label(config) or "as given" for config in ranked]
    if len(labels) > 1:
        labels[0] += f" ({choices.count(ranked[0])} of {len(choices)} seeds)"
    return ", ".join(labels)


def _cost_of_a_run(measured: Sequence[Measured]) -> str:
    """Return the mean cost of runs: "2 min 24 s, 35.5 MB"."""
    if not measured:
        return NOTHING
    seconds = fmean(run.seconds for run in measured)
    return f"{time_of(seconds)}, {size_of(fmean(run.bytes for run in measured))}"


def _made(record: TableRecord) -> Section:
    made, commits = record.made, ", ".join(record.commits)
    written = "" if commits in ("", made.commit) else f"; this page {made.commit}"
    items = [
        f"command: `{made.command}`",
        f"{len(record.distinct)} runs ({made.shared} of them existed before), "
        f"{record.seconds / 3600:.2f} hours of computing, {size_of(record.bytes)} sent and "
        "received",
        seeds_text(record.plan.report.seeds),
        f"commit {commits or made.commit}{written}; {made.versions}",
        f"machine: {made.machine}",
        f"made {made.when}",
    ]
    return Section("How it was made", items=items)
