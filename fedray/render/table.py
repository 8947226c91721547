"""The page of a table: its cells, claims, controls, choices, caveats, and how it was made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from fedray.compare.caveats import dropped_text
from fedray.compare.labels import config_label
from fedray.compare.paired import Comparison, Interval, PairedTest, SeedRange, Side
from fedray.files import write_atomic
from fedray.records import Metric
from fedray.render.cells import NOTHING, SPREAD, metric_name, p_text
from fedray.render.page import Picture, Section, html, latex_table, markdown
from fedray.render.record import Made
from fedray.render.report import best_rows, titled
from fedray.render.table_figure import draw
from fedray.units import size_of, time_of

if TYPE_CHECKING:
    from fedray.studies.cell import CellState
    from fedray.studies.claims import Claim
    from fedray.studies.controls import ControlResult
    from fedray.studies.outcome import Outcome, TestedClaim
    from fedray.studies.store import Measured

MARK = "†"
"""Marks numbers that were chosen on test images."""
LATE = "‡"
"""Marks numbers of a second choice, because the first one diverged when it was reported."""
FRAGILE = "(fragile)"
"""Marks verdicts that rest on little."""
UNIT = ", %"
"""Follows the name of a share."""
MEAN = "mean"
TESTS = {
    "fixed": "paired t-test",
    "anytime": "anytime-valid paired t-test, with which seeds may be added at any time",
}
"""The tests of claims, in words."""
PAGE, LATEX, HTML, FIGURE = "table.md", "table.tex", "table.html", "figure.png"


def write(outcome: Outcome, made: Made, folder: Path) -> list[Section]:
    """Write a table as Markdown, LaTeX, HTML and figure into a folder; returns its page."""
    sections = page(outcome, made)
    figure = folder / FIGURE
    draw(outcome, figure)
    pictured = with_figure(sections, figure)
    write_atomic(folder / PAGE, markdown(pictured))
    write_atomic(folder / LATEX, latex(outcome))
    write_atomic(folder / HTML, html(pictured))
    return sections


def with_figure(sections: Sequence[Section], figure: Path) -> list[Section]:
    """Return a page with its figure below the table, if there are both."""
    if not figure.exists() or len(sections) < 2:
        return [*sections]
    picture = Picture("the table as a figure", figure.read_bytes(), "png", figure.name)
    return [*sections[:2], Section("", pictures=[picture]), *sections[2:]]


def page(outcome: Outcome, made: Made) -> list[Section]:
    """Return the page, the main thing first."""
    plan = outcome.plan
    end = "" if plan.answers.endswith(("?", ".")) else "."
    sections = [
        Section(f"{plan.name} [{plan.scale} scale]", [f"{plan.answers}{end}"]),
        *(_main(outcome, metric) for metric in outcome.metrics),
        _claims(outcome),
        _controls(outcome),
        _differences(outcome),
        _aggregates(outcome),
        _chosen(outcome, made),
        Section("Before you compare", items=[f"{note}." for note in outcome.notes]),
        _made(outcome, made),
    ]
    return [each for each in sections if each.text or each.rows or each.items]


def latex(outcome: Outcome) -> str:
    """Return the first metric's table for a paper: titles of methods, the best in bold."""
    plan, metric = outcome.plan, outcome.metrics[0]
    header, rows = main_cells(outcome, metric)
    names = [titled(plan.rows[row].label, plan.rows[row].label.lower()) for row in plan.rows]
    controls = [" (control)" * bool(plan.rows[row].control) for row in plan.rows]
    rows = [[f"{n}{c}", *row[1:]] for n, c, row in zip(names, controls, rows, strict=True)]
    best = []
    own = [index for index, name in enumerate(header) if index and name != "paper"]
    for index, column in zip(own, shown_columns(outcome), strict=True):
        sides = [Side(row, column) for row in plan.rows]
        intervals = [outcome.interval(side, metric.name) for side in sides]
        means = [None if interval is None else interval.mean for interval in intervals]
        best += [(row, index) for row in best_rows(means, metric)]
    where = {"validation": "validation images", "test": f"test images ({MARK})"}[plan.select]
    what = {"best": "Configuration and best round", "final": "Configuration"}[plan.at]
    spread = SPREAD.replace("95", f"{100 * plan.confidence:g}")
    name = metric_name(metric)
    sentences = [
        f"{name[:1].upper()}{name[1:]}: mean {spread} {len(plan.report.seeds)} seeds",
        f"{what} chosen on {where}{'; numbers of the last round' * (plan.at == 'final')}",
        "" if plan.paper is None else f"Paper: {plan.paper.source}",
        f"{LATE}: the first choice diverged in {'; '.join(late)}"
        if (late := late_choices(outcome))
        else "",
    ]
    caption = " ".join(f"{sentence}." for sentence in sentences if sentence)
    return latex_table(["Method", *header[1:]], rows, caption, plan.name, best)


