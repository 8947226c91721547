"""Runs in MLflow. The files of a run are its result; MLflow holds the same and may be missing.

    describe.py      what MLflow shows of a run: name, params, tags, metrics, data; a run's key
    mlflow_store.py  `Store.sync` makes MLflow hold one run; the only place that writes to it
    process.py       `StoreProcess`, a `Store` in a process of its own
    sync.py          `tracked_run` reads a folder; `Tracker` syncs in a thread while a run goes
    notes.py         the description of a run
    models.py        the models of a run as an MLflow model
    view.py          the columns that MLflow's table of runs shows first

Importing this package imports neither MLflow nor torch.
"""

from fedray.tracking.describe import (
    DATA_TAG,
    FOLDER_TAG,
    IDENTITY_TAG,
    METHOD_TAG,
    SEED_TAG,
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
from fedray.tracking.mlflow_store import Added, Store, reason, resolve_uri, ui_command
from fedray.tracking.notes import picture
from fedray.tracking.sync import (
    Tracker,
    run_tracker,
    start_process,
    started_ms,
    tracked_run,
    tracker_for,
    with_artifacts,
)
