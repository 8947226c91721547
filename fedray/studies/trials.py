"""The results of a sweep: frame of numbers, table, figure, best configuration."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from fedray.config import read_plugins
from fedray.results.design import Config
from fedray.results.labels import config_label, is_number, short_names, show_value
from fedray.results.numbers import Numbers
from fedray.results.pages.cells import (
    cost_text,
    metric_name,
    range_text,
    short_name,
    spread_cell,
    spread_label,
)
from fedray.results.pages.figures import Plot, Series, figure_curves
from fedray.results.pages.page import Section
from fedray.results.paired import Interval, Side, t_interval
from fedray.results.record import frame_lines
from fedray.storage.metric import Metric, find_metric
from fedray.studies.cell import DECIMALS, TriedConfig, rank
from fedray.studies.plan import StudyPlan, known_metrics
from fedray.studies.space import beyond
from fedray.studies.study import Study

BEST = "best.yaml"
"""File of a sweep's best configuration, with the first seed."""
MOST_LINES = 6
"""Maximal number of combinations of other keys drawn as lines; more become points."""
ENDED = ("finished", "stopped", "running", "pending")
"""What `status` of the frame says of a run that did not fail."""
TIE = 0.1**DECIMALS
"""Means that lie closer are equal."""


@dataclass(frozen=True, eq=False)
class SweepOutcome:
    """The results of a sweep; a configuration is named by its number, "0" for the first.

    Attributes:
        study: the sweep.
    """

    study: Study

    @property
    def plan(self) -> StudyPlan:
        """The plan of the sweep."""
        return self.study.plan

    @property
    def chooser(self) -> Metric:
        """The metric that chooses."""
        return self.metrics[0]

    @cached_property
    def metrics(self) -> list[Metric]:
        """The metric that chooses, and those of the sweep."""
        chooser = self.plan.chosen_by(next(iter(self.plan.rows)))
        return [self.declared(name) for name in dict.fromkeys([chooser, *self.plan.metrics])]

    def declared(self, name: str) -> Metric:
        """Return the declaration of a metric."""
        return self.study.declared.get(name) or find_metric(name, known_metrics()) or Metric(name)

    @cached_property
    def configs(self) -> dict[str, Config]:
        """The configurations by name, in the order in which they were tried."""
        return {str(number): config for number, config in enumerate(self.study.configs)}

    @cached_property
    def numbers(self) -> Numbers:
        """All runs as one frame: rows are configurations, whose keys are its last columns."""
        study, [place], lines = self.study, self.plan.places, list[list[Any]]()
        names = {metric: metric.name for metric in self.metrics}
        for (row, config), seed in product(self.configs.items(), self.plan.report.seeds):
            spec = self.plan.run(place, config, "tuning", seed)
            status, folder = study.status_of(spec), str(study.folder(spec.key))
            where, end = (row, place.column, seed), study.end_of(spec) or status
            lines += [
                [*line, *config.values()] for line in frame_lines(where, end, names, folder, status)
            ]
        keys = [key for axis in self.plan.axes for key in axis.keys]
        return Numbers.of(lines, self.plan.columns, further=keys)

    def interval(self, row: str, metric: Metric) -> Interval | None:
        """Return a configuration's mean over all seeds; None while a seed is missing."""
        interval = self.numbers.interval(Side(row, None), metric.name)
        return interval if interval and interval.n == len(self.plan.report.seeds) else None

    # --- the best configuration -------------------------------------------------------------------

    @cached_property
    def tried(self) -> dict[str, TriedConfig]:
        """The configurations that have a result of every seed, best first."""
        [state] = self.study.states
        tried = {repr(of.config): of for of in state.tried}
        names = {repr(config): name for name, config in self.configs.items()}
        return {names[key]: tried[key] for key in map(repr, rank(state.tried))}

    @property
    def best(self) -> str | None:
        """The best configuration; ties go to the earlier one. None without a result."""
        return next(iter(self.tried), None)

    @property
    def notes(self) -> list[str]:
        """Sentences about how sure the best configuration is; none while runs are missing."""
        if self.best is None or not self.study.is_complete:
            return []
        scores = {
            name: t_interval([score for score in tried.scores.values() if score is not None])
            for name, tried in self.tried.items()
        }
        first, notes = scores[self.best], list[str]()
        if len(scores) > 1 and first.n == 1:
            notes = ["each configuration ran with one seed, so chance may decide which one is best"]
        elif len(scores) > 1:
            within = sum(score.mean >= first.spread[0] for score in scores.values()) - 1
            notes = [f"{within or 'no'} other configuration(s) lie within the spread of the best"]
        if ties := [name for name, of in scores.items() if abs(of.mean - first.mean) < TIE][1:]:
            notes.append(f"trial(s) {', '.join(ties)} tie with trial {self.best}, the first")
        edges = beyond(self.plan.axes, self.study.configs, self.configs[self.best])
        return [*notes, *(f"the best lies at an edge: {edge}" for edge, _ in edges)]

    def best_line(self) -> str:
        """Return a line with the best configuration and its numbers."""
        if self.best is None:
            return ""
        found = ((metric, self.interval(self.best, metric)) for metric in self.metrics[:2])
        texts = [f"{metric_name(metric)} {spread_cell(value, metric)}" for metric, value in found]
        return f"{self.plan.how}: {config_label(self.configs[self.best])}: {', '.join(texts)}"

    def best_command(self) -> str:
        """Return the command that runs the best configuration alone, with the first seed."""
        flags = [f"--plugin {shlex.quote(p.given)}" for p in read_plugins(self.plan.plugins)]
        path = shlex.quote(str(self.study.home / BEST))
        return " ".join(["python -m fedray.run", path, *flags])


