"""Logging of runs to MLflow. The files of a run are complete without it.

    describe.py      name, params, tags, metrics, data and description of a run in MLflow; its key
    folder.py        `tracked_run` reads them from a run's folder
    mlflow_store.py  `Store.sync` sends one run to MLflow; the only code that writes to MLflow
    uploader.py      `Uploader` sends what has changed; `Follower` repeats this for a folder
    tracker.py       `Tracker`, the child process `fedray upload --follow` of a running experiment
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
    RunStatus,
    TrackedRun,
    as_params,
    data_of,
    describe_run,
    experiment_name,
    grouped,
    picture,
    read_metadata,
    run_key,
    run_name,
    source_tags,
    valid_name,
)
from fedray.tracking.folder import started_ms, tracked_run, uri_of
from fedray.tracking.mlflow_store import (
    Added,
    Store,
    reason,
    refused,
    resolve_uri,
    sqlite_path,
    ui_command,
)
from fedray.tracking.tracker import Tracker, say, tracker_for
from fedray.tracking.uploader import Follower, NotTaken, Upload, Uploader
from fedray.tracking.view import OBJECTIVE, SPREAD, trials_view
