"""Pages, tables and figures of a study, and its description for MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedray.config import dump_yaml
from fedray.markdown import markdown_table
from fedray.results.design import Config
from fedray.results.labels import config_label, show_value
from fedray.results.pages.cells import metric_name, spread_cell, spread_label
from fedray.results.pages.figures import Row, figure_sweep
from fedray.results.pages.page import Section
from fedray.results.pages.sweep import TrialLine, trials_section
from fedray.results.pages.table import PAGE, write
from fedray.results.pages.terminal import print_sections
from fedray.results.record import DATA
from fedray.storage.files import write_atomic, write_json, write_rows
from fedray.storage.json_files import sealed
from fedray.storage.metric import HEADLINE, Metric
from fedray.storage.run_folder import write_run_list
from fedray.studies.outcome import outcome
from fedray.studies.plan import StudyPlan
from fedray.studies.study import Study
from fedray.studies.tracking import Conclusion
from fedray.studies.trials import SweepOutcome, Trial, best_command, sweep_outcome
from fedray.tracking import BEST_METRIC, VIEW_LINK, valid_name

MOST_IN_NOTE = 10
"""Maximum number of configurations in a sweep's description for MLflow."""


def write_pages(study: Study) -> list[Section]:
    """Write the tables, figures and pages of the finished runs; return the sections to print."""
    return _write_sweep(study) if study.plan.is_sweep else write_table(study)


def print_pages(study: Study) -> None:
    """Write a study's pages and print its results."""
    sections = write_pages(study)
    print()
    print_sections(sections)
    if not study.plan.is_sweep:
        print(f"page: {study.home / PAGE} (also .html, .tex, .json, figure.png and .pdf)")
        return
    result = sweep_outcome(study)
    if result.best is not None and study.is_complete:
        print(f"{best_line(result)}\n  {best_command(study.plan, result.best.config)}")
    if result.through:
        print(f"figure: {study.home / 'sweep.png'}")
    print(f"results: {study.home}")


def conclusion(study: Study) -> Conclusion:
    """Return a study's description for MLflow."""
    return _conclude_sweep(study) if study.plan.is_sweep else _conclude_table(study)


# --- tables ---------------------------------------------------------------------------------------


def write_table(study: Study) -> list[Section]:
    """Write a table in every format; return the sections of its page."""
    record = outcome(study)
    sections = write(record, study.home)
    write_json(study.home / DATA, sealed(record.tree()))
    reported = [
        cell.run_spec(config, "report", seed).key
        for cell, state in study.states()
        for seed, config in state.choices.items()
    ]
    write_run_list(study.home, [study.folder(key) for key in reported if key not in study.failures])
    return sections


def _conclude_table(study: Study) -> Conclusion:
    """Return the mean over seeds of each finished cell, once the table is complete."""
    metrics: dict[str, float] = {}
    record = outcome(study)
    for cell in record.cells if study.is_complete else ():
        runs = list(record.reported(cell).values())
        names = record.plan.measures(cell.row) if runs and cell.phase == "over" else {}
        for name, measured in names.items():
            mean = sum(run.values[measured] for run in runs) / len(runs)
            metrics[valid_name(f"{cell.place}/{name}")] = mean
    return Conclusion(metrics)


# --- sweeps ---------------------------------------------------------------------------------------


def _write_sweep(study: Study) -> list[Section]:
    """Write a sweep's numbers, figure and best configuration; return its sections."""
    result, plan, home = sweep_outcome(study), study.plan, study.home
    write_run_list(home, [run for trial in result.through for run in trial.runs])
    _write_trials(result, study)
    sections = [_trials(result)]
    if len(plan.metrics) > 1:
        sections.append(_further_metrics(result))
    if result.through:
        _draw(result, study)
    if result.best is not None and study.is_complete:
        best = study.cells[0].run_spec(result.best.config, "tuning", plan.report.seeds[0])
        write_atomic(home / "best.yaml", dump_yaml(best.experiment.tree()))
    return sections


def _trials(result: SweepOutcome) -> Section:
    keys = [key for axis in result.plan.axes for key in axis.keys]
    validates = result.chooser != result.plan.metrics[0]
    lines = [_line(trial, result) for trial in result.trials]
    return trials_section(lines, keys, result.metric, result.notes, validates=validates)


def _line(trial: Trial, result: SweepOutcome) -> TrialLine:
    failed, metric = trial.status == "failed", result.plan.metrics[0]
    return TrialLine(
        number=trial.number,
        config=trial.config,
        state="failed" if failed else "" if trial.is_over else "not finished",
        reason=trial.reason if failed else None,
        objective=trial.interval(),
        test=trial.interval(metric),
        round=trial.when,
        bytes=trial.bytes,
        seconds=trial.seconds,
        is_best=trial == result.best,
    )


