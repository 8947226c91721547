"""Files, tables and figure of a sweep, and its description for MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas

from fedray.config import dump_yaml
from fedray.markdown import markdown_table
from fedray.results.design import Config
from fedray.results.labels import config_label, show_value
from fedray.results.pages.cells import metric_name, spread_cell, spread_label
from fedray.results.pages.figures import figure_sweep
from fedray.results.pages.page import Section
from fedray.results.pages.sweep import trials_section
from fedray.storage.files import write_atomic
from fedray.storage.metric import HEADLINE, Metric
from fedray.storage.run_folder import write_run_list
from fedray.studies.study import Study
from fedray.studies.tracking import Conclusion
from fedray.studies.trials import SweepOutcome, best_command, sweep_outcome
from fedray.tracking import BEST_METRIC, VIEW_LINK

MOST_IN_NOTE = 10
"""Maximum number of configurations in a sweep's description for MLflow."""
COLUMNS = ("status", "objective", "std", "round", "bytes", "seconds", "reason")
"""Columns of trials.csv between the searched keys and the metrics."""


def write_sweep(study: Study) -> list[Section]:
    """Write a sweep's numbers, figure and best configuration; return its sections."""
    result, plan, home = sweep_outcome(study), study.plan, study.home
    ended = result.runs["trial"].isin(result.ended.index)
    write_run_list(home, result.runs.loc[ended, "folder"].tolist())
    table = result.trials[[*result.keys, *COLUMNS, *plan.metrics]]
    write_atomic(home / "trials.csv", table.to_csv(lineterminator="\r\n"))
    if len(result.ended):
        _draw(result, home / "sweep.png")
    if result.best is not None and study.is_complete:
        config, seed = result.configs[result.best], plan.report.seeds[0]
        best = study.cells[0].run_spec(config, "tuning", seed)
        write_atomic(home / "best.yaml", dump_yaml(best.experiment.tree()))
    on_test = [] if result.chooser == plan.metrics[0] else [result.intervals(plan.metrics[0])]
    columns, best_one = [result.intervals(), *on_test], result.best
    sections = [
        trials_section(
            result.trials, result.keys, columns, result.metric, result.notes, best=best_one
        )
    ]
    return [*sections, _all_metrics(result)] if len(plan.metrics) > 1 else sections


def last_lines(study: Study) -> list[str]:
    """Return the lines below a sweep's table: the best configuration, and where the results are."""
    result = sweep_outcome(study)
    lines = [f"figure: {study.home / 'sweep.png'}"] if len(result.ended) else []
    if result.best is not None and study.is_complete:
        command = best_command(study.plan, result.configs[result.best])
        lines = [best_line(result), f"  {command}", *lines]
    return [*lines, f"results: {study.home}"]


def _all_metrics(result: SweepOutcome) -> Section:
    """Return the table of all metrics by configuration."""
    names = [result.chooser, *(name for name in result.plan.metrics if name != result.chooser)]
    metrics = [result.metrics.get(name, Metric(name)) for name in names]
    columns = [result.intervals(), *(result.intervals(name) for name in names[1:])]
    rows = [
        [
            config_label(result.configs[number]),
            *(spread_cell(c[number], metric) for c, metric in zip(columns, metrics, strict=True)),
        ]
        for number in result.ended.index
    ]
    return Section("", (), ["configuration", *map(metric_name, metrics)], rows)


def _draw(result: SweepOutcome, path: Path) -> None:
    """Draw the first metric in the chosen round over the swept keys."""
    plan, intervals = result.plan, result.intervals(result.plan.metrics[0])
    rows = [
        {
            **_by_axis(result, number),
            "interval": intervals[number],
            "chooser": None if plan.select == "nothing" else row["objective"],
        }
        for number, row in result.ended.to_dict("index").items()
        if intervals[number] is not None
    ]
    when = f"round {plan.how}" if plan.at == "best" else "last round"
    title = [plan.title, when, spread_label(row["interval"] for row in rows)]
    axes = [axis.key for axis in plan.axes]
    trials = pandas.DataFrame(rows, dtype=object)
    figure_sweep(trials, axes, path, result.metric, title=", ".join(filter(None, title)))


def _by_axis(result: SweepOutcome, number: int) -> Config:
    """Return a configuration by axis; the values of keys that vary together become one text."""
    config = result.configs[number]
    values = {axis.key: [config[key] for key in axis.keys] for axis in result.plan.axes}
    return {
        key: several[0]
        if len(several) == 1 and not isinstance(several[0], Mapping)
        else ", ".join(map(show_value, several))
        for key, several in values.items()
    }


def best_line(result: SweepOutcome) -> str:
    """Return a line with the best configuration, its objective and its test metric."""
    if result.best is None:
        return ""
    metric, best = result.plan.metrics[0], result.trials.loc[result.best]
    has_test = result.chooser != metric and pandas.notna(best[metric])
    return (
        f"{result.plan.how}: {config_label(result.configs[result.best])}: {result.chooser} "
        f"{best['objective']:.4f} in round {best['round']}"
        f"{f', {metric} {best[metric]:.4f} on the test' if has_test else ''}"
    )


def conclude_sweep(study: Study) -> Conclusion:
    """Return a sweep's description: the best configurations, and counts of trials by status."""
    result = sweep_outcome(study)
    plan, best = result.plan, result.best
    shown = {"objective": result.chooser, "std": "standard deviation"}
    if len(plan.report.seeds) == 1:
        del shown["std"]
    shown[plan.metrics[0]] = f"{plan.metrics[0]} (test)"
    rows = [
        [
            config_label(result.configs[number]),
            *map(_format_number, result.trials.loc[number, [*shown]]),
        ]
        for number in result.ranked[:MOST_IN_NOTE]
    ]
    best_one = f"**{best_line(result)}**" if best is not None else ""
    count = f"[{len(result.configs)} configurations]{VIEW_LINK}"
    parts = [": ".join(filter(None, [count, best_one])), f"{plan.title}: {plan.answers}"]
    if rows:
        parts.append(markdown_table(["configuration", *shown.values()], rows))
    if best is not None:
        parts += result.notes
        parts.append(f"The best one alone: `{best_command(plan, result.configs[best])}`")
    return Conclusion(_numbers(result) if study.is_complete else {}, "\n\n".join(parts))


def _numbers(result: SweepOutcome) -> dict[str, float]:
    """Return the numbers of trials by status, and the best trial's objective and test metric."""
    counts = result.trials["status"].value_counts()
    metrics = {f"trials_{end}": float(counts.get(end, 0)) for end in ("finished", "failed")}
    if result.best is None:
        return metrics
    best, metric = result.trials.loc[result.best], result.plan.metrics[0]
    metrics["best_objective"] = float(best["objective"])
    if pandas.notna(best[metric]):
        metrics["best_test"] = float(best[metric])
        if metric == HEADLINE:
            metrics[BEST_METRIC] = metrics["best_test"]
    return metrics


def _format_number(value: Any) -> str:
    return "" if pandas.isna(value) else f"{value:.4f}"