def number(value: float, metric: Metric) -> str:
    """Return a number in the unit that is shown."""
    return f"{value:.1f}" if metric.is_share else f"{value:.4g}"


def spread_of(interval: Interval, metric: Metric) -> str:
    """Return a mean with half of its interval: "23.5 ± 0.4"; one seed has no interval."""
    mean = number(interval.mean, metric)
    return mean if math.isinf(interval.half) else f"{mean} ± {number(interval.half, metric)}"


def cell_text(outcome: Outcome, row: str, column: str | None, metric: Metric) -> str:
    """Return our number of a cell or of a row's mean, with its marks and how many seeds failed."""
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
    """Return the paper's number of a cell, or of a row's mean."""
    entry = outcome.plan.paper_of(row, column)
    if entry is None:
        return NOTHING
    mean, spread = entry
    return f"{mean:g}" if spread is None else f"{mean:g} ± {spread:g}"


def row_text(outcome: Outcome, row: str) -> str:
    """Return a row's label; controls are named as such."""
    plan = outcome.plan.rows[row]
    return f"{plan.label} (control)" if plan.control else plan.label


def glosses(outcome: Outcome) -> list[str]:
    """Return what rows and columns are, and the names in claims of rows with other labels."""
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
    """Return the columns, and None for the mean of several."""
    columns = list(outcome.plan.columns)
    return [*columns, None] if len(columns) > 1 else [*columns]


def main_cells(outcome: Outcome, metric: Metric) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table, with the paper's numbers where it has any."""
    plan, first = outcome.plan, metric is outcome.metrics[0]
    several = len(plan.columns) > 1
    header, rows = [""], [[row_text(outcome, row)] for row in plan.rows]
    for column in shown_columns(outcome):
        header.append((column or MEAN) if several else "ours")
        papers = first and any(plan.paper_of(row, column) for row in plan.rows)
        header += ["paper"] if papers else []
        for row, cells in zip(plan.rows, rows, strict=True):
            cells.append(cell_text(outcome, row, column, metric))
            cells += [paper_text(outcome, row, column)] if papers else []
    return header, rows


def caption(outcome: Outcome, metric: Metric) -> str:
    """Return what the numbers of the table are."""
    plan = outcome.plan
    seeds = plan.report.seeds
    where = {"validation": "validation images", "test": f"TEST images ({MARK})"}[plan.select]
    chosen = f"configuration and best round chosen on {where}"
    if plan.at == "final":
        chosen = f"numbers of the last round, configuration chosen on {where}"
    text = (
        f"{metric_name(metric, UNIT)}: mean over seeds {', '.join(map(str, seeds))} ± half of its "
        f"{100 * plan.confidence:g} % t interval; {chosen}"
    )
    if plan.paper is not None and metric is outcome.metrics[0]:
        text += f"; paper: {plan.paper.source}"
    late = late_choices(outcome)
    if late:
        text += f"; {LATE}: a choice diverged when it was reported: {'; '.join(late)}"
    return text + "."


