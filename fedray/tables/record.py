"""How a table was made, and all of it as data: table.json."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from fedray.config import Tree
from fedray.records import Metric, versions
from fedray.report.statistics import Interval
from fedray.sweep.ledger import DIVERGED
from fedray.tables.book import Book
from fedray.tables.claims import Side
from fedray.tables.comparing import Comparison
from fedray.tables.controls import ControlRead
from fedray.tables.measured import Measured, commits_of_runs
from fedray.tables.outcome import CellResult, Decided, Outcome
from fedray.tables.plan import Phase
from fedray.tables.published import FORMAT, RUNS, PublishedRun

SHOWN = ("fedray", "python", "torch", "ray")


@dataclass(frozen=True)
class Made:
    """How a table was made.

    Attributes:
        command: that makes it again.
        commit: of the code that wrote the page.
        commits: of the code that made the runs, those of tuning too.
        versions: of the packages that count most.
        machine: what it was made on.
        when: local time.
        runs: how many runs the table consists of.
        shared: how many were there already when this invocation began.
        seconds: of computing, over all runs.
        bytes: sent and received, over all runs.
        tuning_rounds: of each tuning run; "10-20" where cells differ.
        report_rounds: likewise of a reported run.
    """

    command: str
    commit: str
    commits: Sequence[str]
    versions: str
    machine: str
    when: str
    runs: int
    shared: int
    seconds: float
    bytes: int
    tuning_rounds: str
    report_rounds: str

    def rounds(self, phase: Phase) -> str:
        """How many rounds runs of a phase have."""
        return self.tuning_rounds if phase == "tuning" else self.report_rounds


def made(book: Book, found: Outcome) -> Made:
    """How the book's table was made."""
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
    """How many rounds runs of a phase have, the least and the most."""
    seeds = {"tuning": book.plan.tuning.seeds, "report": book.plan.report.seeds}[phase]
    experiments = [cell.wanted(cell.first[0], phase, seeds[0]).experiment for cell in book.cells]
    rounds = {experiment.rounds for experiment in experiments}
    return "-".join(map(str, sorted({min(rounds), max(rounds)})))


def _lost_seconds(book: Book, keys: Iterable[str]) -> float:
    """What was spent, in this invocation, on runs that failed."""
    return sum(book.seconds.get(key, 0.0) for key in keys if key in book.failures)


def machine() -> str:
    """What computes here, in words."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    card = f", {gpus} x {torch.cuda.get_device_name(0)}" if gpus else ""
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores{card}"


def table_json(book: Book, found: Outcome, how: Made) -> Tree:
    """Everything: numbers by seed, what was tried and chosen, verdicts, cost."""
    plan = found.plan
    return {
        "format": FORMAT,
        "table": plan.table,
        "scale": plan.scale,
        "answers": plan.answers,
        "made": asdict(how),
        "paper_means": {row: one for row in plan.rows if (one := plan.paper_of(row, None))},
        "units": {metric.name: metric.unit for metric in found.metrics},
        "cells": [_cell(book, found, cell) for cell in found.cells.values()],
        "claims": [_claim(each) for each in found.claims],
        "controls": [_control(each) for each in found.controls],
        "differences": [
            {"of": str(each.better), "minus": str(each.worse), **_comparison(each)}
            for each in found.against
        ],
        "iqm": {row: _interval(each) for row, each in found.aggregates.items()},
        "notes": list(found.notes),
        **_runs(book, found),
        "plan": plan.model_dump(mode="json"),
    }


def _runs(book: Book, found: Outcome) -> Tree:
    """The runs that are over, for who takes them over, and what their numbers mean.

    A run that died would not do so again, and one that only lacks a number of its row has others.
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


def _claim(each: Decided) -> Tree:
    return {
        "claim": each.claim.question,
        "written": each.claim.text,
        "metric": each.claim.metric,
        "than": each.claim.than,
        "source": each.claim.source,
        "verdict": each.verdict,
        "p_holm": each.corrected,
        "seeds_needed": each.needed,
        **_comparison(each.comparison),
    }


def _control(each: ControlRead) -> Tree:
    gain = each.asked.gain
    return {
        "control": each.asked.row,
        "of": each.asked.of,
        "would_refute": each.asked.refutes,
        "reading": each.reading,
        "p_holm": each.corrected,
        "p_holm_of_half": each.corrected_middle,
        "baseline": each.asked.baseline,
        "gain": None if gain is None or gain.interval is None else gain.interval.mean,
        "share_of_gain": each.asked.share,
        "seeds_needed": each.needed,
        "by_column": dict(each.columns),
        **_comparison(each.asked.comparison),
    }


def _cell(book: Book, found: Outcome, cell: CellResult) -> Tree:
    place, standing, plan = cell.place, cell.standing, found.plan
    metrics: dict[str, Any] = {}
    for metric in found.metrics:
        side = Side(place.row, place.column)
        interval = found.interval(side, metric.name)
        metrics[metric.name] = {
            "by_seed": _by_seed(found.by_seed(side, metric.name)),
            **({} if interval is None else _interval(interval)),
        }
    keys, measured = {run.key for run in cell.runs}, book.measured_runs(cell.runs).values()
    dropped = zip(standing.dropped, cell.dropped, strict=True)
    return {
        "row": place.row,
        "column": place.column,
        "phase": standing.phase,
        "chosen": standing.chosen,
        "tried": [asdict(each) for each in standing.tried],
        "dropped": [{**asdict(each), "reason": reason} for each, reason in dropped],
        "edges": [asdict(edge) for edge in standing.edges],
        "metrics": metrics,
        "paper": plan.paper_of(place.row, place.column),
        "seeds": [
            {
                "seed": each.seed,
                "run": each.key,
                "reason": each.reason,
                **({} if each.measured is None else _run(each.measured)),
            }
            for each in cell.seeds
        ],
        "seconds": sum(one.seconds for one in measured) + _lost_seconds(book, keys),
        "bytes": sum(one.bytes for one in measured),
    }


def _run(measured: Measured) -> Tree:
    return measured.model_dump(exclude={"metrics", "score"})


def _by_seed(values: Mapping[int, float]) -> dict[str, float]:
    return {str(seed): value for seed, value in values.items()}


def _comparison(comparison: Comparison) -> Tree:
    interval = comparison.interval
    return {
        "differences": _by_seed(comparison.differences),
        "p": comparison.p,
        **({} if interval is None else _interval(interval)),
    }


def _interval(interval: Interval) -> Tree:
    """An interval; of one value without ends."""
    ends = {"low": interval.low, "high": interval.high} if interval.n > 1 else {}
    return {"mean": interval.mean, "std": interval.std, "n": interval.n, **ends}
