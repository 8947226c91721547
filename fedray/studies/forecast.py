"""Text of a study's plan: its runs, and their time as far as it is known."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill

from fedray.compare.labels import config_label
from fedray.compare.paired import WANTED, PairedTest
from fedray.records import find_metric
from fedray.studies.cell import Cell, CellState, Wanted
from fedray.studies.plan import StudyPlan, declared
from fedray.studies.space import grid
from fedray.studies.study import Study

WIDTH = 80
SPREADS = (0.9, 1.3, 2.2)
"""Quartiles of the standard deviations of paired differences, in points, of the claims of published
tables."""


@dataclass(frozen=True)
class CellRuns:
    """What a cell runs.

    Attributes:
        cell: the cell.
        known: the runs that are known so far, finished ones included; a run that several
            cells need is the first one's.
        there: how many of them are over.
        unknown: how many come for sure besides.
        beyond: how many may come if the grid is continued.
        work: rounds times epochs of what is left, beyond the grid not counted.
    """

    cell: Cell
    known: Sequence[Wanted]
    there: int
    unknown: int
    beyond: int
    work: int


def runs_of(study: Study) -> list[CellRuns]:
    """Return what each cell of a study runs."""
    seen: set[str] = set()
    found = []
    for cell, state in study.states():
        known = [run for run in cell.all_runs(state) if run.key not in seen]
        seen |= {run.key for run in known}
        left = [run for run in known if study.lookup(run) is None]
        unknown = cell.to_come(state)
        usual = _work(cell.usual_runs()[0])
        work = sum(map(_work, left)) + unknown * usual
        there = len(known) - len(left)
        found.append(CellRuns(cell, known, there, unknown, _beyond(cell, state), work))
    return found


def _work(run: Wanted) -> int:
    return run.experiment.rounds * max(1, run.experiment.local_epochs)


def _beyond(cell: Cell, state: CellState) -> int:
    """Return how many more tuning runs there are at most."""
    plan, tuning = cell.plan, cell.plan.tuning
    can = any(axis.can_continue for axis in plan.rows[cell.place.row].axes)
    own = cell.is_tuned and cell.leader is None and not plan.is_sweep
    if not own or not can or not tuning.extend or state.phase != "tuning":
        return 0
    return max(0, (tuning.configurations or 0) - len(cell.first)) * len(cell.tuning_seeds)


# --- in words -------------------------------------------------------------------------------------


def headline(study: Study) -> str:
    """Return what is going to be run, and at what cost."""
    plan = study.plan
    scale = f" [{plan.scale} scale]"
    lines = [f"{plan.name}{scale}: {plan.answers}"]
    lines += [_swept(study)] if plan.is_sweep else [*_compared(study), _detectable(plan)]
    lines += [_cost(study, runs_of(study)), *_slow(study)]
    return "\n".join(map(wrapped, lines))


def _swept(study: Study) -> str:
    plan, cell = study.plan, study.cells[0]
    experiment = cell.usual_runs()[0].experiment
    how = f"{plan.tuning.configurations} configurations by {plan.tuning.search}"
    if plan.tuning.search == "grid":
        whole, some = len(grid(plan.axes)), len(cell.first)
        how = f"a grid of {whole}" if some == whole else f"{some} of the grid's {whole}"
    keys = ", ".join(key for axis in plan.axes for key in axis.keys)
    seeds = ", ".join(map(str, plan.report.seeds))
    return (
        f"{how} over {keys}; seed{'s' * (len(plan.report.seeds) > 1)} {seeds}; "
        f"{plan.experiment}: {experiment.algorithm.name} on {experiment.data.source.name}, "
        f"{experiment.data.clients} clients, {experiment.rounds} rounds"
    )


def _compared(study: Study) -> list[str]:
    plan, tuning, first = study.plan, study.plan.tuning, study.cells[0]
    controls = sum(row.control is not None for row in plan.rows.values())
    counts = (
        f"{len(plan.rows)} rows x {len(plan.columns)} columns, "
        f"{len(plan.parsed_claims())} claims, {controls} controls; each cell:"
    )
    tuned = first.wanted(first.first[0], "tuning", plan.tuning_seeds[0]).experiment.rounds
    rounds = first.wanted(first.first[0], "report", plan.report.seeds[0]).experiment.rounds
    seeds = len(plan.tuning_seeds)
    effort = (
        f"at most {tuning.configurations} configurations x {seeds} seed{'s' * (seeds > 1)} x "
        f"{tuned} rounds, by {plan.select} images"
    )
    how = "each seed by itself" if tuning.once is None else "once"
    report = f"  report: {len(plan.report.seeds)} seeds x {rounds} rounds"
    return [counts, f"  tuning, {how}: {effort}", report]


def _detectable(plan: StudyPlan) -> str:
    """Return which gain the seeds find, at the level of the first step of Holm's correction."""
    seeds, claims = len(plan.report.seeds), len(plan.parsed_claims())
    controls = sum(row.control is not None for row in plan.rows.values())
    comparisons = claims + 2 * controls  # see `controls.ask`
    looks = 1 if plan.test == "anytime" else 1 + len(plan.report.looked_at)
    test = PairedTest(plan.test, plan.confidence, looks)
    effect = test.detectable(seeds, test.alpha / max(1, comparisons))
    kind = f"test: {plan.test}"
    if effect is None:
        return f"  {seeds} seed{'s' * (seeds > 1)} decide no claim, {kind}"
    text = (
        f"  {seeds} seeds find a gain of {effect:.1f} spreads with {100 * WANTED:.0f} %, {kind}, "
        f"{comparisons} comparisons"
    )
    meant = find_metric(plan.metrics[0], declared())
    if meant is None or not meant.is_share:
        return text
    low, middle, high = (f"{effect * spread:.1f}" for spread in SPREADS)
    return f"{text}: {middle} points ({low} to {high}) at the spreads of published tables"