def _further_metrics(result: SweepOutcome) -> Section:
    """Return the table of all metrics by configuration."""
    names = [result.chooser, *(name for name in result.plan.metrics if name != result.chooser)]
    metrics = [result.metrics.get(name, Metric(name)) for name in names]
    rows = [
        [
            config_label(trial.config),
            spread_cell(trial.interval(), metrics[0]),
            *(spread_cell(trial.interval(metric.name), metric) for metric in metrics[1:]),
        ]
        for trial in result.through
    ]
    return Section("", (), ["configuration", *map(metric_name, metrics)], rows)


def _write_trials(result: SweepOutcome, study: Study) -> None:
    """Write the configurations and their results to trials.csv."""
    plan = result.plan
    keys = [key for axis in plan.axes for key in axis.keys]
    names = ["status", "objective", "std", "round", "bytes", "seconds", "reason"]
    rows: list[Sequence[Any]] = [["trial", *keys, *names, *plan.metrics]]
    for trial in result.trials:
        numbers = [trial.objective, trial.std, trial.when, trial.bytes, trial.seconds]
        means = [trial.mean(metric) for metric in plan.metrics]
        values = [trial.config[key] for key in keys]
        rows.append([trial.number, *values, trial.status, *numbers, trial.reason, *means])
    write_rows(study.home / "trials.csv", rows)


def _draw(result: SweepOutcome, study: Study) -> None:
    """Draw the first metric in the chosen round over the swept keys."""
    plan, metric = result.plan, result.plan.metrics[0]
    rows = [
        Row(
            _by_axis(plan, trial.config),
            interval,
            None if plan.select == "nothing" else trial.objective,
        )
        for trial in result.through
        if (interval := trial.interval(metric)) is not None
    ]
    when = f"round {plan.how}" if plan.at == "best" else "last round"
    title = ", ".join(filter(None, (plan.title, when, spread_label(row.interval for row in rows))))
    axes = [axis.key for axis in plan.axes]
    figure_sweep(rows, axes, study.home / "sweep.png", result.metric, title=title)


def _by_axis(plan: StudyPlan, config: Config) -> dict[str, Any]:
    """Return a configuration by axis; the values of keys that vary together become one text."""
    values = {axis.key: [config[key] for key in axis.keys] for axis in plan.axes}
    return {
        key: several[0]
        if len(several) == 1 and not isinstance(several[0], Mapping)
        else ", ".join(map(show_value, several))
        for key, several in values.items()
    }


def best_line(result: SweepOutcome) -> str:
    """Return a line with the best configuration, its objective and its test metric."""
    plan, best, metric = result.plan, result.best, result.plan.metrics[0]
    if best is None:
        return ""
    test = best.mean(metric)
    on_test = f", {metric} {test:.4f} on the test"
    return (
        f"{plan.how}: {config_label(best.config)}: {result.chooser} {best.objective:.4f} in round "
        f"{best.when}{on_test if result.chooser != metric and test is not None else ''}"
    )


def _conclude_sweep(study: Study) -> Conclusion:
    """Return a sweep's description: the best configurations, and counts of trials by status."""
    result = sweep_outcome(study)
    plan, best = result.plan, result.best
    has_spread = len(plan.report.seeds) > 1
    rows = [
        [
            config_label(trial.config),
            _format_number(trial.objective),
            *([_format_number(trial.std)] if has_spread else []),
            _format_number(trial.mean(plan.metrics[0])),
        ]
        for trial in result.ranked[:MOST_IN_NOTE]
    ]
    best_one = f"**{best_line(result)}**" if best is not None else ""
    count = f"[{len(result.trials)} configurations]{VIEW_LINK}"
    parts = [": ".join(filter(None, [count, best_one])), f"{plan.title}: {plan.answers}"]
    if rows:
        spread = ["standard deviation"] if has_spread else []
        head = ["configuration", result.chooser, *spread, f"{plan.metrics[0]} (test)"]
        parts.append(markdown_table(head, rows))
    if best is not None:
        parts += result.notes
        parts.append(f"The best one alone: `{best_command(plan, best.config)}`")
    return Conclusion(_sweep_metrics(result) if study.is_complete else {}, "\n\n".join(parts))


def _sweep_metrics(result: SweepOutcome) -> dict[str, float]:
    """Return the numbers of trials by status, and the best trial's objective and test metric."""
    best, metric = result.best, result.plan.metrics[0]
    ends = [trial.status for trial in result.trials]
    metrics = {f"trials_{end}": float(ends.count(end)) for end in ("finished", "failed")}
    if best is None or best.objective is None:
        return metrics
    metrics["best_objective"] = best.objective
    if (test := best.mean(metric)) is not None:
        metrics["best_test"] = test
        if metric == HEADLINE:
            metrics[BEST_METRIC] = test
    return metrics


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
