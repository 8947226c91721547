"""Files, tables and figure of a sweep, and its description for MLflow."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas

from fedray.base.units import size_of, time_of
from fedray.config import dump_yaml
from fedray.results.design import Config
from fedray.results.labels import config_label, short_names, show_value
from fedray.results.pages.cells import metric_name, short_name, spread_cell, spread_label
from fedray.results.pages.figures import figure_sweep
from fedray.results.pages.page import Section
from fedray.storage.files import write_atomic
from fedray.storage.metric import HEADLINE, Metric
from fedray.storage.run_folder import write_run_list
from fedray.studies.study import Study
from fedray.studies.tracking import Conclusion
from fedray.studies.trials import SweepOutcome, best_command, sweep_outcome
from fedray.tracking.describe import BEST_METRIC

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
        best = plan.run(plan.places[0], config, "tuning", seed)
        write_atomic(home / "best.yaml", dump_yaml(best.experiment.tree()))
    return [trials_section(result)]


def trials_section(result: SweepOutcome) -> Section:
    """Return the table of configurations, the best marked by a star, notes, and why some failed.

    Its numbers are the metric that chooses, and the metrics of the sweep.
    """
    names = short_names(result.keys)
    metrics = [result.metrics.get(name, Metric(name)) for name in shown_metrics(result)]
    columns = [result.intervals(), *(result.intervals(metric.name) for metric in metrics[1:])]
    rows, failed = [], dict[str, list[str]]()
    for number, row in result.trials.to_dict("index").items():
        pairs = zip(columns, metrics, strict=True)
        cells = [spread_cell(column[number], metric) for column, metric in pairs]
        if row["status"] == "failed":
            failed.setdefault(row["reason"], []).append(str(number))
        if row["status"] in ("failed", "pending", "running"):
            state = "failed" if row["status"] == "failed" else "not finished"
            cells = [state, *[""] * (len(cells) - 1)]
        values = [show_value(row[key]) for key in names]
        traffic = "" if pandas.isna(row["bytes"]) else size_of(row["bytes"])
        costs = [row["round"], time_of(row["seconds"]), traffic]
        rows.append([f"{'* ' if number == result.best else ''}{number}", *values, *cells, *costs])
    header = ["trial", *names.values(), *map(short_name, metrics), "round", "time", "traffic"]
    caption = [*map(metric_name, metrics), spread_label(columns[0].values())]
    reasons = [f"trial {', '.join(who)} failed: {reason}" for reason, who in failed.items()]
    below = f"{', '.join(filter(None, caption))}."
    return Section("", (), header, rows, [below], [*result.notes, *reasons])


def shown_metrics(result: SweepOutcome) -> list[str]:
    """Return the metric that chooses, and the other metrics of the sweep."""
    return [*dict.fromkeys([result.chooser, *result.plan.metrics])]


def last_lines(study: Study) -> list[str]:
    """Return the lines below a sweep's table: the best configuration, and where the results are."""
    result = sweep_outcome(study)
    lines = [f"figure: {study.home / 'sweep.png'}"] if len(result.ended) else []
    if result.best is not None and study.is_complete:
        command = best_command(study.plan, result.configs[result.best])
        lines = [best_line(result), f"  {command}", *lines]
    return [*lines, f"results: {study.home}"]


def _draw(result: SweepOutcome, path: Path) -> None:
    """Draw the first metric in the chosen round over the swept keys."""
    plan, intervals = result.plan, result.intervals(result.plan.metrics[0])
    rows = [
        {
            **_by_axis(result, number),
            "interval": intervals[number],
            "is_best": number == result.best,
        }
        for number in result.ended.index
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
    metric, best, tested = result.metric, result.trials.loc[result.best], best_test(result)
    has_test = result.chooser != metric.name and tested is not None
    return (
        f"{result.plan.how}: {config_label(result.configs[result.best])}: {result.chooser} "
        f"{best['objective']:.4f} in round {best['round']}"
        f"{f', {metric.name} {tested:.4f} on the test' if has_test else ''}"
    )


def best_test(result: SweepOutcome) -> float | None:
    """Return the best configuration's first metric; None if missing or not on test images."""
    metric = result.metric
    if result.best is None or metric.on != "test":
        return None
    value = result.trials.loc[result.best, metric.name]
    return None if pandas.isna(value) else float(value)


def conclude_sweep(study: Study) -> Conclusion:
    """Return a sweep's description: its best configuration, and counts of trials by status."""
    result, plan = sweep_outcome(study), study.plan
    count = f"{len(result.configs)} configurations"
    if result.best is None:
        return Conclusion({}, f"{count}\n\n{plan.title}: {plan.answers}")
    note = [
        f"{count}: **{best_line(result)}**",
        f"{plan.title}: {plan.answers}",
        *result.notes,
        f"The best one alone: `{best_command(plan, result.configs[result.best])}`",
    ]
    return Conclusion(_numbers(result) if study.is_complete else {}, "\n\n".join(note))


def _numbers(result: SweepOutcome) -> dict[str, float]:
    """Return the numbers of trials by status, and the best trial's objective and test metric."""
    counts = result.trials["status"].value_counts()
    metrics = {f"trials_{end}": float(counts.get(end, 0)) for end in ("finished", "failed")}
    if result.best is None:
        return metrics
    metrics["best_objective"] = float(result.trials.loc[result.best, "objective"])
    if (tested := best_test(result)) is not None:
        metrics["best_test"] = tested
        if result.metric.name == HEADLINE:
            metrics[BEST_METRIC] = tested
    return metrics
