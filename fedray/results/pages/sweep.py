"""The table of a sweep's trials, as a section of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedray.results.labels import short_names, show_value
from fedray.results.pages.cells import metric_name, spread_cell, spread_label
from fedray.results.pages.page import Section
from fedray.results.paired import Interval
from fedray.storage.metric import Metric
from fedray.units import size_of, time_of


@dataclass(frozen=True)
class TrialLine:
    """A trial and its outcome.

    Attributes:
        number: number of the trial.
        config: values of the swept keys.
        state: "failed" or "not finished"; "" for a finished trial.
        reason: why the trial failed.
        objective: interval over seeds of the metric that selects the best trial.
        test: the same metric on test images, in the same rounds.
        round: round of the objective: "9", or "9-10" for several seeds.
        bytes: traffic of a run.
        seconds: duration of the trial's runs in this invocation.
        is_best: whether this is the best trial.
    """

    number: int
    config: Mapping[str, Any]
    state: str
    reason: str | None
    objective: Interval | None
    test: Interval | None
    round: str
    bytes: float
    seconds: float
    is_best: bool


def trials_section(
    lines: Sequence[TrialLine],
    keys: Sequence[str],
    metric: Metric,
    notes: Sequence[str] = (),
    *,
    validates: bool,
) -> Section:
    """Return the table of trials, the best marked by a star, notes, and the reasons of failures.

    Args:
        lines: the trials.
        keys: the swept keys.
        metric: the metric of the table.
        notes: sentences about the best trial.
        validates: whether validation images select the best trial; the test then is an extra
            column.
    """
    names = short_names(keys)
    numbers = ["validation", "test"] if validates else [metric_name(metric)]
    header = ["trial", *names.values(), *numbers, "round", "time", "traffic"]
    rows = []
    for line in lines:
        intervals = [line.objective, line.test] if validates else [line.objective]
        rows.append(
            [
                f"{'* ' if line.is_best else ''}{line.number}",
                *(show_value(line.config[key]) for key in names),
                *(
                    [line.state, *[""] * (len(intervals) - 1)]
                    if line.state
                    else _cells(intervals, metric)
                ),
                line.round,
                time_of(line.seconds),
                size_of(line.bytes),
            ]
        )
    reasons: dict[str, list[str]] = {}
    for line in lines:
        if line.reason is not None:
            reasons.setdefault(line.reason, []).append(str(line.number))
    items = [f"trial {', '.join(who)} failed: {reason}" for reason, who in reasons.items()]
    return Section("", (), header, rows, [_caption(metric, lines)], [*notes, *items])


def _cells(intervals: Sequence[Interval | None], metric: Metric) -> list[str]:
    return [spread_cell(interval, metric) for interval in intervals]


def _caption(metric: Metric, lines: Sequence[TrialLine]) -> str:
    """Return the caption: metric, interval or range, and number of seeds."""
    how = spread_label(line.objective for line in lines)
    return ", ".join(filter(None, (metric_name(metric), how))) + "."
