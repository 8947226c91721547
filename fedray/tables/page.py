"""A table as a page: sections of text and cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from fedray.records import Metric
from fedray.report.section import Picture, Section
from fedray.report.statistics import MOST_SEEDS, Interval
from fedray.sweep.spec import words
from fedray.tables.claims import Claim, Side
from fedray.tables.comparing import Comparison
from fedray.tables.controls import ControlRead
from fedray.tables.fairness import dropped_text
from fedray.tables.measured import Measured
from fedray.tables.outcome import Decided, Outcome
from fedray.tables.plan import Place
from fedray.tables.record import Made
from fedray.units import size_of, time_of

MARK = "†"
"""Of numbers that were chosen on test images."""
LATE = "‡"
"""Of numbers of a second choice, because the first one diverged when it was reported."""
NOTHING = "–"
MEAN = "mean"


def page(found: Outcome, made: Made) -> list[Section]:
    """Everything that is said of a table, the main thing first."""
    plan = found.plan
    end = "" if plan.answers.endswith(("?", ".")) else "."
    head = Section(f"{plan.table} [{plan.scale} scale]", [f"{plan.answers}{end}"])
    sections = [head, *(_main(found, metric) for metric in found.metrics)]
    sections += [_claims(found), _controls(found), _differences(found), _aggregates(found)]
    sections += [_chosen(found, made), _notes(found), _made(found, made)]
    return [each for each in sections if each.text or each.rows or each.items]


def with_figure(sections: Sequence[Section], figure: Path | None) -> list[Section]:
    """The page with the table's figure, a PNG, below the first table; as it is without one."""
    if figure is None or not figure.exists() or len(sections) < 2:
        return list(sections)
    picture = Picture("the table as a figure", figure.read_bytes(), "png", figure.name)
    head, main, *rest = sections
    return [head, main, Section("", pictures=[picture]), *rest]


def name_of(metric: Metric) -> str:
    """A metric for people, with its unit."""
    return metric.name.replace("_", " ") + (", %" if metric.is_share else "")


def number(value: float, metric: Metric) -> str:
    """A number in the unit that is shown."""
    return f"{value:.1f}" if metric.is_share else f"{value:.4g}"


def spread_of(interval: Interval, metric: Metric) -> str:
    """A mean with half of its interval: "23.5 ± 0.4"; of one seed the mean alone."""
    mean = number(interval.mean, metric)
    return mean if math.isinf(interval.half) else f"{mean} ± {number(interval.half, metric)}"


def cell_text(found: Outcome, row: str, column: str | None, metric: Metric) -> str:
    """Our number of a cell or of a row's mean, with what is to be known of it.

    Marked are numbers that were chosen on test images, and those of a second choice; seeds that
    failed are counted.
    """
    columns = found.plan.columns if column is None else [column]
    cells = [found.cells[Place(row, each)] for each in columns]
    if all(cell.standing.phase == "failed" for cell in cells):
        return "failed"
    lost = len({each.seed for cell in cells for each in cell.seeds if each.reason is not None})
    interval = found.interval(Side(row, column), metric.name)
    if interval is None:
        return "failed" if lost else NOTHING
    mark = MARK if found.plan.select == "test" else ""
    mark += LATE if any(cell.standing.dropped for cell in cells) else ""
    return spread_of(interval, metric) + mark + (f" ({lost} failed)" if lost else "")


def paper_text(found: Outcome, row: str, column: str | None) -> str:
    """The paper's number of a cell, or of a row's mean."""
    entry = found.plan.paper_of(row, column)
    if entry is None:
        return NOTHING
    mean, spread = entry
    return f"{mean:g}" if spread is None else f"{mean:g} ± {spread:g}"


def row_text(found: Outcome, row: str) -> str:
    """A row's label; of a control that it is one."""
    plan = found.plan.rows[row]
    return f"{plan.label} (control)" if plan.control else plan.label


def glosses(found: Outcome) -> list[str]:
    """What rows and columns are, where their labels do not say it: the names that claims use."""
    plan = found.plan
    said = []
    for name, row in plan.rows.items():
        gloss = plan.glosses.get(name)
        if gloss is not None or _plain(row.label) != _plain(name):
            said.append(f"{row.label}: `{name}`" + (f", {gloss}" if gloss else ""))
    return [
        *said,
        *(f"{name}: {plan.glosses[name]}" for name in plan.columns if name in plan.glosses),
    ]


def _plain(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())