def sources(outcome: Outcome) -> str:
    """Return a sentence that says what the intervals cover, and how many images were tested on."""
    text = f"Intervals are over {len(outcome.plan.report.seeds)} seeds"
    metric = outcome.metrics[0]
    counts = {
        one.measured.test_images
        for cell in outcome.cells.values()
        for one in cell.seeds
        if one.measured is not None
    }
    known = sorted(count for count in counts if count)
    if not known or len(known) < len(counts):
        return f"{text}; how many test images there were is not recorded."
    images = " to ".join(f"{count:,}" for count in sorted({known[0], known[-1]}))
    text += f"; all clients of a run are tested on {images} images"
    sides = [Side(place.row, place.column) for place in outcome.cells]
    means = [one.mean / 100 for side in sides if (one := outcome.interval(side, metric.name))]
    if not metric.is_share or not means:
        return f"{text}."
    error = max(100 * math.sqrt(max(0.0, mean * (1 - mean)) / known[0]) for mean in means)
    return f"{text}, where an accuracy has a binomial standard error of up to {error:.1f} points."


def late_choices(outcome: Outcome) -> list[str]:
    """Return the cells whose first choice diverged when it was reported, with that choice."""
    return [
        f"{place} ({', '.join(map(dropped_text, cell.state.dropped))})"
        for place, cell in outcome.cells.items()
        if cell.state.dropped
    ]


def _main(outcome: Outcome, metric: Metric) -> Section:
    header, rows = main_cells(outcome, metric)
    title = "" if metric is outcome.metrics[0] else metric_name(metric, UNIT)
    said, items = [caption(outcome, metric)], []
    if metric is outcome.metrics[0]:
        said.append(sources(outcome))
        said += [f"Not at this scale: {outcome.plan.left_out}"] if outcome.plan.left_out else []
        items = glosses(outcome)
    return Section(title, (), header, rows, said, items)


def interval_text(interval: Interval | None, metric: Metric) -> str:
    """Return a difference with its interval: "+1.2 [0.3, 2.1]"."""
    if interval is None:
        return NOTHING
    sign = "+" if interval.mean >= 0 else ""
    text = f"{sign}{number(interval.mean, metric)}"
    if math.isinf(interval.half):
        return text
    return f"{text} [{number(interval.low, metric)}, {number(interval.high, metric)}]"


def open_text(what: str, needed: SeedRange | None, comparison: Comparison) -> str:
    """Return what is open, and how many seeds would decide it if that can be said."""
    if comparison.is_same:
        return f"{what}: the same on every seed"
    if len(comparison.differences) < 2:
        return f"{what}: needs two seeds at least"
    return what if needed is None else f"{what}: {needed}"


def verdict_text(each: TestedClaim) -> str:
    """Return a verdict, and what would decide an open one."""
    if each.verdict == "undecided":
        return open_text("undecided", each.needed, each.comparison)
    if each.verdict == "not asked":
        return "no runs"
    return f"{each.verdict} {FRAGILE}" if each.fragile else each.verdict


def claim_text(claim: Claim, outcome: Outcome) -> str:
    """Return a claim, with its metric unless that is the table's first one."""
    one = claim.metric == claim.than and claim.metric != outcome.metrics[0].name
    return f"{claim.question} ({claim.metric})" if one else claim.question


def _claims(outcome: Outcome) -> Section:
    if not outcome.claims:
        return Section("Claims")
    rows = [
        [
            claim_text(each.claim, outcome),
            interval_text(each.comparison.interval, outcome.metric(each.claim.metric)),
            p_text(each.corrected),
            f"**{verdict_text(each)}**",
            each.claim.source,
        ]
        for each in outcome.claims
    ]
    if not any(row[-1] for row in rows):
        rows = [row[:-1] for row in rows]
    decided = sum(each.verdict in ("holds", "refuted") for each in outcome.claims)
    questions = [1 + (control.question.middle is not None) for control in outcome.controls]
    test = outcome.test
    family = len(outcome.claims) + sum(questions) + len(outcome.looks.dropped)
    header = ["claim", "difference", "p (Holm)", "verdict", "source"][: len(rows[0])]
    fragile = [
        f"{FRAGILE} {claim_text(each.claim, outcome)}: {'; '.join(each.fragile)}"
        for each in outcome.claims
        if each.fragile
    ]
    below = (
        f"{decided} of {len(rows)} claims are decided{_of_fragile(len(fragile))}. Differences seed "
        f"by seed, less what is claimed, with their {interval_name(test)}; p of the two-sided "
        f"{TESTS[test.kind]}, corrected for {family} comparisons; decided below {test.alpha:.2g}."
        f"{_of_looks(test)}{_of_choices(outcome)}"
    )
    return Section("Claims", (), header, rows, [below], fragile)


