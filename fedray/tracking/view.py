"""A shared view of MLflow's table of runs that shows the main metrics.

MLflow hides all metrics by default. A shared view is stored as a tag of the experiment, and opened
by an address with its name.
"""

from __future__ import annotations

import json

from fedray.tracking.describe import BEST_METRIC, DATA_TAG, METHOD_TAG, SEED_TAG, TOTALS

VIEW = "accuracy"
"""Name of the view in addresses."""
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
PAGES = "workflowType=machine_learning"
"""Selects MLflow's menu for model training."""
COLUMNS = (
    ("metrics", BEST_METRIC),
    ("metrics", "objective"),
    ("tags", METHOD_TAG),
    ("tags", DATA_TAG),
    ("tags", SEED_TAG),
    ("metrics", TOTALS[0]),
)
"""Kind and name of each column. MLflow sorts the metrics by name, so `BEST_METRIC` comes first."""


def view_state() -> str:
    """Return the content of the tag `VIEW_TAG`."""
    columns = [f"{kind}.`{name}`" for kind, name in COLUMNS]
    return json.dumps({"selectedColumns": columns})


def view_path(experiment_id: str) -> str:
    """Return the path of the view on a tracking server."""
    return f"/#/experiments/{experiment_id}/runs?viewStateShareKey={VIEW}&{PAGES}"