def main_cells(found: Outcome, metric: Metric) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the table itself, the paper's numbers beside ours.

    Where the paper has none of a column, there is no place for them.
    """
    plan, first = found.plan, metric is found.metrics[0]
    several = len(plan.columns) > 1
    columns = [*plan.columns, *([None] if several else [])]
    header, rows = [""], [[row_text(found, row)] for row in plan.rows]
    for column in columns:
        header.append((column or MEAN) if several else "ours")
        papers = first and any(plan.paper_of(row, column) for row in plan.rows)
        header += ["paper"] if papers else []
        for row, cells in zip(plan.rows, rows, strict=True):
            cells.append(cell_text(found, row, column, metric))
            cells += [paper_text(found, row, column)] if papers else []
    return header, rows


def caption(found: Outcome, metric: Metric) -> str:
    """What the numbers of the table are."""
    plan = found.plan
    seeds = plan.report.seeds
    where = {"validation": "validation images", "test": f"TEST images ({MARK})"}[plan.select]
    chosen = f"configuration and best round chosen on {where}"
    if plan.at == "final":
        chosen = f"numbers of the last round, configuration chosen on {where}"
    text = (
        f"{name_of(metric)}: mean over seeds {', '.join(map(str, seeds))} ± half of its "
        f"{100 * plan.confidence:g} % t interval; {chosen}"
    )
    if plan.paper is not None and metric is found.metrics[0]:
        text += f"; paper: {plan.paper.source}"
    late = [
        f"{place} ({', '.join(map(dropped_text, cell.standing.dropped))})"
        for place, cell in found.cells.items()
        if cell.standing.dropped
    ]
    if late:
        text += f"; {LATE}: a choice diverged when it was reported: {'; '.join(late)}"
    return text + "."


def _main(found: Outcome, metric: Metric) -> Section:
    header, rows = main_cells(found, metric)
    title = "" if metric is found.metrics[0] else name_of(metric)
    said, items = [caption(found, metric)], []
    if metric is found.metrics[0]:
        said += [f"Not at this scale: {found.plan.left_out}"] if found.plan.left_out else []
        items = glosses(found)
    return Section(title, (), header, rows, said, items)


def interval_text(interval: Interval | None, metric: Metric) -> str:
    """A difference with its interval: "+1.2 [0.3, 2.1]"."""
    if interval is None:
        return NOTHING
    sign = "+" if interval.mean >= 0 else ""
    text = f"{sign}{number(interval.mean, metric)}"
    if math.isinf(interval.half):
        return text
    return f"{text} [{number(interval.low, metric)}, {number(interval.high, metric)}]"


def needed_text(needed: int | None, comparison: Comparison) -> str:
    """How many seeds would decide."""
    if comparison.is_same:
        return "the same on every seed"
    if needed is not None:
        return f"{needed} seeds would decide"
    interval = comparison.interval
    if interval is None or interval.n < 2:
        return "needs two seeds at least"
    return f"{MOST_SEEDS} seeds would not decide"


def verdict_text(each: Decided) -> str:
    """A verdict, with what would decide it where it is open."""
    if each.verdict == "undecided":
        return f"undecided: {needed_text(each.needed, each.comparison)}"
    return each.verdict if each.verdict != "not asked" else "no runs"


def _p_text(p: float | None) -> str:
    return NOTHING if p is None else f"{p:.2g}"


def claim_text(claim: Claim, found: Outcome) -> str:
    """A claim, with its metric where that is not the table's first one."""
    one = claim.metric == claim.than and claim.metric != found.metrics[0].name
    return f"{claim.question} ({claim.metric})" if one else claim.question


def _claims(found: Outcome) -> Section:
    rows = [
        [
            claim_text(each.claim, found),
            interval_text(each.comparison.interval, found.metric(each.claim.metric)),
            _p_text(each.corrected),
            f"**{verdict_text(each)}**",
            each.claim.source,
        ]
        for each in found.claims
    ]
    if not any(row[-1] for row in rows):
        rows = [row[:-1] for row in rows]
    decided = sum(each.verdict in ("holds", "refuted") for each in found.claims)
    family = len(found.claims) + sum(1 + (each.asked.middle is not None) for each in found.controls)
    alpha = 1 - found.plan.confidence
    return Section(
        "Claims",
        (),
        ["claim", "difference", "p (Holm)", "verdict", "source"][: len(rows[0]) if rows else 0],
        rows,
        [
            f"{decided} of {len(rows)} claims are decided. Differences seed by seed, less what is "
            f"claimed, with their {100 * found.plan.confidence:g} % interval; p of the two-sided "
            f"paired t-test, corrected for {family} comparisons; decided below {alpha:.2g}."
            f"{_of_choices(found)}"
        ]
        if rows
        else (),
    )


def _of_choices(found: Outcome) -> str:
    """Return the sentence that says which choices the verdicts are about; "" without tuning."""
    plan = found.plan
    if not any(row.space for row in plan.rows.values()):
        return ""
    seeds = plan.tuning.seeds
    named = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    return (
        f" The verdicts are about the configurations that were chosen on tuning {named}; they "
        "leave out the luck of that choice."
    )


def control_text(each: ControlRead) -> str:
    """A reading in words."""
    if each.reading == "open: whether there is a gain" and each.needed is not None:
        return f"{each.reading}, {each.needed} seeds would decide that"
    if each.reading == "open":
        return f"open: {needed_text(each.needed, each.asked.comparison)}"
    return each.reading


