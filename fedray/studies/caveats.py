"""Caveats printed below tables: unequal effort, missing runs, choices at an edge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedray.config import Experiment, flatten
from fedray.results.design import Place, seeds_text
from fedray.results.frame import NOT_COMPARED
from fedray.results.labels import show_value
from fedray.results.pages.table import tried_text
from fedray.results.record import CellRecord, Measured, TableRecord
from fedray.storage.environment import NUMERIC
from fedray.studies.plan import StudyPlan
from fedray.studies.space import Axis, beyond, parse_space

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
    return [
        *_choice(plan, record),
        *_rows(plan),
        *(note for column, cells in columns.items() for note in _effort(plan, column, cells)),
        *_edges(plan, record),
        *_failures(record),
        *(note for column, cells in columns.items() for note in _data(record, column, cells)),
        *dict.fromkeys(note for rows in reported for note in _settings(plan, rows)),
        *_work(record),
        *_environments(record),
    ]


def _choice(plan: StudyPlan, record: TableRecord) -> Iterator[str]:
    unfinished = [cell for cell in record.cells if cell.phase in ("tuning", "report")]
    if unfinished:
        yield f"NOT FINISHED: {len(unfinished)} of {len(record.cells)} cells are still to be run"
    if plan.select == "test":
        yield (
            "Configurations and rounds were chosen on the TEST images, as papers often do: every "
            "number is optimistic, and is marked with †"
        )


def _rows(plan: StudyPlan) -> Iterator[str]:
    """Yield rows of claims that take over a choice, and metrics that a row replaces or lacks."""
    claims = plan.parsed_claims()
    named = {row for claim in claims for row in (*claim.better.rows, *claim.worse.rows)}
    for name, row in plan.rows.items():
        if name in named and row.tuned_as and not row.control:
            yield f"{name} was not tuned by itself: it takes over the choice of {row.tuned_as}"
        for metric, own in row.metrics.items():
            yield f"{name}: its {metric} is {own}" if own else f"{name}: it has no {metric}"


def _effort(plan: StudyPlan, column: str, cells: Sequence[CellRecord]) -> Iterator[str]:
    """Yield a note if rows of a column tried different numbers of configurations."""
    tried = {
        cell.row: tried_text(cell)
        for cell in cells
        if cell.chosen is not None and plan.leader(cell.place) == cell.place
    }
    if len({*tried.values()}) > 1:
        where = f"In {column} rows" if len(plan.columns) > 1 else "Rows"
        most = f"all at most {plan.tuning.configurations}"
        yield (
            f"{where} tried different numbers of configurations, {most} ({_join_by_text(tried)})"
        )


def _edges(plan: StudyPlan, record: TableRecord) -> Iterator[str]:
    """Yield choices at the end of a grid, with their seeds, where they were made."""
    for cell in record.cells:
        edges: dict[str, list[int]] = defaultdict(list)
        for seed, choice in cell.choices.items():
            tried = [attempt.config for attempt in cell.tried if seed in attempt.runs]
            for edge, _ in beyond(plan.axes_of(cell.row), tried, choice):
                edges[edge].append(seed)
        for edge, seeds in edges.items():
            of = "" if len(seeds) == len(cell.choices) else f" ({seeds_text(seeds)})"
            yield f"{cell.place}: the choice {edge}{of}"


def _failures(record: TableRecord) -> Iterator[str]:
    for cell in record.cells:
        failed = sum(map(record.has_failed, cell.tried))
        if failed:
            yield f"{cell.place}: {failed} of {len(cell.tried)} configurations failed"
        reasons: dict[str, list[int]] = defaultdict(list)
        for seed, reason in record.reasons(cell).items():
            reasons[reason].append(seed)
        for reason, seeds in reasons.items():
            yield f"{cell.place}, {seeds_text(seeds)} failed: {reason}"


def _data(record: TableRecord, column: str, cells: Sequence[CellRecord]) -> Iterator[str]:
    """Yield a note if rows of a column did not have the same images, or the same clients."""
    runs = [(seed, run) for cell in cells for seed, run in record.reported(cell).items()]
    partitions: dict[int, set[str | None]] = defaultdict(set)
    for seed, measured in runs:
        partitions[seed].add(measured.partition)
    seeds = [seed for seed, hashes in partitions.items() if len(hashes) > 1]
    if len({measured.data for _, measured in runs}) > 1:
        yield f"{column}: rows have different images or labels"
    elif seeds:
        yield f"{column}: rows have different partitions, {seeds_text(seeds)}"


def _settings(plan: StudyPlan, rows: Mapping[str, Experiment]) -> Iterator[str]:
    """Yield keys in which rows differ, or which they search differently.

    Keys of a method are left out, as are parameters of components that differ.
    """
    spaces = {
        row: {k: _axis_text(axis, k) for axis in parse_space(of.space) for k in axis.keys}
        for row, of in plan.rows.items()
    }
    searched = {key for space in spaces.values() for key in space}
    configs = {row: _comparable(experiment) for row, experiment in rows.items()}
    for key in dict.fromkeys([k for config in configs.values() for k in config]):
        component = f"{key.rpartition('.')[0]}.name"
        names = {config.get(component) for config in configs.values()}
        if key in searched:
            texts = {
                row: spaces[row].get(key, f"held at {show_value(config[key])}")
                for row, config in configs.items()
                if key in config
            }
        elif key == component or len(names) == 1:
            texts = {row: show_value(config.get(key)) for row, config in configs.items()}
        else:
            continue
        if len({*texts.values()}) > 1:
            differ = "search {} differently" if key in searched else "differ in {}"
            yield f"Rows {differ.format(key)} ({_join_by_text(texts)})"


def _work(record: TableRecord) -> Iterator[str]:
    """Yield kinds of work (steps, images, bytes, seconds) that rows did unequally.

    Counts are means over the reported seeds. With several columns, each row's largest multiple of
    the median is named.
    """
    import pandas

    runs = [
        {"row": cell.row, "column": cell.column, **_counts(run)}
        for cell in record.cells
        for run in record.reported(cell).values()
    ]
    if not runs:
        return
    means = pandas.DataFrame(runs).groupby(["row", "column"], sort=False).mean()
    for fact in means:
        wide = means[fact].unstack("column", sort=False)
        if (wide.max() > MORE * wide.min()).any():
            middle = wide.where(wide > 0).quantile(interpolation="lower").fillna(1.0)
            largest = (wide / middle).max(axis="columns").dropna()
            texts = {row: f"{n:,.1f}" if n else "none" for row, n in largest.items()}
            yield f"Rows differ in {fact}, as multiples of the median ({_join_by_text(texts)})"


def _counts(run: Measured) -> dict[str, float]:
    counts: dict[str, float] = {
        "seconds of a run": run.seconds,
        "bytes sent and received": run.bytes,
    }
    if run.client_work and run.server_work:
        counts |= {
            "optimiser steps of clients": run.client_work.steps,
            "images that clients' models read": run.client_work.images,
            "trained parameters of a client": run.client_work.parameters,
            "optimiser steps of the server": run.server_work.steps,
        }
    return counts


def _environments(record: TableRecord) -> Iterator[str]:
    """Yield commits, hardware and library versions that runs do not share."""
    made_by = {"hardware": {run.hardware for run in record.finished}}
    for package in NUMERIC:
        found = {run.versions.get(package, "") for run in record.finished}
        made_by["commits" if package == "git" else f"versions of {package}"] = found
    for what, texts in made_by.items():
        if len(texts - {""}) > 1:
            yield f"Runs were made with different {what}: {'; '.join(sorted(texts - {''}))}"


def _comparable(experiment: Experiment) -> dict[str, Any]:
    """Return an experiment's keys without those of its method."""
    return {
        key: value
        for key, value in flatten(experiment.tree()).items()
        if key not in (*NOT_COMPARED, "plugins") and not key.startswith("algorithm.")
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
