"""The page of a table: cells, claims, controls, chosen configurations, caveats and origin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from fedray.results.caveats import count_text, dropped_text, tried_by_seed
from fedray.results.labels import config_label
from fedray.results.pages.beside_paper import beside_paper
from fedray.results.pages.cells import NOTHING, SPREAD, metric_name, p_text
from fedray.results.pages.page import Picture, Section, html, latex_table, markdown
from fedray.results.pages.record import Made
from fedray.results.pages.report import titled
from fedray.results.pages.table_figure import draw
from fedray.results.paired import Comparison, Interval, PairedTest, SeedRange, Side
from fedray.storage.files import write_atomic
from fedray.storage.metric import Metric
from fedray.units import size_of, time_of

if TYPE_CHECKING:
    from fedray.studies.cell import CellState
    from fedray.studies.claims import Claim
    from fedray.studies.controls import ControlResult
    from fedray.studies.outcome import Outcome, TestedClaim
    from fedray.studies.store import Measured

MARK = "†"
"""Marks numbers that were selected on test images."""
LATE = "‡"
"""Marks numbers of a second configuration, because the first diverged with the report seeds."""
FRAGILE = "(fragile)"
"""Marks verdicts with weak support."""
UNIT = ", %"
"""Suffix of the name of a share."""
MEAN = "mean"
TESTS = {
    "fixed": "paired t-test",
    "anytime": "anytime-valid paired t-test, with which seeds may be added at any time",
}
"""Names of the tests of claims, for captions."""
PAGE, LATEX, HTML = "table.md", "table.tex", "table.html"
FIGURE, FIGURE_PDF = "figure.png", "figure.pdf"


def write(outcome: Outcome, made: Made, folder: Path) -> list[Section]:
    """Write a table as Markdown, LaTeX, HTML and figures into a folder; return its page."""
    sections = page(outcome, made)
    figure = folder / FIGURE
    draw(outcome, figure)
    draw(outcome, folder / FIGURE_PDF)
    pictured = with_figure(sections, figure)
    write_atomic(folder / PAGE, markdown(pictured))
    write_atomic(folder / LATEX, latex(outcome))
    write_atomic(folder / HTML, html(pictured))
    return sections


def with_figure(sections: Sequence[Section], figure: Path) -> list[Section]:
    """Return a page with the figure inserted below the table, if both exist."""
    if not figure.exists() or len(sections) < 2:
        return [*sections]
    picture = Picture("the table as a figure", figure.read_bytes(), "png", figure.name)
    return [*sections[:2], Section("", pictures=[picture]), *sections[2:]]


def page(outcome: Outcome, made: Made) -> list[Section]:
    """Return the sections of the page, the main table first."""
    plan = outcome.plan
    end = "" if plan.answers.endswith(("?", ".")) else "."
    sections = [
        Section(plan.title, [f"{plan.answers}{end}"]),
        *(_main(outcome, metric) for metric in outcome.metrics),
        *_comparisons(outcome),
        _chosen(outcome, made),
        Section("Before you compare", items=[f"{note}." for note in outcome.notes]),
        _made(outcome, made),
    ]
    return [section for section in sections if section.text or section.rows or section.items]


def _comparisons(outcome: Outcome) -> list[Section]:
    """Return what the numbers are compared with: claims and rows; at scale printed, the paper."""
    if outcome.plan.is_printed:
        return [beside_paper(outcome)]
    return [_claims(outcome), _controls(outcome), _differences(outcome)]


def latex(outcome: Outcome) -> str:
    """Return the table of the first metric as LaTeX, with titles of methods.

    The best number of a column is bold if claims decide that it is.
    """
    plan, metric = outcome.plan, outcome.metrics[0]
    header, rows = main_cells(outcome, metric)
    names = [titled(plan.rows[row].label, plan.rows[row].label.lower()) for row in plan.rows]
    controls = [" (control)" * bool(plan.rows[row].control) for row in plan.rows]
    rows = [[f"{n}{c}", *row[1:]] for n, c, row in zip(names, controls, rows, strict=True)]
    own_columns = [index for index, name in enumerate(header) if index and name != "paper"]
    best = [
        (row, index)
        for index, column in zip(own_columns, shown_columns(outcome), strict=True)
        if (row := decided_best(outcome, column, metric)) is not None
    ]
    where = {"validation": "validation images", "test": f"test images ({MARK})"}[plan.select]
    what = {"best": "Configuration and best round", "final": "Configuration"}[plan.at]
    spread = SPREAD.replace("95", f"{100 * plan.confidence:g}")
    name = metric_name(metric)
    sentences = [
        f"{name[:1].upper()}{name[1:]}: mean {spread} {count_of_seeds(outcome)} seeds",
        f"{what} chosen on {where}{'; numbers of the last round' * (plan.at == 'final')}",
        "Bold: better than every other row, each decided by a claim" if best else "",
        "" if plan.paper is None else f"Paper: {plan.paper.source}",
        f"{LATE}: the first choice diverged in {'; '.join(late)}"
        if (late := late_choices(outcome))
        else "",
    ]
    caption = " ".join(f"{sentence}." for sentence in sentences if sentence)
    return latex_table(["Method", *header[1:]], rows, caption, plan.name, best)


def decided_best(outcome: Outcome, column: str | None, metric: Metric) -> int | None:
    """Return the row whose claims decide that it is better than all others in a column, or None."""
    rows = list(outcome.plan.rows)
    measured = [row for row in rows if outcome.interval(Side(row, column), metric.name) is not None]
    beaten: dict[str, set[str]] = {row: set() for row in rows}
    for tested in outcome.claims:
        claim, verdict = tested.claim, tested.verdict
        better, worse = claim.better, claim.worse
        if better.column != column or worse.column != column:
            continue
        if {claim.metric, claim.than} != {metric.name}:
            continue
        if verdict == "holds" and claim.margin >= 0:
            beaten[better.row].add(worse.row)
        if verdict == "refuted" and claim.margin <= 0:
            beaten[worse.row].add(better.row)
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
    return mean if math.isinf(interval.half) else f"{mean} ± {number(interval.half, metric)}"


def cell_text(outcome: Outcome, row: str, column: str | None, metric: Metric) -> str:
    """Format the number of a cell, or of a row's mean, with marks and the count of failed seeds."""
    cells = [
        cell
        for place, cell in outcome.cells.items()
        if place.row == row and column in (None, place.column)
    ]
    if all(cell.state.phase == "failed" for cell in cells):
        return "failed"
    lost = len({result.seed for cell in cells for result in cell.seeds if result.reason})
    interval = outcome.interval(Side(row, column), metric.name)
    if interval is None:
        return "failed" if lost else NOTHING
    mark = MARK if outcome.plan.select == "test" else ""
    mark += LATE if any(cell.state.dropped for cell in cells) else ""
    return spread_of(interval, metric) + mark + (f" ({lost} failed)" if lost else "")