def _slow(study: Study) -> list[str]:
    """Return a line if steps would take many times what the file says."""
    import torch

    from fedray.runtime.devices import emulates_bfloat16

    firsts = [cell.usual_runs()[0].experiment for cell in study.cells]
    on_cpu = [each for each in firsts if each.gpus == 0 and each.precision == "bfloat16"]
    if on_cpu and emulates_bfloat16(torch.device("cpu")):
        return [
            "bfloat16 takes many times as long on this processor, which has no AVX-512; "
            "precision=float32 is faster, but no published run can be taken over then"
        ]
    return []


def _cost(study: Study, cells: Sequence[CellRuns]) -> str:
    """Return how many runs, and how long they take if that is known."""
    plan = study.plan
    there = sum(each.there for each in cells)
    runs = sum(len(each.known) + each.unknown for each in cells)
    beyond = sum(each.beyond for each in cells)
    text = f"{runs} runs" + (f", up to {runs + beyond} if grids are continued" if beyond else "")
    text += f"; {there} are there" if there else ""
    work, pace = sum(each.work for each in cells), _pace(study, cells)
    if pace is not None and work:
        return f"{text}; about {_duration(pace * work)} of computing left, by those"
    if plan.hours is not None and not there:
        return f"{text}; about {plan.hours:g} h of one core, says the file"
    return text


def _pace(study: Study, cells: Sequence[CellRuns]) -> float | None:
    """Return the mean seconds of a round and epoch, of the finished runs."""
    paces = [
        found.seconds / max(1, _work(run))
        for each in cells
        for run in each.known
        if (found := study.measured(run.key, run.place.row)) is not None
    ]
    return statistics.fmean(paces) if paces else None


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{max(1, round(seconds / 60))} min"


def planned_cells(study: Study) -> list[str]:
    """Return a line for each cell: what it tries and reports, and what of it is there."""
    plan = study.plan
    lines = []
    for each in runs_of(study):
        seeds = ", ".join(map(str, each.cell.seeds))
        cell, leader = each.cell, plan.leader(each.cell.place)
        what = (
            "; ".join(config_label(config) for config in cell.first)
            if cell.is_tuned
            else "as given"
        )
        what = what if leader == cell.place else f"as {leader}"
        there = f"; {each.there} of {len(each.known) + each.unknown} there" if each.there else ""
        name = plan.name if plan.is_sweep else str(cell.place)
        lines.append(wrapped(f"{name}: {what}; seeds {seeds}{there}"))
    return lines


def protocols(study: Study) -> list[str]:
    """Return what each way of choosing configurations costs, and what its verdicts promise."""
    plan = study.plan
    if plan.is_sweep or not any(cell.is_tuned for cell in study.cells):
        return []
    once = plan.tuning.once or [max(plan.report.seeds) + 100]
    lines = []
    for seeds in (None, once):
        tuning = plan.tuning.model_copy(update={"once": seeds})
        whole = Study(study.home, plan.model_copy(update={"tuning": tuning}), study.home)
        runs = sum(len(each.known) + each.unknown for each in runs_of(whole))
        if seeds is None:
            text = f"each seed chooses by itself: {runs} runs; verdicts include the luck of tuning"
        else:
            text = (
                f"tuning.once={seeds}: {runs} runs; verdicts leave out the luck of tuning, so that "
                "a method can seem to beat itself"
            )
        lines.append(wrapped(text + " (this plan)" * (seeds == plan.tuning.once)))
    return lines


def not_asked(plan: StudyPlan) -> list[str]:
    """Return a line that names the rows which cost runs and decide nothing; none if all do."""
    if plan.is_sweep:
        return []
    asked = {side.row for claim in plan.parsed_claims() for side in (claim.better, claim.worse)}
    for name, row in plan.rows.items():
        if row.control:
            asked |= {each for each in (name, row.of, row.over) if each}
    left = [name for name in plan.rows if name not in asked]
    return [wrapped(f"no claim is about: {', '.join(left)}")] if left else []


def wrapped(line: str) -> str:
    """Return a line of at most 80 columns and, indented, those below it."""
    return fill(line, WIDTH, subsequent_indent=" " * 4, break_on_hyphens=False)