def interval_name(test: PairedTest) -> str:
    """Return what the intervals of differences are."""
    name = "t interval" if test.kind == "fixed" else "confidence sequence"
    return f"{100 * test.interval_level:.3g} % {name}"


def _of_fragile(count: int) -> str:
    return f", {count} of them {FRAGILE} for the reasons below" if count else ""


def _of_looks(test: PairedTest) -> str:
    """Return the sentence that says for how many looks p is corrected; "" for the first."""
    if test.looks == 1:
        return ""
    return f" It is look {test.looks} at these claims, so each p is multiplied by {test.looks}."


def _of_choices(outcome: Outcome) -> str:
    """Return the sentence that says which choices the verdicts are about; "" without tuning."""
    plan = outcome.plan
    if not any(row.space for row in plan.rows.values()):
        return ""
    if plan.tuning.once is None:
        return " Each seed chose its configuration by itself, so p counts the luck of tuning."
    seeds = plan.tuning.once
    named = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    return (
        f" The verdicts are about the configurations that were chosen on tuning {named}; they "
        "leave out the luck of that choice."
    )


def control_text(each: ControlResult) -> str:
    """Return a control's reading in words."""
    if each.reading == "open: whether there is a gain" and each.needed is not None:
        return f"{each.reading}, {each.needed} that"
    if each.reading == "open":
        return open_text("open", each.needed, each.question.comparison)
    return each.reading


def _controls(outcome: Outcome) -> Section:
    if not outcome.controls:
        return Section("Controls")
    metric = outcome.metrics[0]
    rows = []
    for each in outcome.controls:
        asked = each.question
        share = NOTHING if asked.share is None else f"{100 * asked.share:.0f} %"
        rows.append(
            [
                f"{asked.row} for {asked.of}",
                asked.refutes,
                f"{interval_text(asked.comparison.interval, metric)} ({p_text(each.corrected)})",
                share if asked.baseline is None else f"{share} over {asked.baseline}",
                p_text(each.corrected_middle),
                f"**{control_text(each)}**",
            ]
        )
    header = [
        "control",
        "would refute",
        "method minus control (p)",
        "it has of the gain",
        "p of half of it",
        "reading",
    ]
    below = [
        "A control explains a gain away where it has more than half of it, that is, lies above the "
        "middle between method and baseline; it does not where the method is better than it; most "
        "of it, where both are so. It is read where the gain's interval, not corrected, lies above "
        "0. The test of the claims, corrected with them."
    ]
    columns = [_columns_text(each) for each in outcome.controls if each.columns_that_differ()]
    return Section("Controls", (), header, rows, below, columns)


def _columns_text(each: ControlResult) -> str:
    """Return a control's readings in single columns."""
    readings = [
        f"{reading} in {', '.join(columns)}"
        for reading, columns in each.columns_that_differ().items()
    ]
    return f"{each.question.row}, each column by itself, not corrected: {'; '.join(readings)}."


