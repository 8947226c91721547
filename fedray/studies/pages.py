"""Pages, tables and figures of a study, and its description for MLflow."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from fedray.compare.labels import config_label, show_value
from fedray.compare.paired import Interval
from fedray.config import Tree, dump_yaml
from fedray.files import write_atomic, write_json, write_rows
from fedray.markdown import markdown_table
from fedray.records import Metric, sealed, versions, write_run_list
from fedray.render.figures import Row, figure_sweep
from fedray.render.page import Section
from fedray.render.record import Made, table_tree
from fedray.render.sweep import TrialLine, means_section, trials_section
from fedray.render.table import PAGE, write
from fedray.render.terminal import print_sections
from fedray.studies.outcome import Outcome, outcome
from fedray.studies.plan import Phase, StudyPlan
from fedray.studies.registration import described
from fedray.studies.space import Config
from fedray.studies.store import DATA, FORMAT, RUNS, Measured, PublishedRun, commits_of_runs
from fedray.studies.study import DIVERGED, Study
from fedray.studies.tracking import Conclusion
from fedray.studies.trials import CM, HM, SweepOutcome, Trial, best_command, sweep_outcome
from fedray.tracking import grouped, valid_name

SHOWN = ("fedray", "python", "torch", "ray")
MOST_IN_NOTE = 10
"""Configurations in the description of a sweep."""


def write_pages(study: Study) -> list[Section]:
    """Write the tables, figures and pages of the finished runs; return the text to print."""
    return _write_sweep(study) if study.plan.is_sweep else write_table(study)


def print_pages(study: Study) -> None:
    """Write a study's pages, and print its results."""
    sections = write_pages(study)
    print()
    print_sections(sections)
    if not study.plan.is_sweep:
        print(f"page: {study.home / PAGE} (also .html, .tex, .json, figure.png)")
        return
    found = sweep_outcome(study)
    if found.best is not None and study.is_complete:
        print(f"{best_line(found)}\n  {best_command(study.plan, found.best.config)}")
    if found.through:
        print(f"figure: {study.home / 'sweep.png'}")
    print(f"results: {study.home}")


def conclusion(study: Study) -> Conclusion:
    """Return a study's description for MLflow."""
    return _of_sweep(study) if study.plan.is_sweep else _of_table(study)


# --- tables ---------------------------------------------------------------------------------------


def write_table(study: Study) -> list[Section]:
    """Write a table in every form; return its page."""
    found = outcome(study)
    how = made(study, found)
    sections = write(found, how, study.home)
    write_json(study.home / DATA, sealed(table_json(study, found, how)))
    seeds = [seed for cell in found.cells.values() for seed in cell.seeds if not seed.reason]
    write_run_list(study.home, [study.folder(seed.key) for seed in seeds])
    return sections


def made(study: Study, found: Outcome) -> Made:
    """Return how a table was made."""
    runs = [run for cell in found.cells.values() for run in cell.runs]
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
        seconds=sum(one.seconds for one in ends) + _lost_seconds(study, keys),
        bytes=sum(one.bytes for one in ends),
        tuning_rounds=_rounds(study, "tuning"),
        report_rounds=_rounds(study, "report"),
        registered=described(study.registered, study.plan),
    )


def _rounds(study: Study, phase: Phase) -> str:
    """Return how many rounds runs of a phase have, the least and the most."""
    seed = study.plan.report.seeds[0]
    runs = [cell.wanted(cell.first[0], phase, seed).experiment for cell in study.cells]
    rounds = {experiment.rounds for experiment in runs}
    return "-".join(map(str, sorted({min(rounds), max(rounds)})))


def _lost_seconds(study: Study, keys: Iterable[str]) -> float:
    """Return what was spent, in this invocation, on runs that failed."""
    return sum(study.seconds.get(key, 0.0) for key in keys if key in study.failures)


def machine() -> str:
    """Return what computes here, in words."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    card = f", {gpus} x {torch.cuda.get_device_name(0)}" if gpus else ""
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores{card}"


def table_json(study: Study, found: Outcome, how: Made) -> Tree:
    """Return everything: the table's numbers, and the runs that other tables may take over."""
    costs = []
    for cell in found.cells.values():
        keys, ends = {run.key for run in cell.runs}, study.measured_runs(cell.runs).values()
        seconds = sum(one.seconds for one in ends) + _lost_seconds(study, keys)
        costs.append((seconds, sum(one.bytes for one in ends)))
    return {"format": FORMAT, **table_tree(found, how, costs), **_runs(study, found)}