def trials_section(sweep: SweepOutcome) -> Section:
    """Return the table of configurations, the best marked by a star, notes, and why some failed."""
    names = short_names(key for axis in sweep.plan.axes for key in axis.keys)
    rows, failed, shown = [], defaultdict[str, list[str]](list), list[Interval | None]()
    frame = sweep.numbers.frame
    runs = frame[frame["metric"] == sweep.chooser.name]
    for name, config in sweep.configs.items():
        of = runs[runs["row"] == name]
        intervals = [sweep.interval(name, metric) for metric in sweep.metrics]
        shown.append(intervals[0])
        cells = [spread_cell(*pair) for pair in zip(intervals, sweep.metrics, strict=True)]
        reasons = [end for end in of["status"] if end not in ENDED]
        if reasons:
            failed[reasons[0]].append(name)
        if intervals[0] is None:
            cells = ["failed" if reasons else "not finished", *[""] * (len(cells) + 1)]
        else:
            cells += [range_text(of["round"]), cost_text(of["seconds"], of["bytes"])]
        star = "* " if name == sweep.best else ""
        rows.append([f"{star}{name}", *(show_value(config[key]) for key in names), *cells])
    header = ["trial", *names.values(), *map(short_name, sweep.metrics), "round", "a run"]
    caption = ", ".join(filter(None, [*map(metric_name, sweep.metrics), spread_label(shown)]))
    reasons = [f"trial {', '.join(who)} failed: {reason}" for reason, who in failed.items()]
    return Section("", (), header, rows, [f"{caption}."], [*sweep.notes, *reasons])


# --- the figure -----------------------------------------------------------------------------------


def draw_sweep(sweep: SweepOutcome, path: Path) -> None:
    """Draw the sweep's first metric over the searched keys, a panel for each."""
    plan, metric = sweep.plan, sweep.declared(sweep.plan.metrics[0])
    intervals = {name: sweep.interval(name, metric) for name in sweep.configs}
    found = {name: of for name, of in intervals.items() if of is not None}
    if not found:
        return
    plots = [_panel(sweep, axis.key, metric, found) for axis in plan.axes]
    when = f"round {plan.how}" if plan.at == "best" else "last round"
    title = [plan.title, when, spread_label(found.values())]
    figure_curves(plots, path, heading=", ".join(filter(None, title)))


def _panel(sweep: SweepOutcome, key: str, metric: Metric, found: Mapping[str, Interval]) -> Plot:
    """Return the panel of an axis: a line for each combination of the other keys, if they are few.

    Otherwise configurations are points.
    """
    places = {name: _by_axis(sweep.plan, sweep.configs[name]) for name in found}
    values = [place[key] for place in places.values()]
    others = [
        other for other in places[next(iter(places))]
        if other != key and len({repr(place[other]) for place in places.values()}) > 1
    ]  # fmt: skip
    lines = defaultdict[str, dict[Any, str]](dict)
    for name, place in places.items():
        label = " ".join(f"{o.rpartition('.')[2]}={show_value(place[o])}" for o in others)
        lines[label][place[key]] = name
    is_few = len(lines) <= MOST_LINES and len(found) >= 2 * len(lines)
    joined = (is_few or len(lines) == 1) and all(map(is_number, values))
    series = []
    for index, (label, names) in enumerate(lines.items()):
        ordered = sorted(names, key=lambda value: (values.index(value), value)[joined])
        points = {value: found[names[value]] for value in ordered}
        ring = next((value for value, name in names.items() if name == sweep.best), None)
        shade, text = (index, label) if is_few else (0, "")
        series.append(Series(points, text, shade, joined=joined, ranges=True, ring=ring))
    along = key.replace("algorithm.", "")
    return Plot(series, along, metric_name(metric), values, is_share=metric.is_share)


def _by_axis(plan: StudyPlan, config: Config) -> dict[str, Any]:
    """Return a configuration by axis; the values of keys that vary together become one text."""
    values = {axis.key: [config[key] for key in axis.keys] for axis in plan.axes}
    return {
        key: several[0]
        if len(several) == 1 and not isinstance(several[0], Mapping | list)
        else ", ".join(map(show_value, several))
        for key, several in values.items()
    }