def _differences(outcome: Outcome) -> Section:
    metric, plan = outcome.metrics[0], outcome.plan
    first, columns = next(iter(plan.rows)), shown_columns(outcome)
    cells = {
        (each.worse.row, each.worse.column): interval_text(each.interval, metric)
        for each in outcome.against
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


def _aggregates(outcome: Outcome) -> Section:
    if not outcome.aggregates:
        return Section("Over all columns")
    metric = outcome.metrics[0]
    rows = [
        [row_text(outcome, row), interval_text(each, metric).lstrip("+")]
        for row, each in outcome.aggregates.items()
    ]
    text = (
        "Interquartile mean over columns and seeds, with a stratified bootstrap interval "
        "(Agarwal et al., 2021)."
    )
    return Section("Over all columns", (), ["", "IQM"], rows, [text])


def _chosen(outcome: Outcome, made: Made) -> Section:
    plan = outcome.plan
    rows = []
    for place, cell in outcome.cells.items():
        state = cell.state
        rounds = sorted({each.measured.round for each in cell.seeds if each.measured})
        leader, added = plan.leader(place), sum(each.added for each in state.tried)
        tried = f"{len(state.tried) or 1}" + (f", {added} beyond its grid" if added else "")
        edges = ", ".join(f"{edge.name} ({edge.end})" for edge in state.edges)
        chosen = NOTHING
        if state.chosen is not None:
            chosen = _choices(state)
            chosen += "".join(f"; {dropped_text(each)}" for each in state.dropped)
        rows.append(
            [
                str(place) if len(plan.columns) > 1 else place.row,
                chosen,
                tried if leader == place else f"as {leader}",
                edges or "no",
                "-".join(map(str, sorted({rounds[0], rounds[-1]}))) if rounds else NOTHING,
                _cost_of_a_run([each.measured for each in cell.seeds if each.measured]),
            ]
        )
    tuning, effort = plan.tuning, f"{made.rounds('tuning')} rounds"
    if tuning.once is None:
        effort = f"each of {len(plan.report.seeds)} seeds by itself, {effort}"
    else:
        seeds = ", ".join(map(str, tuning.once))
        effort = f"{len(tuning.once)} tuning seed(s) ({seeds}), {effort}"
    text = (
        f"Every row, in every column: at most {tuning.configurations} configurations by "
        f"{tuning.search} search, {effort}; then {len(plan.report.seeds)} report seeds, "
        f"{made.rounds('report')} rounds. What a reported run took, and sent and received, is a "
        "mean over seeds."
    )
    header = ["", "chosen", "tried", "at an edge", "round", "a run"]
    return Section("What was chosen", [text], header, rows)


def _choices(state: CellState) -> str:
    """Return what the seeds chose, the commonest first: "lr=0.1 (3 of 5 seeds), lr=0.3"."""
    choices = list(state.choices.values())
    distinct = [each for number, each in enumerate(choices) if each not in choices[:number]]
    ranked = sorted(distinct, key=choices.count, reverse=True)
    labels = [config_label(each) or "as given" for each in ranked]
    if len(labels) > 1:
        labels[0] += f" ({choices.count(ranked[0])} of {len(choices)} seeds)"
    return ", ".join(labels)


def _cost_of_a_run(measured: Sequence[Measured]) -> str:
    """Return the mean cost of runs: "2 min 24 s, 35.5 MB"."""
    if not measured:
        return NOTHING
    seconds = fmean(each.seconds for each in measured)
    return f"{time_of(seconds)}, {size_of(fmean(each.bytes for each in measured))}"


def _made(outcome: Outcome, made: Made) -> Section:
    hours, traffic = made.seconds / 3600, made.bytes
    commits = ", ".join(made.commits)
    written = "" if commits in ("", made.commit) else f"; this page {made.commit}"
    items = [
        f"command: `{made.command}`",
        f"{made.runs} runs ({made.shared} of them were there already), "
        f"{hours:.2f} hours of computing, {size_of(traffic)} sent and received",
        f"report seeds {', '.join(map(str, outcome.plan.report.seeds))}; tuning seeds "
        f"{', '.join(map(str, outcome.plan.tuning_seeds))}",
        f"commit {commits or made.commit}{written}; {made.versions}",
        f"machine: {made.machine}",
        f"made {made.when}",
        *([made.registered] if made.registered else []),
    ]
    return Section("How it was made", items=items)
