"""Caveats printed below tables: unequal effort, missing runs, choices at an edge."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median_low
from typing import Any

from fedray.config import Experiment, flatten
from fedray.results.design import Place
from fedray.results.frame import NOT_COMPARED
from fedray.results.labels import show_value
from fedray.results.pages.table import count_text, tried_by_seed
from fedray.results.record import (
    CellRecord,
    Measured,
    TableRecord,
)
from fedray.storage.environment import NUMERIC
from fedray.studies.plan import StudyPlan
from fedray.studies.space import Axis, parse_space

MORE = 1.5
"""A caveat names unequal work if the largest count is above this multiple of the smallest."""


def table_caveats(
    plan: StudyPlan, record: TableRecord, experiments: Mapping[Place, Experiment]
) -> list[str]:
    """Return the caveats of a table.

    Args:
        plan: the table.
        record: its record, before the notes.
        experiments: experiment of a reported run of each cell; before a choice, of the cell's
            first configuration.
    """
    columns = {
        column: [cell for cell in record.cells if cell.column == column] for column in plan.columns
    }
    reported = [{cell.row: experiments[cell.place] for cell in cells} for cells in columns.values()]
    commits = record.commits
    versions = f"Runs are of {len(commits)} versions of the code: {', '.join(commits)}"
    return [
        *_unfinished_cells(record),
        *_choice(plan),
        *_borrowed_choices(plan),
        *_metrics(plan),
        *(note for column, cells in columns.items() for note in _effort(plan, column, cells)),
        *_edges(record),
        *_failures(record),
        *(note for column, cells in columns.items() for note in _data(record, column, cells)),
        *dict.fromkeys(note for rows in reported for note in _settings(plan, rows)),
        *dict.fromkeys(note for rows in reported for note in _searches(plan, rows)),
        *_work(record),
        *([versions] if len(commits) > 1 else []),
        *_machines(record.finished),
    ]


def _machines(runs: Sequence[Measured]) -> Iterator[str]:
    """Yield the hardware and the library versions that runs do not share, with counts of runs.

    Runs that recorded none are left out.
    """
    made_by = {"hardware": [run.hardware for run in runs]}
    made_by |= {
        f"versions of {package}": [run.versions.get(package, "") for run in runs]
        for package in NUMERIC
        if package not in ("git", "fedray")  # commits are named
    }
    for what, texts in made_by.items():
        counts = Counter(filter(None, texts))
        if len(counts) > 1:
            named = "; ".join(f"{text} ({count} runs)" for text, count in counts.most_common())
            yield f"Runs were made with different {what}: {named}"


def _unfinished_cells(record: TableRecord) -> Iterator[str]:
    unfinished = [cell for cell in record.cells if cell.phase in ("tuning", "report")]
    if unfinished:
        yield f"NOT FINISHED: {len(unfinished)} of {len(record.cells)} cells are still to be run"


def _borrowed_choices(plan: StudyPlan) -> Iterator[str]:
    """Yield a note for each row of a claim that takes over another row's choice."""
    claims = plan.parsed_claims()
    named = {row for claim in claims for row in (*claim.better.rows, *claim.worse.rows)}
    for name, row in plan.rows.items():
        if name in named and row.tuned_as and not row.control:
            yield f"{name} was not tuned by itself: it takes over the choice of {row.tuned_as}"


def _choice(plan: StudyPlan) -> Iterator[str]:
    if plan.select == "test":
        yield (
            "Configurations and rounds were chosen on the TEST images, as papers often do: every "
            "number is optimistic, and is marked with †"
        )


def _metrics(plan: StudyPlan) -> Iterator[str]:
    """Yield a note for each metric that a row replaces or lacks."""
    for name, row in plan.rows.items():
        for metric, row_metric in row.metrics.items():
            yield f"{name}: " + (
                f"its {metric} is {row_metric}" if row_metric else f"it has no {metric}"
            )


def _effort(plan: StudyPlan, column: str, cells: Sequence[CellRecord]) -> Iterator[str]:
    """Yield a note if rows of a column tried different numbers of configurations."""
    tried = {
        cell.row: count_text([tried for tried, _ in tried_by_seed(cell)])
        for cell in cells
        if cell.chosen is not None and plan.leader(cell.place) == cell.place
    }
    if len({*tried.values()}) > 1:
        counts = ", ".join(f"{row} {count}" for row, count in tried.items())
        yield (
            f"{f'In {column} rows' if len(plan.columns) > 1 else 'Rows'} tried different numbers "
            f"of configurations, all at most {plan.tuning.configurations}: {counts}"
        )


def _edges(record: TableRecord) -> Iterator[str]:
    """Yield choices at an edge of the space; a shared choice is noted only at its leader."""
    for cell in record.cells:
        leader = record.plan.leader(cell.place)
        if leader != cell.place and record.cell(leader).chosen == cell.chosen:
            continue
        for edge in cell.edges:
            yield f"{cell.place}: the choice {edge}"


def _failures(record: TableRecord) -> Iterator[str]:
    for cell in record.cells:
        failed = sum(map(record.has_failed, cell.tried))
        if failed:
            yield f"{cell.place}: {failed} of {len(cell.tried)} configurations failed"
        for seed, reason in record.reasons(cell).items():
            yield f"{cell.place}, seed {seed} failed: {reason}"