def _runs(study: Study, found: Outcome) -> Tree:
    """Return the finished runs, for tables that reuse them, with their metrics.

    A run that died would not do so again, and one that only lacks a number of its row has others.
    """
    runs: dict[tuple[Any, ...], PublishedRun] = {}
    metrics: dict[str, Metric] = {}
    for cell in found.cells.values():
        row, own = cell.place.row, found.plan.measures(cell.place.row)
        for wanted in cell.runs:
            end = study.outcome_of(wanted)
            if end is None or (isinstance(end, str) and not end.startswith(DIVERGED)):
                continue
            if isinstance(end, Measured):
                metrics |= {own[metric.name]: metric for metric in end.metrics}
            run = PublishedRun.of(wanted.experiment, found.plan, row, end)
            runs.setdefault(run.kind, run)
    return {
        "metrics": {
            name: {"unit": of.unit, "direction": of.direction, "on": of.on}
            for name, of in metrics.items()
        },
        RUNS: [run.model_dump(mode="json", exclude_defaults=True) for run in runs.values()],
    }


def _of_table(study: Study) -> Conclusion:
    """Return the means over seeds of each finished cell."""
    metrics: dict[str, float] = {}
    for place, cell in outcome(study).cells.items():
        ends = [one.measured.values for one in cell.seeds if one.measured is not None]
        for name in ends[0] if ends and cell.state.phase == "over" else ():
            mean = sum(values[name] for values in ends) / len(ends)
            metrics[valid_name(f"{place}/{name}")] = mean
    return Conclusion(metrics if study.is_complete else {})


# --- sweeps ---------------------------------------------------------------------------------------


def _write_sweep(study: Study) -> list[Section]:
    """Write a sweep's numbers, figure and best configuration; return its tables."""
    found, plan, home = sweep_outcome(study), study.plan, study.home
    write_run_list(home, [run for trial in found.through for run in trial.runs])
    _write_trials(found, study)
    sections = [_trials(found)]
    if plan.mean_over is not None or len(plan.metrics) > 1:
        sections.append(_means(found))
        _write_means(found, study)
    if found.through:
        _draw(found, study)
    if found.best is not None and study.is_complete:
        best = study.cells[0].wanted(found.best.config, "tuning", plan.report.seeds[0])
        write_atomic(home / "best.yaml", dump_yaml(best.experiment.tree()))
    return sections


def _trials(found: SweepOutcome) -> Section:
    keys = [key for axis in found.plan.axes for key in axis.keys]
    validates = found.chooser != found.plan.metrics[0]
    lines = [_line(trial, found) for trial in found.trials]
    return trials_section(lines, keys, found.metric, validates=validates)


def _line(trial: Trial, found: SweepOutcome) -> TrialLine:
    failed, seeds, metric = trial.status == "failed", len(trial.runs), found.plan.metrics[0]
    return TrialLine(
        number=trial.number,
        config=trial.config,
        state="failed" if failed else "" if trial.is_over else "not finished",
        reason=trial.reason if failed else None,
        objective=_interval(trial.objective, trial.std, seeds),
        test=_interval(trial.mean(metric), trial.spread(metric), seeds),
        round=trial.when,
        bytes=trial.bytes,
        seconds=trial.seconds,
        is_best=trial == found.best,
    )


def _interval(mean: float | None, std: float, seeds: int) -> Interval | None:
    return None if mean is None else Interval.of(mean, std, seeds)


def _means(found: SweepOutcome) -> Section:
    labels = [config_label(row.config) for row in found.rows]
    best = None if found.plan.mean_over is None else found.best_row
    metrics = {
        name: Metric(name) if name in (HM, CM) else found.metrics.get(name, Metric(name))
        for row in found.rows
        for name in row.values
    }
    return means_section(
        {label: row.values for label, row in zip(labels, found.rows, strict=True)},
        metrics,
        None if best is None else config_label(best.config),
        found.plan.mean_over,
        {label: row.missing for label, row in zip(labels, found.rows, strict=True)},
    )