def paper_text(outcome: Outcome, row: str, column: str | None) -> str:
    """Format the paper's number for a cell, or for a row's mean."""
    entry = outcome.plan.paper_of(row, column)
    if entry is None:
        return NOTHING
    mean, spread = entry
    return f"{mean:g}" if spread is None else f"{mean:g} ± {spread:g}"


def row_text(outcome: Outcome, row: str) -> str:
    """Return a row's label, marked if the row is a control."""
    plan = outcome.plan.rows[row]
    return f"{plan.label} (control)" if plan.control else plan.label


def glosses(outcome: Outcome) -> list[str]:
    """Return explanations of rows and columns, and names of rows whose labels differ from them."""
    plan = outcome.plan
    texts = []
    for name, row in plan.rows.items():
        gloss = plan.glosses.get(name)
        if gloss is not None or _letters(row.label) != _letters(name):
            texts.append(f"{row.label}: `{name}`" + (f", {gloss}" if gloss else ""))
    columns = [name for name in plan.columns if name in plan.glosses]
    return [*texts, *(f"{name}: {plan.glosses[name]}" for name in columns)]


def _letters(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())


def shown_columns(outcome: Outcome) -> list[str | None]:
    """Return the columns, followed by None for their mean if there are several."""
    columns = list(outcome.plan.columns)
    return [*columns, None] if len(columns) > 1 else [*columns]


