"""The text that announces a study before it starts: its runs, and their time if known."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill

from fedray.results.labels import config_label
from fedray.results.paired import WANTED, PairedTest
from fedray.results.record import Measured
from fedray.storage.metric import find_metric
from fedray.studies.cell import Cell, CellState, RunSpec
from fedray.studies.plan import StudyPlan, known_metrics
from fedray.studies.space import count_points, grid, parse_space
from fedray.studies.study import Study

WIDTH = 80
SPREADS = (0.9, 1.3, 2.2)
"""Quartiles of the standard deviation of paired differences (percentage points) over the claims of
eight tables of an earlier protocol."""


@dataclass(frozen=True)
class CellRuns:
    """The runs of a cell.

    Attributes:
        cell: the cell.
        runs: the runs known so far, including finished ones. A run that several cells need
            belongs to the first of them.
        finished: number of finished runs.
        unknown: number of further runs that are certain.
        beyond: number of further runs that extensions of the grid may add.
        work: rounds times epochs of the remaining runs, without extensions of the grid.
    """

    cell: Cell
    runs: Sequence[RunSpec]
    finished: int
    unknown: int
    beyond: int
    work: int


def runs_of(study: Study) -> list[CellRuns]:
    """Return the runs of each cell of a study."""
    keys: set[str] = set()
    cells = []
    for cell, state in study.states():
        runs = [run for run in cell.all_runs(state) if run.key not in keys]
        keys |= {run.key for run in runs}
        unfinished = [run for run in runs if study.lookup(run) is None]
        unknown = cell.min_further_runs(state)
        typical_work = _work(cell.usual_runs()[0])
        work = sum(map(_work, unfinished)) + unknown * typical_work
        finished = len(runs) - len(unfinished)
        cells.append(CellRuns(cell, runs, finished, unknown, _beyond(cell, state), work))
    return cells


def _work(run: RunSpec) -> int:
    return run.experiment.rounds * max(1, run.experiment.local_epochs)


def _beyond(cell: Cell, state: CellState) -> int:
    """Return the maximum number of tuning runs that extensions of the grid may add."""
    plan, tuning = cell.plan, cell.plan.tuning
    can_extend = any(axis.can_continue for axis in parse_space(plan.rows[cell.place.row].space))
    is_searched = cell.is_tuned and cell.leader is None and not plan.is_sweep
    if not is_searched or not can_extend or not tuning.extend or state.phase != "tuning":
        return 0
    return max(0, (tuning.configurations or 0) - len(cell.first)) * len(cell.seeds)


# --- text -----------------------------------------------------------------------------------------


def headline(study: Study) -> str:
    """Return the announcement of a study: its question, design, cost and warnings."""
    plan = study.plan
    lines = [f"{plan.title}: {plan.answers}"]
    lines += (
        [_describe_sweep(study)] if plan.is_sweep else [*_describe_table(study), *_detectable(plan)]
    )
    lines += [_cost(study, runs_of(study)), *_emulation_warning(study)]
    return "\n".join(map(wrap, lines))


def _describe_sweep(study: Study) -> str:
    plan, cell = study.plan, study.cells[0]
    experiment = cell.usual_runs()[0].experiment
    count = len(cell.first) if plan.tuning.search == "random" else plan.tuning.configurations
    search = f"{count} configurations by {plan.tuning.search}"
    if count == count_points(plan.axes):
        search += ", the whole space,"
    if plan.tuning.search == "grid":
        whole, tried = len(grid(plan.axes)), len(cell.first)
        search = f"a grid of {whole}" if tried == whole else f"{tried} of the grid's {whole}"
    keys = ", ".join(key for axis in plan.axes for key in axis.keys)
    seeds = ", ".join(map(str, plan.report.seeds))
    return (
        f"{search} over {keys}; seed{'s' * (len(plan.report.seeds) > 1)} {seeds}; "
        f"{plan.experiment}: {experiment.algorithm.name} on {experiment.data.source.name}, "
        f"{experiment.data.clients} clients, {experiment.rounds} rounds"
    )


def _describe_table(study: Study) -> list[str]:
    plan, tuning, first = study.plan, study.plan.tuning, study.cells[0]
    size = f"{len(plan.rows)} rows x {len(plan.columns)} columns"
    if plan.is_printed:
        run = first.run_spec(first.first[0], "report", plan.report.seeds[0]).experiment
        return [
            f"{size}, as the paper prints them: nothing is tuned; {len(plan.report.seeds)} seeds x "
            f"{run.rounds} rounds, best round by {plan.select} images"
        ]
    counts = f"{size}, {len(plan.parsed_claims())} claims; each cell:"
    tuned = first.run_spec(first.first[0], "tuning", plan.report.seeds[0]).experiment.rounds
    rounds = first.run_spec(first.first[0], "report", plan.report.seeds[0]).experiment.rounds
    seeds = len(plan.report.seeds)
    effort = (
        f"at most {tuning.configurations} configurations x {seeds} seed{'s' * (seeds > 1)} x "
        f"{tuned} rounds, by {plan.select} images"
    )
    report = f"  report: {len(plan.report.seeds)} seeds x {rounds} rounds"
    return [counts, f"  tuning, each seed by itself: {effort}", report]


def _detectable(plan: StudyPlan) -> list[str]:
    """Return a line with the gain that the seeds can detect; none if nothing is claimed.

    The significance level is that of the first step of Holm's correction.
    """
    if plan.is_printed:
        return []
    seeds, comparisons = len(plan.report.seeds), len(plan.parsed_claims())
    test = PairedTest(plan.test, plan.confidence, plan.report.looks(plan.test))
    effect = test.detectable(seeds, test.alpha / max(1, comparisons))
    kind = f"test: {plan.test}"
    if effect is None:
        return [f"  {seeds} seed{'s' * (seeds > 1)} decide no claim, {kind}"]
    text = (
        f"  {seeds} seeds detect a gain of {effect:.1f} standard deviations with "
        f"{100 * WANTED:.0f} % power, {kind}, {comparisons} comparisons"
    )
    metric = find_metric(plan.metrics[0], known_metrics())
    if metric is None or not metric.is_share:
        return [text]
    low, middle, high = (f"{effect * spread:.1f}" for spread in SPREADS)
    return [f"{text}: {middle} points ({low} to {high}) at the spreads of published tables"]


def _emulation_warning(study: Study) -> list[str]:
    """Return a warning if bfloat16 is emulated, which slows training steps many times."""
    import torch

    from fedray.runtime.devices import emulates_bfloat16

    firsts = [cell.usual_runs()[0].experiment for cell in study.cells]
    on_cpu = [
        experiment
        for experiment in firsts
        if experiment.gpus == 0 and experiment.precision == "bfloat16"
    ]
    if on_cpu and emulates_bfloat16(torch.device("cpu")):
        return [
            "bfloat16 takes many times as long on this processor, which has no AVX-512; "
            "precision=float32 is faster, but cannot reuse published runs"
        ]
    return []


def _cost(study: Study, cells: Sequence[CellRuns]) -> str:
    """Return the number of runs, and their time if known."""
    plan = study.plan
    finished = sum(cell.finished for cell in cells)
    runs = sum(len(cell.runs) + cell.unknown for cell in cells)
    beyond = sum(cell.beyond for cell in cells)
    text = f"{runs} runs" + (f", up to {runs + beyond} if grids are extended" if beyond else "")
    text += f"; {finished} are finished" if finished else ""
    work, pace = sum(cell.work for cell in cells), _pace(study, cells)
    if pace is not None and work:
        return f"{text}; about {_duration(pace * work)} of computing left"
    if plan.hours is not None and not finished:
        return f"{text}; about {plan.hours:g} h on one core, by the study's file"
    return text


def _pace(study: Study, cells: Sequence[CellRuns]) -> float | None:
    """Return the mean seconds per round and epoch of the finished runs; None without any."""
    paces = [
        end.seconds / max(1, _work(run))
        for cell in cells
        for run in cell.runs
        if isinstance(end := study.outcome_of(run), Measured)
    ]
    return statistics.fmean(paces) if paces else None


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{max(1, round(seconds / 60))} min"


def planned_cells(study: Study) -> list[str]:
    """Return a line for each cell with its configurations, seeds and number of finished runs."""
    plan = study.plan
    lines = []
    for runs in runs_of(study):
        seeds = ", ".join(map(str, runs.cell.seeds))
        cell, leader = runs.cell, plan.leader(runs.cell.place)
        configs = "; ".join(config_label(config) or "as given" for config in cell.first)
        configs = configs or "suggested by tpe"
        configs = configs if leader == cell.place else f"as {leader}"
        finished = (
            f"; {runs.finished} of {len(runs.runs) + runs.unknown} finished"
            if runs.finished
            else ""
        )
        name = plan.name if plan.is_sweep else str(cell.place)
        lines.append(wrap(f"{name}: {configs}; seeds {seeds}{finished}"))
    return lines


def untested_rows(plan: StudyPlan) -> list[str]:
    """Return a line that names the rows that no claim or control uses; empty without any."""
    if plan.is_sweep or plan.is_printed:
        return []
    claims = plan.parsed_claims()
    tested = {row for claim in claims for row in (*claim.better.rows, *claim.worse.rows)}
    untested = [name for name in plan.rows if name not in tested]
    return [wrap(f"no claim is about: {', '.join(untested)}")] if untested else []


def wrap(line: str) -> str:
    """Wrap a line at 80 columns; indent the continuation lines."""
    return fill(line, WIDTH, subsequent_indent=" " * 4, break_on_hyphens=False)