def _data(record: TableRecord, column: str, cells: Sequence[CellRecord]) -> Iterator[str]:
    """Yield a note if rows of a column did not have the same images, or the same clients."""
    runs = [(seed, run) for cell in cells for seed, run in record.reported(cell).items()]
    partitions: dict[int, set[str | None]] = defaultdict(set)
    for seed, measured in runs:
        partitions[seed].add(measured.partition)
    seeds = [str(seed) for seed, hashes in partitions.items() if len(hashes) > 1]
    if len({measured.data for _, measured in runs}) > 1:
        yield f"{column}: rows have different images or labels"
    elif seeds:
        yield f"{column}: rows have different partitions, seed {', '.join(seeds)}"


def _settings(plan: StudyPlan, rows: Mapping[str, Experiment]) -> Iterator[str]:
    """Yield keys in which rows differ, except keys of the method and searched keys."""
    searched = {
        key for row in plan.rows.values() for axis in parse_space(row.space) for key in axis.keys
    }
    configs = {row: _comparable(experiment) for row, experiment in rows.items()}
    for key in dict.fromkeys(key for config in configs.values() for key in config):
        values = {row: config.get(key) for row, config in configs.items()}
        above = f"{key.rpartition('.')[0]}.name"  # components differ in their parameters
        names = {config.get(above) for config in configs.values()}
        alike = len(set(map(repr, values.values()))) == 1
        if not alike and key not in searched and (key == above or len(names) == 1):
            shown = {row: show_value(value) for row, value in values.items()}
            yield f"Rows differ in {key} ({_join_by_text(shown)})"


def _searches(plan: StudyPlan, rows: Mapping[str, Experiment]) -> Iterator[str]:
    """Yield keys that some rows search and others keep fixed or search over other values."""
    spaces = {row: _search_texts(plan, row) for row in rows}
    configs = {row: _comparable(experiment) for row, experiment in rows.items()}
    for key in dict.fromkeys(key for space in spaces.values() for key in space):
        texts = {
            row: spaces[row].get(key) or f"held at {show_value(config[key])}"
            for row, config in configs.items()
            if key in config
        }
        if len(set(texts.values())) > 1:
            yield f"Rows search {key} differently ({_join_by_text(texts)})"


def _work(record: TableRecord) -> Iterator[str]:
    """Yield kinds of work (steps, images, bytes, seconds) that rows did unequally.

    Counts are means over the reported seeds whose work was counted. With several columns, each
    row's largest multiple of the median is named.
    """
    reported = {cell.place: [*record.reported(cell).values()] for cell in record.cells}
    runs = [run for cell_runs in reported.values() for run in cell_runs]
    uncounted = sum(run.client_work is None for run in runs)
    if 0 < uncounted < len(runs):
        yield (
            f"Steps, images and trained parameters of {uncounted} of {len(runs)} reported runs "
            "were not counted; an earlier version made these runs"
        )
    counts = {place: _means(cell_runs) for place, cell_runs in reported.items()}
    for fact in dict.fromkeys(fact for means in counts.values() for fact in means):
        largest, differs = defaultdict[str, float](float), False
        for column in record.plan.columns:
            of_rows = {
                place.row: means[fact]
                for place, means in counts.items()
                if place.column == column and fact in means
            }
            middle = median_low([*filter(None, of_rows.values())] or [1.0])
            differs |= max(of_rows.values(), default=0) > MORE * min(of_rows.values(), default=0)
            for row, count in of_rows.items():
                largest[row] = max(largest[row], count / middle)
        if differs:
            texts = {row: f"{factor:,.1f}" if factor else "none" for row, factor in largest.items()}
            yield f"Rows differ in {fact}, as multiples of the median ({_join_by_text(texts)})"


def _means(runs: Sequence[Measured]) -> dict[str, float]:
    """Return the work of a cell's reported runs by kind, as means over seeds."""
    values: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        counts = {"seconds of a run": run.seconds, "bytes sent and received": run.bytes}
        if run.client_work and run.server_work:
            counts |= {
                "optimiser steps of clients": run.client_work.steps,
                "images that clients' models read": run.client_work.images,
                "trained parameters of a client": run.client_work.parameters,
                "optimiser steps of the server": run.server_work.steps,
            }
        for fact, count in counts.items():
            values[fact].append(count)
    return {fact: fmean(counts) for fact, counts in values.items()}


def _comparable(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment's keys without those of its method."""
    return {
        key: value
        for key, value in flatten(experiment.tree()).items()
        if key not in (*NOT_COMPARED, "plugins") and not key.startswith("algorithm.")
    }


def _search_texts(plan: StudyPlan, row: str) -> dict[str, str]:
    """Return texts of a row's search space by key, without keys of its method."""
    return {
        key: _axis_text(axis, key)
        for axis in parse_space(plan.rows[row].space)
        for key in axis.keys
        if not key.startswith("algorithm.")
    }


def _axis_text(axis: Axis, key: str) -> str:
    if not axis.is_listed:
        return f"{axis.distribution} {' to '.join(map(show_value, axis.ends))}"
    return ", ".join(dict.fromkeys(show_value(config[key]) for config in axis.configs))


def _join_by_text(texts: Mapping[str, str]) -> str:
    """Join rows with equal texts, the most common text last: "base: 4; else 16"."""
    rows: dict[str, list[str]] = defaultdict(list)
    for row, text in texts.items():
        rows[text].append(row)
    *rare, commonest = sorted(rows, key=lambda text: len(rows[text]))
    return "; ".join([*(f"{', '.join(rows[text])}: {text}" for text in rare), f"else {commonest}"])
