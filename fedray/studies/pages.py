"""Pages, tables and figures of a study, and its description for MLflow."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from fedray.config import Tree
from fedray.processors import allowed_cpus
from fedray.results.pages.page import Section
from fedray.results.pages.record import Made, table_tree
from fedray.results.pages.table import PAGE, write
from fedray.results.pages.terminal import print_sections
from fedray.storage.environment import versions
from fedray.storage.files import write_json
from fedray.storage.json_files import sealed
from fedray.storage.metric import Metric
from fedray.storage.run_folder import write_run_list
from fedray.studies.outcome import Outcome, outcome
from fedray.studies.plan import Phase
from fedray.studies.store import DATA, FORMAT, RUNS, Measured, PublishedRun, commits_of_runs
from fedray.studies.study import DIVERGED, Study
from fedray.studies.sweep_pages import conclude_sweep, last_lines, write_sweep
from fedray.studies.tracking import Conclusion
from fedray.tracking import valid_name

SHOWN = ("fedray", "python", "torch", "ray")


def write_pages(study: Study) -> list[Section]:
    """Write the tables, figures and pages of the finished runs; return the sections to print."""
    return write_sweep(study) if study.plan.is_sweep else write_table(study)


def print_pages(study: Study) -> None:
    """Write a study's pages and print its results."""
    sections = write_pages(study)
    print()
    print_sections(sections)
    if not study.plan.is_sweep:
        print(f"page: {study.home / PAGE} (also .html, .tex, .json, figure.png and .pdf)")
        return
    print("\n".join(last_lines(study)))


def conclusion(study: Study) -> Conclusion:
    """Return a study's description for MLflow."""
    return conclude_sweep(study) if study.plan.is_sweep else _conclude_table(study)


# --- tables ---------------------------------------------------------------------------------------


def write_table(study: Study) -> list[Section]:
    """Write a table in every format; return the sections of its page."""
    result = outcome(study)
    how = provenance(study, result)
    sections = write(result, how, study.home)
    write_json(study.home / DATA, sealed(table_json(study, result, how)))
    seeds = [seed for cell in result.cells.values() for seed in cell.seeds if not seed.reason]
    write_run_list(study.home, [study.folder(seed.key) for seed in seeds])
    return sections


def provenance(study: Study, result: Outcome) -> Made:
    """Return a table's provenance: command, versions, machine, runs and costs."""
    runs = [run for cell in result.cells.values() for run in cell.runs]
    keys, ends = {run.key for run in runs}, study.measured_runs(runs).values()
    packages = versions()
    return Made(
        command=study.command,
        commit=packages.get("git", "unknown"),
        commits=commits_of_runs(ends),
        versions=", ".join(f"{name} {packages[name]}" for name in SHOWN if name in packages),
        machine=machine(),
        when=datetime.now().isoformat(timespec="seconds"),
        runs=len(keys),
        shared=len(keys - set(study.seconds)),
        seconds=sum(end.seconds for end in ends) + _lost_seconds(study, keys),
        bytes=sum(end.bytes for end in ends),
        tuning_rounds=_rounds(study, "tuning"),
        report_rounds=_rounds(study, "report"),
    )


def _rounds(study: Study, phase: Phase) -> str:
    """Return the number of rounds in a phase, or its range such as "5-20"."""
    seed = study.plan.report.seeds[0]
    runs = [cell.run_spec(cell.first[0], phase, seed).experiment for cell in study.cells]
    rounds = {experiment.rounds for experiment in runs}
    return "-".join(map(str, sorted({min(rounds), max(rounds)})))


def _lost_seconds(study: Study, keys: Iterable[str]) -> float:
    """Return the seconds that this invocation spent on failed runs."""
    return sum(study.seconds.get(key, 0.0) for key in keys if key in study.failures)


def machine() -> str:
    """Return a description of this machine: architecture, cores and GPUs."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    card = f", {gpus} x {torch.cuda.get_device_name(0)}" if gpus else ""
    return f"{platform.machine()}, {allowed_cpus()} cores{card}"


def table_json(study: Study, result: Outcome, how: Made) -> Tree:
    """Return the content of table.json: the table's numbers, and the runs for reuse by tables."""
    costs = []
    for cell in result.cells.values():
        keys, ends = {run.key for run in cell.runs}, study.measured_runs(cell.runs).values()
        seconds = sum(end.seconds for end in ends) + _lost_seconds(study, keys)
        costs.append((seconds, sum(end.bytes for end in ends)))
    return {"format": FORMAT, **table_tree(result, how, costs), **_runs(study, result)}


def _runs(study: Study, result: Outcome) -> Tree:
    """Return the finished and diverged runs, for reuse by other tables, with their metrics.

    Runs that failed for other reasons are left out, because they may succeed when repeated.
    """
    runs: dict[tuple[Any, ...], PublishedRun] = {}
    metrics: dict[str, Metric] = {}
    for cell in result.cells.values():
        row, names = cell.place.row, result.plan.measures(cell.place.row)
        for spec in cell.runs:
            end = study.outcome_of(spec)
            if end is None or (isinstance(end, str) and not end.startswith(DIVERGED)):
                continue
            if isinstance(end, Measured):
                metrics |= {names[metric.name]: metric for metric in end.metrics}
            run = PublishedRun.of(spec.experiment, result.plan, row, end)
            runs.setdefault(run.kind, run)
    return {
        "metrics": {
            name: {"unit": of.unit, "direction": of.direction, "on": of.on}
            for name, of in metrics.items()
        },
        RUNS: [run.model_dump(mode="json", exclude_defaults=True) for run in runs.values()],
    }


def _conclude_table(study: Study) -> Conclusion:
    """Return the mean over seeds of each finished cell, once the table is complete."""
    metrics: dict[str, float] = {}
    for place, cell in outcome(study).cells.items():
        ends = [seed.measured.values for seed in cell.seeds if seed.measured is not None]
        for name in ends[0] if ends and cell.state.phase == "over" else ():
            mean = sum(values[name] for values in ends) / len(ends)
            metrics[valid_name(f"{place}/{name}")] = mean
    return Conclusion(metrics if study.is_complete else {})