def main_cells(outcome: Outcome, metric: Metric) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table, with the paper's numbers if there are any."""
    plan, first = outcome.plan, metric is outcome.metrics[0]
    several = len(plan.columns) > 1
    header, rows = [""], [[row_text(outcome, row)] for row in plan.rows]
    for column in shown_columns(outcome):
        header.append((column or MEAN) if several else title_of_column(outcome))
        papers = first and any(plan.paper_of(row, column) for row in plan.rows)
        header += ["paper"] if papers else []
        for row, cells in zip(plan.rows, rows, strict=True):
            cells.append(cell_text(outcome, row, column, metric))
            cells += [paper_text(outcome, row, column)] if papers else []
    return header, rows


def title_of_column(outcome: Outcome) -> str:
    """Return the title of the only column: its name, or that of the images."""
    [(column, keys)] = outcome.plan.columns.items()
    return column if keys else outcome.plan.data_title


def seeds_text(outcome: Outcome) -> str:
    """Return the reported seeds: "seeds 0, 1"."""
    return f"seeds {', '.join(map(str, outcome.plan.report.seeds))}"


def count_of_seeds(outcome: Outcome) -> int:
    """Return the number of reported seeds."""
    return len(outcome.plan.report.seeds)


def caption(outcome: Outcome, metric: Metric) -> str:
    """Return the caption: metric, seeds, interval and selection."""
    plan = outcome.plan
    where = {"validation": "validation images", "test": f"TEST images ({MARK})"}[plan.select]
    chosen = f"configuration and best round chosen on {where}"
    if plan.at == "final":
        chosen = f"numbers of the last round, configuration chosen on {where}"
    text = (
        f"{metric_name(metric, UNIT)}: mean over {seeds_text(outcome)} ± half of its "
        f"{100 * plan.confidence:g} % t interval; {chosen}"
    )
    if plan.paper is not None and metric is outcome.metrics[0]:
        text += f"; paper: {plan.paper.source}"
    late = late_choices(outcome)
    if late:
        text += f"; {LATE}: a choice diverged when it was reported: {'; '.join(late)}"
    return text + "."


def sources(outcome: Outcome) -> str:
    """Return sentences about the intervals and the number of test images."""
    text = f"Intervals are over {count_of_seeds(outcome)} seeds"
    metric = outcome.metrics[0]
    counts = {
        result.measured.test_images
        for cell in outcome.cells.values()
        for result in cell.seeds
        if result.measured is not None
    }
    known_counts = sorted(count for count in counts if count)
    if not known_counts or len(known_counts) < len(counts):
        return f"{text}; the number of test images is not recorded."
    images = " to ".join(f"{count:,}" for count in sorted({known_counts[0], known_counts[-1]}))
    text += f"; all clients of a run are tested on {images} images"
    sides = [Side(place.row, place.column) for place in outcome.cells]
    means = [one.mean / 100 for side in sides if (one := outcome.interval(side, metric.name))]
    if not metric.is_share or not means:
        return f"{text}."
    error = max(100 * math.sqrt(max(0.0, mean * (1 - mean)) / known_counts[0]) for mean in means)
    return f"{text}, where an accuracy has a binomial standard error of up to {error:.1f} points."


def late_choices(outcome: Outcome) -> list[str]:
    """Return the cells whose first choice diverged with the report seeds, with that choice."""
    return [
        f"{place} ({', '.join(map(dropped_text, cell.state.dropped))})"
        for place, cell in outcome.cells.items()
        if cell.state.dropped
    ]


def _main(outcome: Outcome, metric: Metric) -> Section:
    header, rows = main_cells(outcome, metric)
    title = "" if metric is outcome.metrics[0] else metric_name(metric, UNIT)
    below, items = [caption(outcome, metric)], []
    if metric is outcome.metrics[0]:
        below.append(sources(outcome))
        below += [f"Not at this scale: {outcome.plan.left_out}"] if outcome.plan.left_out else []
        items = glosses(outcome)
    return Section(title, (), header, rows, below, items)


def interval_text(interval: Interval | None, metric: Metric) -> str:
    """Format a difference with its interval: "+1.2 [0.3, 2.1]"."""
    if interval is None:
        return NOTHING
    sign = "+" if interval.mean >= 0 else ""
    text = f"{sign}{number(interval.mean, metric)}"
    if math.isinf(interval.half):
        return text
    return f"{text} [{number(interval.low, metric)}, {number(interval.high, metric)}]"