def _controls(found: Outcome) -> Section:
    metric = found.metrics[0]
    rows = []
    for each in found.controls:
        asked = each.asked
        share = NOTHING if asked.share is None else f"{100 * asked.share:.0f} %"
        rows.append(
            [
                f"{asked.row} for {asked.of}",
                asked.refutes,
                f"{interval_text(asked.comparison.interval, metric)} ({_p_text(each.corrected)})",
                share if asked.baseline is None else f"{share} over {asked.baseline}",
                _p_text(each.corrected_middle),
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
        "0. Paired t-tests, corrected with the claims."
    ]
    columns = [_columns_text(each) for each in found.controls if each.columns_that_differ()]
    return Section("Controls", (), header if rows else (), rows, below if rows else (), columns)


def _columns_text(each: ControlRead) -> str:
    """What a control says in columns by themselves."""
    readings = [
        f"{reading} in {', '.join(columns)}"
        for reading, columns in each.columns_that_differ().items()
    ]
    return f"{each.asked.row}, each column by itself, not corrected: {'; '.join(readings)}."


def _differences(found: Outcome) -> Section:
    metric, plan = found.metrics[0], found.plan
    first, columns = next(iter(plan.rows)), [*plan.columns]
    whole = [*columns, None] if len(columns) > 1 else columns
    cells = {
        (each.worse.row, each.worse.column): interval_text(each.interval, metric)
        for each in found.against
    }
    rows = [
        [row_text(found, row), *(cells[row, column] for column in whole)]
        for row in list(plan.rows)[1:]
    ]
    names = [column or MEAN for column in whole] if len(columns) > 1 else ["difference"]
    below = [f"Paired by seed, with {100 * plan.confidence:g} % t intervals, not corrected."]
    return Section(f"{plan.rows[first].label} minus the others", (), ["", *names], rows, below)


def _aggregates(found: Outcome) -> Section:
    metric = found.metrics[0]
    rows = [
        [row_text(found, row), interval_text(each, metric).lstrip("+")]
        for row, each in found.aggregates.items()
    ]
    text = (
        "Interquartile mean over columns and seeds, with a stratified bootstrap interval "
        "(Agarwal et al., 2021)."
    )
    return Section(
        "Over all columns", (), ["", "IQM"] if rows else (), rows, [text] if rows else ()
    )


def _chosen(found: Outcome, made: Made) -> Section:
    plan = found.plan
    rows = []
    for place, cell in found.cells.items():
        standing = cell.standing
        rounds = sorted({each.measured.round for each in cell.seeds if each.measured})
        leader, added = plan.leader(place), sum(each.added for each in standing.tried)
        tried = f"{len(standing.tried) or 1}" + (f", {added} beyond its grid" if added else "")
        edges = ", ".join(f"{edge.name} ({edge.end})" for edge in standing.edges)
        chosen = NOTHING
        if standing.chosen is not None:
            chosen = words(standing.chosen) or "as given"
            chosen += "".join(f"; {dropped_text(each)}" for each in standing.dropped)
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
    tuning = plan.tuning
    text = (
        f"Every row, in every column: at most {tuning.configurations} configurations by "
        f"{tuning.search} search, {len(tuning.seeds)} tuning seed(s) "
        f"({', '.join(map(str, tuning.seeds))}), {made.rounds('tuning')} rounds; then "
        f"{len(plan.report.seeds)} report seeds, {made.rounds('report')} rounds. What a reported "
        "run took, and sent and received, is a mean over seeds."
    )
    header = ["", "chosen", "tried", "at an edge", "round", "a run"]
    return Section("What was chosen", [text], header, rows)


def _cost_of_a_run(measured: Sequence[Measured]) -> str:
    """The mean of runs: "2 min 24 s, 35.5 MB"."""
    if not measured:
        return NOTHING
    seconds = fmean(each.seconds for each in measured)
    return f"{time_of(seconds)}, {size_of(fmean(each.bytes for each in measured))}"


def _notes(found: Outcome) -> Section:
    return Section("Before you compare", items=[f"{note}." for note in found.notes])


def _made(found: Outcome, made: Made) -> Section:
    hours, traffic = made.seconds / 3600, made.bytes
    commits = ", ".join(made.commits)
    written = "" if commits in ("", made.commit) else f"; this page {made.commit}"
    items = [
        f"command: `{made.command}`",
        f"{made.runs} runs ({made.shared} of them were there already), "
        f"{hours:.2f} hours of computing, {size_of(traffic)} sent and received",
        f"report seeds {', '.join(map(str, found.plan.report.seeds))}; tuning seeds "
        f"{', '.join(map(str, found.plan.tuning.seeds))}",
        f"commit {commits or made.commit}{written}; {made.versions}",
        f"machine: {made.machine}",
        f"made {made.when}",
    ]
    return Section("How it was made", items=items)
