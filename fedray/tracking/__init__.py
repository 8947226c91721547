"""Logging of runs to MLflow. The files of a run are complete without it.

    describe.py      name, params, tags, metrics and data of a run in MLflow; the key of a run
    mlflow_store.py  `Store.sync` sends one run to MLflow; the only code that writes to MLflow
    process.py       `StoreProcess`, a `Store` in its own process
    sync.py          `tracked_run` reads a folder; `Tracker` syncs in a thread during a run
    notes.py         the description of a run
    models.py        the models of a run as an MLflow model
    view.py          saved views of MLflow's table of runs

Importing this package imports neither MLflow nor torch.
"""

from fedray.tracking.describe import (
    BEST_METRIC,
    DATA_TAG,
    FOLDER_TAG,
    IDENTITY_TAG,
    METHOD_TAG,
    SEED_TAG,
    VIEW_LINK,
    TrackedRun,
    as_params,
    data_of,
    describe_run,
    experiment_name,
    grouped,
    read_metadata,
    run_key,
    run_name,
    source_tags,
    valid_name,
)
from fedray.tracking.mlflow_store import (
    Added,
    Store,
    reason,
    refused,
    resolve_uri,
    sqlite_path,
    ui_command,
)
from fedray.tracking.notes import picture
from fedray.tracking.sync import (
    Tracker,
    run_tracker,
    say,
    start_process,
    started_ms,
    tracked_run,
    tracker_for,
    uri_of,
    with_artifacts,
)
from fedray.tracking.view import OBJECTIVE, SPREAD, trials_view
