"""The record of a table, made from its finished runs."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import get_args

from fedray.base.processors import allowed_cpus
from fedray.results.design import Place
from fedray.results.record import Attempt, CellRecord, FailedRun, Made, Measured, TableRecord
from fedray.storage.environment import versions
from fedray.studies.caveats import table_caveats
from fedray.studies.cell import CellState
from fedray.studies.plan import Phase, RunSpec, StudyPlan
from fedray.studies.store import name_in_tables
from fedray.studies.study import Study

SHOWN = ("fedray", "python", "torch", "ray")
"""Packages whose versions a page names."""


def outcome(study: Study) -> TableRecord:
    """Return the record of a table, with its notes."""
    plan, states = study.plan, study.states
    specs = [spec for state in states for spec in state.runs]
    runs: dict[str, Measured | FailedRun] = {}
    for spec in specs:
        name, end = name_in_tables(spec, plan), study.end_of(spec)
        earlier = runs.get(name)
        if isinstance(end, str):
            seconds = study.seconds.get(spec.key, 0.0) if spec.key in study.failures else 0.0
            runs.setdefault(name, FailedRun(reason=end, seconds=seconds))
        elif isinstance(earlier, Measured) and end is not None:  # a row with other metrics
            runs[name] = end.model_copy(update={"values": {**earlier.values, **end.values}})
        elif end is not None:
            runs[name] = end
    measured = {name for run in runs.values() if isinstance(run, Measured) for name in run.values}
    reported = {state.place: _reported(plan, state) for state in states}
    record = TableRecord(
        made=_made(study, specs),
        plan=plan,
        metrics={name: of for name, of in study.declared.items() if name in measured},
        runs=runs,
        cells=[_cell(plan, state, reported[state.place]) for state in states],
    )
    experiments = {
        place: next(iter(runs.values()), _usual_run(plan, place, "report")).experiment
        for place, runs in reported.items()
    }
    notes = [*table_caveats(plan, record, experiments), *_reuse_notes(study, specs)]
    return record.model_copy(update={"notes": notes})


def _reported(plan: StudyPlan, state: CellState) -> dict[int, RunSpec]:
    """Return the reported run of each seed; of a seed without a choice, a run that failed."""
    leader = plan.leader(state.place)
    first = plan.first_config(leader.row)
    runs = {
        seed: plan.run(state.place, config, "report", seed)
        for seed, config in state.choices.items()
    }
    runs |= {seed: plan.run(leader, first, "tuning", seed) for seed in state.lost}
    return {seed: runs[seed] for seed in plan.report.seeds if seed in runs}


def _cell(plan: StudyPlan, state: CellState, reported: Mapping[int, RunSpec]) -> CellRecord:
    place = state.place

    def names(runs: Iterable[RunSpec]) -> dict[int, str]:
        return {run.seed: name_in_tables(run, plan) for run in runs}

    return CellRecord(
        row=place.row,
        column=place.column,
        phase=state.phase,
        choices=dict(state.choices),
        reported=names(reported.values()),
        tried=[
            Attempt(
                config=tried.config,
                runs=names(plan.run(place, tried.config, "tuning", seed) for seed in tried.scores),
            )
            for tried in state.tried
        ],
    )


def _usual_run(plan: StudyPlan, place: Place, phase: Phase) -> RunSpec:
    """Return a run of a cell, whose choice may not be known."""
    config = plan.first_config(plan.leader(place).row)
    return plan.run(place, config, phase, plan.report.seeds[0])


def _reuse_notes(study: Study, specs: Sequence[RunSpec]) -> list[str]:
    """Return a note for each published table whose runs are reused."""
    taken = [study.taken.get(key) for key in {spec.key for spec in specs}]
    counts = [(sum(run is source for run in taken), source) for source in study.published]
    return [
        f"{count} of {len(taken)} runs are those of {source.source} ({source.made})"
        for count, source in counts
        if count
    ]


def _made(study: Study, specs: Sequence[RunSpec]) -> Made:
    import torch

    packages, plan = versions(), study.plan
    rounds: dict[Phase, str] = {}
    for phase in get_args(Phase):
        found = {_usual_run(plan, place, phase).experiment.rounds for place in plan.places}
        rounds[phase] = "-".join(map(str, sorted({min(found), max(found)})))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    card = f", {gpus} x {torch.cuda.get_device_name(0)}" if gpus else ""
    return Made(
        command=study.command,
        commit=packages.get("git", "unknown"),
        versions=", ".join(f"{name} {packages[name]}" for name in SHOWN if name in packages),
        machine=f"{platform.machine()}, {allowed_cpus()} cores{card}",
        when=datetime.now().isoformat(timespec="seconds"),
        shared=len({spec.key for spec in specs if study.end_of(spec)} - set(study.runs)),
        tuning_rounds=rounds["tuning"],
        report_rounds=rounds["report"],
    )
