"""Pages, tables and figures of a study, and its description for MLflow."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedray.base.units import size_of, time_of
from fedray.config import dump_yaml, read_plugins
from fedray.results.labels import config_label, is_number, short_names, show_value
from fedray.results.pages.cells import metric_name, short_name, spread_cell, spread_label
from fedray.results.pages.figures import Plot, Series, figure_curves
from fedray.results.pages.page import Section
from fedray.results.pages.table import PAGE, write
from fedray.results.pages.terminal import print_sections
from fedray.results.paired import Interval
from fedray.results.record import DATA
from fedray.storage.files import sealed, write_atomic, write_json
from fedray.storage.metric import HEADLINE
from fedray.storage.run_folder import write_run_list
from fedray.studies.outcome import outcome
from fedray.studies.study import Study
from fedray.studies.tracking import Conclusion
from fedray.studies.trials import SweepOutcome, sweep_outcome
from fedray.tracking.describe import BEST_METRIC, valid_name

COLUMNS = ("status", "objective", "std", "round", "bytes", "seconds", "reason")
"""Columns of trials.csv between the searched keys and the metrics."""
BEST = "best.yaml"
"""File of a sweep's best configuration, with the first seed."""
MOST_LINES = 6
"""Maximal number of combinations of other keys drawn as lines; more become points."""


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
        print(best_line(result))
        print(f"  {best_command(study)}")
    if len(result.ended):
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
        study.plan.run(state.place, config, "report", seed).key
        for state in study.states
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
    ended = result.runs["trial"].isin(result.ended.index)
    write_run_list(home, result.runs.loc[ended, "folder"].tolist())
    table = result.trials[[*result.keys, *COLUMNS, *plan.metrics]]
    write_atomic(home / "trials.csv", table.to_csv(lineterminator="\r\n"))
    draw_sweep(result, home / "sweep.png")
    if result.best is not None and study.is_complete:
        config, seed = result.configs[result.best], plan.report.seeds[0]
        best = plan.run(plan.places[0], config, "tuning", seed)
        write_atomic(home / BEST, dump_yaml(best.experiment.tree()))
    return [trials_section(result)]


def trials_section(result: SweepOutcome) -> Section:
    """Return the table of configurations, the best marked by a star, notes, and why some failed.

    Its numbers are the metric that chooses, and the metrics of the sweep.
    """
    names = short_names(result.keys)
    metrics = [*map(result.declared, dict.fromkeys([result.chooser, *result.plan.metrics]))]
    columns = [result.intervals(), *(result.intervals(metric.name) for metric in metrics[1:])]
    rows, failed = [], defaultdict[str, list[str]](list)
    for number, row in result.trials.to_dict("index").items():
        pairs = zip(columns, metrics, strict=True)
        cells = [spread_cell(column[number], metric) for column, metric in pairs]
        if row["status"] in ("failed", "pending", "running"):
            state = "failed" if row["status"] == "failed" else "not finished"
            cells = [state, *[""] * (len(cells) - 1)]
        if row["status"] == "failed":
            failed[row["reason"]].append(str(number))
        values = [show_value(row[key]) for key in names]
        traffic = size_of(row["bytes"]) if row["bytes"] == row["bytes"] else ""
        costs = [row["round"], time_of(row["seconds"]), traffic]
        rows.append([f"{'* ' if number == result.best else ''}{number}", *values, *cells, *costs])
    header = ["trial", *names.values(), *map(short_name, metrics), "round", "time", "traffic"]
    caption = [*map(metric_name, metrics), spread_label(columns[0].values())]
    reasons = [f"trial {', '.join(who)} failed: {reason}" for reason, who in failed.items()]
    below = f"{', '.join(filter(None, caption))}."
    return Section("", (), header, rows, [below], [*result.notes, *reasons])


def draw_sweep(result: SweepOutcome, path: Path) -> None:
    """Draw the first metric over the swept keys, a panel for each; nothing without a number.

    Each combination of the other keys is a line if there are few; else configurations are points.
    """
    plan, metric = result.plan, result.metric
    intervals = result.intervals(metric.name)
    rows = {
        number: (_by_axis(result, number), interval)
        for number in result.ended.index
        if (interval := intervals[number]) is not None
    }
    if not rows:
        return
    plots = []
    for axis in plan.axes:
        key, lines = axis.key, defaultdict[str, dict[Any, tuple[int, Interval]]](dict)
        values = [config[key] for config, _ in rows.values()]
        others = [
            other for other in next(iter(rows.values()))[0]
            if other != key and len({repr(config[other]) for config, _ in rows.values()}) > 1
        ]  # fmt: skip
        for number, (config, interval) in rows.items():
            label = " ".join(f"{o.rpartition('.')[2]}={show_value(config[o])}" for o in others)
            lines[label][config[key]] = (number, interval)
        is_few = len(lines) <= MOST_LINES and len(rows) >= 2 * len(lines)
        joined = (is_few or len(lines) == 1) and all(map(is_number, values))
        series = []
        for index, (label, points) in enumerate(lines.items()):
            ordered = sorted(points, key=lambda value: (values.index(value), value)[joined])
            ring = next((v for v, (number, _) in points.items() if number == result.best), None)
            shown = {value: points[value][1] for value in ordered}
            shade, text = (index, label) if is_few else (0, "")
            series.append(Series(shown, text, shade, joined=joined, ranges=True, ring=ring))
        along = key.replace("algorithm.", "")
        name = metric_name(metric)
        plots.append(Plot(series, along, name, values, is_share=metric.is_share))
    when = f"round {plan.how}" if plan.at == "best" else "last round"
    title = [plan.title, when, spread_label(interval for _, interval in rows.values())]
    figure_curves(plots, path, heading=", ".join(filter(None, title)))


def _by_axis(result: SweepOutcome, number: int) -> dict[str, Any]:
    """Return a configuration by axis; the values of keys that vary together become one text."""
    config = result.configs[number]
    values = {axis.key: [config[key] for key in axis.keys] for axis in result.plan.axes}
    return {
        key: several[0]
        if len(several) == 1 and not isinstance(several[0], Mapping | list)
        else ", ".join(map(show_value, several))
        for key, several in values.items()
    }


def best_command(study: Study) -> str:
    """Return the command that runs the best configuration alone, with the first seed."""
    flags = [f"--plugin {shlex.quote(p.given)}" for p in read_plugins(study.plan.plugins)]
    return " ".join(["python -m fedray.run", shlex.quote(str(study.home / BEST)), *flags])


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
    value = float(result.trials.loc[result.best, metric.name])
    return value if value == value else None


def _conclude_sweep(study: Study) -> Conclusion:
    """Return a sweep's description: its best configuration, and counts of trials by status."""
    result, plan = sweep_outcome(study), study.plan
    count = f"{len(result.configs)} configurations"
    if result.best is None:
        return Conclusion({}, f"{count}\n\n{plan.title}: {plan.answers}")
    note = [
        f"{count}: **{best_line(result)}**",
        f"{plan.title}: {plan.answers}",
        *result.notes,
        f"The best one alone: `{best_command(study)}`",
    ]
    counts = result.trials["status"].value_counts()
    metrics = {f"trials_{end}": float(counts.get(end, 0)) for end in ("finished", "failed")}
    metrics["best_objective"] = float(result.trials.loc[result.best, "objective"])
    if (tested := best_test(result)) is not None:
        metrics["best_test"] = tested
        if result.metric.name == HEADLINE:
            metrics[BEST_METRIC] = tested
    return Conclusion(metrics if study.is_complete else {}, "\n\n".join(note))
