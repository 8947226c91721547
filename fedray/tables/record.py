"""How a table was made, and all of it as data: table.json."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from fedray.config import Tree
from fedray.records import Metric, versions
from fedray.render.record import Made, table_tree
from fedray.sweep.ledger import DIVERGED
from fedray.tables.book import Book
from fedray.tables.measured import Measured, commits_of_runs
from fedray.tables.outcome import Outcome
from fedray.tables.plan import Phase
from fedray.tables.published import FORMAT, RUNS, PublishedRun

SHOWN = ("fedray", "python", "torch", "ray")


def made(book: Book, found: Outcome) -> Made:
    """Return how the book's table was made."""
    runs = [run for cell in found.cells.values() for run in cell.runs]
    keys, measured = {run.key for run in runs}, book.measured_runs(runs).values()
    packages = versions()
    return Made(
        command=book.command,
        commit=packages.get("git", "unknown"),
        commits=commits_of_runs(measured),
        versions=", ".join(f"{name} {packages[name]}" for name in SHOWN if name in packages),
        machine=machine(),
        when=datetime.now().isoformat(timespec="minutes"),
        runs=len(keys),
        shared=len(keys - set(book.seconds)),
        seconds=sum(one.seconds for one in measured) + _lost_seconds(book, keys),
        bytes=sum(one.bytes for one in measured),
        tuning_rounds=_rounds(book, "tuning"),
        report_rounds=_rounds(book, "report"),
    )


def _rounds(book: Book, phase: Phase) -> str:
    """Return how many rounds runs of a phase have: "10", or "10-20" where cells differ."""
    seeds = {"tuning": book.plan.tuning.seeds, "report": book.plan.report.seeds}[phase]
    experiments = [cell.wanted(cell.first[0], phase, seeds[0]).experiment for cell in book.cells]
    rounds = {experiment.rounds for experiment in experiments}
    return "-".join(map(str, sorted({min(rounds), max(rounds)})))


def _lost_seconds(book: Book, keys: Iterable[str]) -> float:
    """Return the seconds of this invocation's runs that failed."""
    return sum(book.seconds.get(key, 0.0) for key in keys if key in book.failures)


def machine() -> str:
    """Return this machine in words."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    card = f", {gpus} x {torch.cuda.get_device_name(0)}" if gpus else ""
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores{card}"


def table_json(book: Book, found: Outcome, how: Made) -> Tree:
    """Return everything: the table's numbers, and the runs that other tables may take over."""
    costs = []
    for cell in found.cells.values():
        keys, measured = {run.key for run in cell.runs}, book.measured_runs(cell.runs).values()
        seconds = sum(one.seconds for one in measured) + _lost_seconds(book, keys)
        costs.append((seconds, sum(one.bytes for one in measured)))
    return {"format": FORMAT, **table_tree(found, how, costs), **_runs(book, found)}


def _runs(book: Book, found: Outcome) -> Tree:
    """Return the finished runs, which other tables may take over, and their metrics.

    Runs that diverged count; runs that died for other reasons do not.
    """
    runs: dict[tuple[Any, ...], PublishedRun] = {}
    metrics: dict[str, Metric] = {}
    for cell in found.cells.values():
        row, own = cell.place.row, found.plan.measures(cell.place.row)
        for wanted in cell.runs:
            came_to = book.came_to(wanted)
            if came_to is None or (isinstance(came_to, str) and not came_to.startswith(DIVERGED)):
                continue
            if isinstance(came_to, Measured):
                metrics |= {own[metric.name]: metric for metric in came_to.metrics}
            run = PublishedRun.of(wanted.experiment, found.plan, row, came_to)
            runs.setdefault(run.kind, run)
    return {
        "metrics": {
            name: {"unit": of.unit, "direction": of.direction, "on": of.on}
            for name, of in metrics.items()
        },
        RUNS: [run.model_dump(mode="json", exclude_defaults=True) for run in runs.values()],
    }