def open_text(what: str, needed: SeedRange | None, comparison: Comparison) -> str:
    """Return the text of an open question, with the number of seeds needed to decide it."""
    if comparison.is_same:
        return f"{what}: the same on every seed"
    if len(comparison.differences) < 2:
        return f"{what}: needs two seeds at least"
    return what if needed is None else f"{what}: {needed}"


def verdict_text(tested: TestedClaim) -> str:
    """Return the text of a verdict; for undecided claims, with the number of seeds needed."""
    if tested.verdict == "undecided":
        return open_text("undecided", tested.needed, tested.comparison)
    if tested.verdict == "not asked":
        return "no runs"
    return f"{tested.verdict} {FRAGILE}" if tested.fragile else tested.verdict


def claim_text(claim: Claim, outcome: Outcome) -> str:
    """Return the text of a claim, with its metric unless that is the first of the table."""
    one = claim.metric == claim.than and claim.metric != outcome.metrics[0].name
    return f"{claim.question} ({claim.metric})" if one else claim.question


def _claims(outcome: Outcome) -> Section:
    if not outcome.claims:
        return Section("Claims")
    rows = [
        [
            claim_text(tested.claim, outcome),
            interval_text(tested.comparison.interval, outcome.metric(tested.claim.metric)),
            p_text(tested.corrected),
            f"**{verdict_text(tested)}**",
            tested.claim.source,
        ]
        for tested in outcome.claims
    ]
    if not any(row[-1] for row in rows):
        rows = [row[:-1] for row in rows]
    decided = sum(tested.verdict in ("holds", "refuted") for tested in outcome.claims)
    questions = [1 + (control.question.middle is not None) for control in outcome.controls]
    test = outcome.test
    family = len(outcome.claims) + sum(questions)
    header = ["claim", "difference", "p (Holm)", "verdict", "source"][: len(rows[0])]
    fragile = [
        f"{FRAGILE} {claim_text(tested.claim, outcome)}: {'; '.join(tested.fragile)}"
        for tested in outcome.claims
        if tested.fragile
    ]
    below = (
        f"{decided} of {len(rows)} claims are decided{_of_fragile(len(fragile))}. Differences seed "
        f"by seed, less what is claimed, with their {interval_name(test)}; p of the two-sided "
        f"{TESTS[test.kind]}, corrected for {family} comparisons; decided below {test.alpha:.2g}."
        f"{_of_looks(test)}{_of_choices(outcome)}"
    )
    return Section("Claims", (), header, rows, [below], fragile)


def interval_name(test: PairedTest) -> str:
    """Return the name of the intervals of differences, with their level."""
    name = "t interval" if test.kind == "fixed" else "confidence sequence"
    return f"{100 * test.interval_level:.3g} % {name}"


def _of_fragile(count: int) -> str:
    return f", {count} of them {FRAGILE} for the reasons below" if count else ""


def _of_looks(test: PairedTest) -> str:
    """Return a sentence about the correction for repeated looks; "" at the first look."""
    if test.looks == 1:
        return ""
    return f" It is look {test.looks} at these claims, so each p is multiplied by {test.looks}."


def _of_choices(outcome: Outcome) -> str:
    """Return a sentence about the role of tuning in the verdicts; "" without tuning."""
    plan = outcome.plan
    if not any(row.space for row in plan.rows.values()):
        return ""
    return " Each seed chose its own configuration, so p includes the variation by tuning."


def control_text(control: ControlResult) -> str:
    """Return the text of a control's reading."""
    if control.reading == "open: whether there is a gain" and control.needed is not None:
        return f"{control.reading}, {control.needed} that"
    if control.reading == "open":
        return open_text("open", control.needed, control.question.comparison)
    return control.reading


