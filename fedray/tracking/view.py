"""What MLflow's run table shows first: a view that is kept with the experiment.

MLflow hides all metrics until somebody ticks them. A view that is shared is a tag of the experiment
that holds the state of its page; an address with the view's name opens it.
"""

from __future__ import annotations

import json

from fedray.records import HEADLINE, VALIDATION
from fedray.tracking.describe import DATA_TAG, METHOD_TAG, SEED_TAG, TOTALS, grouped

VIEW = "accuracy"
"""The view's name in addresses."""
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
PAGES = "workflowType=machine_learning"
"""Which of MLflow's two menus stands beside it: that of model training."""
COLUMNS = (
    ("metrics", "objective"),
    ("metrics", grouped(HEADLINE)),
    ("metrics", grouped(f"{VALIDATION}{HEADLINE}")),
    ("tags", METHOD_TAG),
    ("tags", DATA_TAG),
    ("tags", SEED_TAG),
    ("metrics", TOTALS[0]),
)
"""Kind and name of the columns, the first one first."""


def view_state() -> str:
    """The state of the page as its tag holds it."""
    columns = [f"{kind}.`{name}`" for kind, name in COLUMNS]
    return json.dumps({"selectedColumns": columns})


def view_path(experiment_id: str) -> str:
    """Where a tracking server shows the view, after its address."""
    return f"/#/experiments/{experiment_id}/runs?viewStateShareKey={VIEW}&{PAGES}"