def _write_trials(found: SweepOutcome, study: Study) -> None:
    """Write the configurations for other programs."""
    plan = found.plan
    keys = [key for axis in plan.axes for key in axis.keys]
    names = ["status", "objective", "std", "round", "bytes", "seconds", "reason"]
    rows: list[Sequence[Any]] = [["trial", *keys, *names, *plan.metrics]]
    for trial in found.trials:
        numbers = [trial.objective, trial.std, trial.when, trial.bytes, trial.seconds]
        means = [trial.mean(metric) for metric in plan.metrics]
        values = [trial.config[key] for key in keys]
        rows.append([trial.number, *values, trial.status, *numbers, trial.reason, *means])
    write_rows(study.home / "trials.csv", rows)


def _write_means(found: SweepOutcome, study: Study) -> None:
    """Write the means, with how many configurations each is of."""
    keys = list(dict.fromkeys(key for row in found.rows for key in row.config))
    names = list(dict.fromkeys(name for row in found.rows for name in row.values))
    lines: list[Sequence[Any]] = [[*keys, "trials", *names]]
    for row in found.rows:
        values = [row.values[name].mean if name in row.values else "" for name in names]
        lines.append([*(row.config.get(key) for key in keys), len(row.trials), *values])
    write_rows(study.home / "means.csv", lines)


def _draw(found: SweepOutcome, study: Study) -> None:
    """Draw the metric on the test, in the chosen round, against what was swept."""
    plan, metric = found.plan, found.plan.metrics[0]
    rows = [
        Row(
            _by_axis(plan, trial.config),
            Interval.of(mean, trial.spread(metric), len(trial.runs)),
            None if plan.select == "nothing" else trial.objective,
        )
        for trial in found.through
        if (mean := trial.mean(metric)) is not None
    ]
    when = f"round {plan.how}" if plan.at == "best" else "last round"
    title = f"{plan.name} [{plan.scale} scale], {when}"
    axes = [axis.key for axis in plan.axes]
    figure_sweep(rows, axes, study.home / "sweep.png", found.metric, title=title)


def _by_axis(plan: StudyPlan, config: Config) -> dict[str, Any]:
    """Return a configuration with keys that vary together as one key with one text."""
    values = {axis.key: [config[key] for key in axis.keys] for axis in plan.axes}
    return {
        key: several[0]
        if len(several) == 1 and not isinstance(several[0], Mapping)
        else ", ".join(map(show_value, several))
        for key, several in values.items()
    }


def best_line(found: SweepOutcome) -> str:
    """Return the best configuration, by what it was chosen, and what it is worth on the test."""
    plan, best, metric = found.plan, found.best, found.plan.metrics[0]
    if best is None:
        return ""
    if plan.mean_over is not None and found.best_row is not None:
        row = found.best_row
        how, mean = plan.how.replace("best", "best mean", 1), row.values[found.chooser].mean
        return f"{how}: {config_label(row.config)}: {found.chooser} {mean:.4f}"
    test = best.mean(metric)
    on_test = f", {metric} {test:.4f} on the test"
    return (
        f"{plan.how}: {config_label(best.config)}: {found.chooser} {best.objective:.4f} in round "
        f"{best.when}{on_test if found.chooser != metric and test is not None else ''}"
    )


def _of_sweep(study: Study) -> Conclusion:
    """Return the best configuration and how trials ended."""
    found = sweep_outcome(study)
    plan, best, metrics = found.plan, found.best, dict[str, float]()
    if study.is_complete:
        ends = [trial.status for trial in found.trials]
        metrics = {f"trials_{end}": float(ends.count(end)) for end in ("finished", "failed")}
        if best is not None and best.objective is not None:
            metrics["best_objective"] = best.objective
            if (test := best.mean(plan.metrics[0])) is not None:
                metrics |= {"best_test": test, grouped(plan.metrics[0]): test}
    ranked = sorted(found.through, key=lambda trial: -(trial.score or 0.0))[:MOST_IN_NOTE]
    rows = [
        [config_label(trial.config), _shown(trial.objective), _shown(trial.mean(plan.metrics[0]))]
        for trial in ranked
    ]
    parts = [f"{len(found.trials)} configurations [{plan.scale} scale]."]
    if rows:
        parts.append(
            markdown_table(["configuration", found.chooser, f"{plan.metrics[0]} (test)"], rows)
        )
    if best is not None:
        parts.append(f"The best one alone: `{best_command(plan, best.config)}`")
    return Conclusion(metrics, "\n\n".join(parts))


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
