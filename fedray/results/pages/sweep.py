"""The table of a sweep's configurations, as a section of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fedray.results.labels import short_names, show_value
from fedray.results.pages.cells import metric_name, spread_cell, spread_label
from fedray.results.pages.page import Section
from fedray.results.paired import Interval
from fedray.storage.metric import Metric
from fedray.units import size_of, time_of

if TYPE_CHECKING:
    import pandas


def trials_section(
    trials: pandas.DataFrame,
    keys: Sequence[str],
    columns: Sequence[Mapping[int, Interval | None]],
    metric: Metric,
    notes: Sequence[str] = (),
    *,
    best: int | None = None,
) -> Section:
    """Return the table of configurations, the best marked by a star, notes, and why some failed.

    Args:
        trials: a row per configuration: the swept keys, `status`, `reason`, `round`, `bytes` and
            `seconds`.
        keys: the swept keys.
        columns: intervals over seeds by configuration, of the metric that selects the best one. If
            validation images select it, the intervals on the test follow.
        metric: the metric of the table.
        notes: sentences about the best configuration.
        best: the best configuration; None: nothing is chosen.
    """
    names = short_names(keys)
    numbers = ["validation", "test"] if len(columns) > 1 else [metric_name(metric)]
    rows, failed = [], dict[str, list[str]]()
    for number, row in trials.to_dict("index").items():
        cells = [spread_cell(column[number], metric) for column in columns]
        if row["status"] == "failed":
            failed.setdefault(row["reason"], []).append(str(number))
        if row["status"] in ("failed", "pending", "running"):
            state = "failed" if row["status"] == "failed" else "not finished"
            cells = [state, *[""] * (len(cells) - 1)]
        values = [show_value(row[key]) for key in names]
        costs = [row["round"], time_of(row["seconds"]), size_of(row["bytes"])]
        rows.append([f"{'* ' if number == best else ''}{number}", *values, *cells, *costs])
    header = ["trial", *names.values(), *numbers, "round", "time", "traffic"]
    caption = [metric_name(metric), spread_label(columns[0].values())]
    reasons = [f"trial {', '.join(who)} failed: {reason}" for reason, who in failed.items()]
    below = [", ".join(filter(None, caption)) + "."]
    return Section("", (), header, rows, below, [*notes, *reasons])
