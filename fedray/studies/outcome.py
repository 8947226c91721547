"""The record of a table, made from its finished runs."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from datetime import datetime

from fedray.base.processors import allowed_cpus
from fedray.config import Experiment
from fedray.results.design import Config, Place
from fedray.results.record import Attempt, CellRecord, FailedRun, Made, Measured, TableRecord
from fedray.storage.environment import versions
from fedray.studies.caveats import table_caveats
from fedray.studies.cell import CellState
from fedray.studies.plan import Phase, RunSpec
from fedray.studies.store import name_in_tables
from fedray.studies.study import Study

SHOWN = ("fedray", "python", "torch", "ray")
"""Packages whose versions a page names."""


def outcome(study: Study) -> TableRecord:
    """Return the record of a table, with its verdicts and notes."""
    states = study.states
    specs = [spec for state in states for spec in state.runs]
    runs: dict[str, Measured | FailedRun] = {}
    for spec in specs:
        end = study.end_of(spec)
        if isinstance(end, Measured):
            _add(runs, name_in_tables(spec, study.plan), end)
        elif end is not None:
            seconds = study.seconds.get(spec.key, 0.0) if spec.key in study.failures else 0.0
            runs.setdefault(
                name_in_tables(spec, study.plan), FailedRun(reason=end, seconds=seconds)
            )
    measured = {name for run in runs.values() if isinstance(run, Measured) for name in run.values}
    reported = {state.place: _reported(study, state) for state in states}
    record = TableRecord(
        made=_made(study, specs),
        plan=study.plan,
        metrics={name: of for name, of in study.declared.items() if name in measured},
        runs=runs,
        cells=[_cell(study, state, reported[state.place]) for state in states],
    )
    notes = [
        *table_caveats(study.plan, record, _experiments(study, reported)),
        *_reuse_notes(study, specs),
        *_looks(study.plan.report.looks),
    ]
    return record.model_copy(update={"notes": notes}).concluded()


def _looks(count: int) -> list[str]:
    """Return a note on earlier looks at the verdicts."""
    times = f"{count} times" if count > 1 else "once"
    return [f"The verdicts were seen {times} before, and p-values count these looks"] * (count > 0)


def _add(runs: dict[str, Measured | FailedRun], name: str, run: Measured) -> None:
    """Add a result, whose metrics are those of its row, to those of other rows."""
    earlier = runs.get(name)
    if isinstance(earlier, Measured):
        run = run.model_copy(update={"values": {**earlier.values, **run.values}})
    runs[name] = run


def _reported(study: Study, state: CellState) -> dict[int, RunSpec]:
    """Return the reported run of each seed; of a seed without a choice, a run that failed."""
    plan = study.plan
    leader = plan.leader(state.place)
    first = plan.first_config(leader.row)
    runs = {
        seed: plan.run(state.place, config, "report", seed)
        for seed, config in state.choices.items()
    }
    runs |= {seed: plan.run(leader, first, "tuning", seed) for seed in state.lost}
    return {seed: runs[seed] for seed in plan.report.seeds if seed in runs}


def _cell(study: Study, state: CellState, reported: Mapping[int, RunSpec]) -> CellRecord:
    plan, place = study.plan, state.place

    def names(config: Config, seeds: Sequence[int]) -> dict[int, str]:
        runs = (plan.run(place, config, "tuning", seed) for seed in seeds)
        return {run.seed: name_in_tables(run, plan) for run in runs}

    return CellRecord(
        row=place.row,
        column=place.column,
        phase=state.phase,
        choices=dict(state.choices),
        reported={seed: name_in_tables(spec, study.plan) for seed, spec in reported.items()},
        tried=[
            Attempt(
                config=tried.config,
                runs=names(tried.config, [*tried.scores]),
                added=tried.added,
            )
            for tried in state.tried
        ],
        edges=list(state.edges),
    )


def _experiments(
    study: Study, reported: Mapping[Place, Mapping[int, RunSpec]]
) -> dict[Place, Experiment]:
    """Return the experiment of a reported run of each cell, or of its first configuration."""
    return {
        place: next(iter(runs.values()), _usual_run(study, place, "report")).experiment
        for place, runs in reported.items()
    }


def _usual_run(study: Study, place: Place, phase: Phase) -> RunSpec:
    """Return a run of a cell, whose choice may not be known."""
    plan = study.plan
    config = plan.first_config(plan.leader(place).row)
    return plan.run(place, config, phase, plan.report.seeds[0])


def _reuse_notes(study: Study, specs: Sequence[RunSpec]) -> list[str]:
    """Return a note for each published table whose runs are reused."""
    keys = {spec.key for spec in specs}
    taken = []
    for source in study.published:
        count = sum(study.taken.get(key) is source for key in keys)
        if count:
            taken.append(
                f"{count} of {len(keys)} runs are those of {source.source} ({source.made})"
            )
    return taken


# --- how it was made ------------------------------------------------------------------------------


def _made(study: Study, specs: Sequence[RunSpec]) -> Made:
    packages = versions()
    return Made(
        command=study.command,
        commit=packages.get("git", "unknown"),
        versions=", ".join(f"{name} {packages[name]}" for name in SHOWN if name in packages),
        machine=machine(),
        when=datetime.now().isoformat(timespec="seconds"),
        shared=len({spec.key for spec in specs if study.end_of(spec)} - set(study.runs)),
        tuning_rounds=_rounds(study, "tuning"),
        report_rounds=_rounds(study, "report"),
    )


def _rounds(study: Study, phase: Phase) -> str:
    """Return the number of rounds in a phase, or its range such as "5-20"."""
    runs = [_usual_run(study, place, phase) for place in study.plan.places]
    rounds = {run.experiment.rounds for run in runs}
    return "-".join(map(str, sorted({min(rounds), max(rounds)})))


def machine() -> str:
    """Return a description of this machine: architecture, cores and GPUs."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    card = f", {gpus} x {torch.cuda.get_device_name(0)}" if gpus else ""
    return f"{platform.machine()}, {allowed_cpus()} cores{card}"
