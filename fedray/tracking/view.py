"""Saved views of MLflow's table of runs, which hides all metrics and params by default.

A saved view is stored as a tag of the experiment. MLflow lists it under *Views*, and an address
with its name opens it. Its content is the state of MLflow's page (`ExperimentPageUIState` in the
sources of MLflow 3.17).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedray.tracking.describe import BEST_METRIC, DATA_TAG, METHOD_TAG, SEED_TAG, TOTALS

VIEW = "accuracy"
"""Name in addresses of the view of an experiment that is no sweep."""
VIEW_TAG = "mlflow.sharedViewState."
"""Prefix of the tags that hold views."""
PAGES = "workflowType=machine_learning"
"""Selects MLflow's menu for model training."""
CHARTS = "compareRunsMode=CHART"
"""Selects the charts of a view instead of its table."""
OBJECTIVE, SPREAD = "objective", "objective_std"
"""Metrics of a trial: the mean over seeds of what the sweep compares, and its standard deviation.

The spread is missing if there is one seed."""
COLUMNS = (
    ("metrics", BEST_METRIC),
    ("metrics", OBJECTIVE),
    ("tags", METHOD_TAG),
    ("tags", DATA_TAG),
    ("tags", SEED_TAG),
    ("metrics", TOTALS[0]),
)
"""Kind and name of each column. MLflow sorts the metrics by name, so `BEST_METRIC` comes first."""
MOST_SCATTERS = 4
"""Largest number of swept params with a chart of their own."""


def runs_view() -> dict[str, Any]:
    """Return the view of runs: their accuracy, method, data and seed."""
    return {"selectedColumns": [f"{kind}.`{name}`" for kind, name in COLUMNS]}


def trials_view(
    params: Sequence[str], metrics: Sequence[str], *, of_numbers: bool, is_min: bool
) -> dict[str, Any]:
    """Return the view of a sweep's trials: sorted by objective, and charts over the swept params.

    Args:
        params: the swept params in MLflow.
        metrics: the metrics of a trial, `OBJECTIVE` first.
        of_numbers: whether all values of the params are numbers, which a contour plot needs.
        is_min: whether smaller objectives are better.
    """
    widths = {f"params.`{name}`": 60 + 8 * len(name) for name in params}
    widths |= {f"metrics.`{name}`": 60 + 8 * len(name) for name in metrics}
    axes = [{"key": name, "type": "PARAM"} for name in params]
    objective = {"key": OBJECTIVE, "type": "METRIC"}
    charts: list[dict[str, Any]] = [
        {"type": "SCATTER", "xaxis": axis, "yaxis": objective} for axis in axes[:MOST_SCATTERS]
    ]
    charts += [
        {"type": "PARALLEL", "selectedParams": [*params], "selectedMetrics": [OBJECTIVE]},
        {"type": "BAR", "metricKey": OBJECTIVE},
    ]
    if len(axes) == 2 and of_numbers:
        x, y = axes
        charts.insert(0, {"type": "CONTOUR", "xaxis": x, "yaxis": y, "zaxis": objective})
    common = {"metricSectionId": "trials", "deleted": False, "isGenerated": False}
    common["runsCountToCompare"] = 100
    return {
        "orderByKey": f"metrics.`{OBJECTIVE}`",
        "orderByAsc": is_min,
        "selectedColumns": [*widths],
        "columnOrder": [*widths],
        "columnWidths": widths,  # in pixels
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": [
            {"uuid": f"chart-{number}", **common, **chart} for number, chart in enumerate(charts)
        ],
        "compareRunSections": [
            {"uuid": "trials", "name": "trials", "display": True, "isReordered": True, "columns": 2}
        ],
        "isAccordionReordered": True,
    }


def saved_view(name: str, began_ms: int, state: Mapping[str, Any]) -> str:
    """Return the content of a view's tag.

    Args:
        name: the name in MLflow's list of views.
        began_ms: milliseconds since the epoch; MLflow lists the latest view first.
        state: the state of the page.
    """
    return json.dumps({"name": name, "createdAt": began_ms, "state": json.dumps(state)})


def view_path(experiment_id: str, view: str = VIEW) -> str:
    """Return the path of a view on a tracking server."""
    return f"/#/experiments/{experiment_id}/runs?viewStateShareKey={view}&{PAGES}"