def _controls(outcome: Outcome) -> Section:
    if not outcome.controls:
        return Section("Controls")
    metric = outcome.metrics[0]
    rows = []
    for control in outcome.controls:
        question = control.question
        share = NOTHING if question.share is None else f"{100 * question.share:.0f} %"
        difference = interval_text(question.comparison.interval, metric)
        rows.append(
            [
                f"{question.row} for {question.of}",
                question.refutes,
                f"{difference} ({p_text(control.corrected)})",
                share if question.baseline is None else f"{share} over {question.baseline}",
                p_text(control.corrected_middle),
                f"**{control_text(control)}**",
            ]
        )
    header = [
        "control",
        "would refute",
        "method minus control (p)",
        "share of the gain",
        "p of half the gain",
        "reading",
    ]
    below = [
        "A control explains the gain of a method over its baseline if it has more than half of the "
        "gain. It does not explain the gain if the method is better than the control; if both "
        "hold, it explains most of the gain. Controls are read only if the uncorrected interval of "
        "the gain lies above 0. They use the test of the claims and are corrected with them."
    ]
    columns = [
        _columns_text(control) for control in outcome.controls if control.columns_that_differ()
    ]
    return Section("Controls", (), header, rows, below, columns)


def _columns_text(control: ControlResult) -> str:
    """Return a sentence about a control's readings by column."""
    readings = [
        f"{reading} in {', '.join(columns)}"
        for reading, columns in control.columns_that_differ().items()
    ]
    return f"{control.question.row}, each column by itself, not corrected: {'; '.join(readings)}."


def _differences(outcome: Outcome) -> Section:
    metric, plan = outcome.metrics[0], outcome.plan
    first, columns = next(iter(plan.rows)), shown_columns(outcome)
    cells = {
        (difference.worse.row, difference.worse.column): interval_text(difference.interval, metric)
        for difference in outcome.against
    }
    rows = [
        [row_text(outcome, row), *(cells[row, column] for column in columns)]
        for row in list(plan.rows)[1:]
    ]
    names = [column or MEAN for column in columns] if len(columns) > 1 else ["difference"]
    below = [
        f"Paired by seed, with {interval_name(outcome.test)}s, not corrected for their number."
    ]
    return Section(f"{plan.rows[first].label} minus the others", (), ["", *names], rows, below)


def _chosen(outcome: Outcome, made: Made) -> Section:
    plan = outcome.plan
    rows = []
    for place, cell in outcome.cells.items():
        state = cell.state
        rounds = sorted({result.measured.round for result in cell.seeds if result.measured})
        leader, counts = plan.leader(place), tried_by_seed(state)
        tried = count_text([tried for tried, _ in counts])
        if any(added for _, added in counts):
            tried += f", {count_text([added for _, added in counts])} beyond its grid"
        edges = ", ".join(f"{edge.name} ({edge.end})" for edge in state.edges)
        chosen = NOTHING
        if state.chosen is not None:
            chosen = _choices(state)
            chosen += "".join(f"; {dropped_text(config)}" for config in state.dropped)
        rows.append(
            [
                str(place) if len(plan.columns) > 1 else place.row,
                chosen,
                tried if leader == place else f"as {leader}",
                edges or "no",
                "-".join(map(str, sorted({rounds[0], rounds[-1]}))) if rounds else NOTHING,
                _cost_of_a_run([result.measured for result in cell.seeds if result.measured]),
            ]
        )
    tuning = plan.tuning
    text = (
        f"Every row, in every column: at most {tuning.configurations} configurations by "
        f"{tuning.search} search, each of {count_of_seeds(outcome)} seeds by itself, "
        f"{made.rounds('tuning')} rounds; then {count_of_seeds(outcome)} report seeds, "
        f"{made.rounds('report')} rounds. Time and traffic of a reported run are means over seeds."
    )
    header = ["", "chosen", "tried", "at an edge", "round", "a run"]
    return Section("Chosen configurations", [text], header, rows)


def _choices(state: CellState) -> str:
    """Return the seeds' choices, the most frequent first: "lr=0.1 (3 of 5 seeds), lr=0.3"."""
    choices = list(state.choices.values())
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


def _made(outcome: Outcome, made: Made) -> Section:
    hours, traffic = made.seconds / 3600, made.bytes
    commits = ", ".join(made.commits)
    written = "" if commits in ("", made.commit) else f"; this page {made.commit}"
    items = [
        f"command: `{made.command}`",
        f"{made.runs} runs ({made.shared} of them existed before), "
        f"{hours:.2f} hours of computing, {size_of(traffic)} sent and received",
        seeds_text(outcome),
        f"commit {commits or made.commit}{written}; {made.versions}",
        f"machine: {made.machine}",
        f"made {made.when}",
    ]
    return Section("How it was made", items=items)
