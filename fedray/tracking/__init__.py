"""MLflow behind a small protocol: one MLflow run per federated run, and the run never waits for it.

    protocol.py   Tracker, the four calls that a run makes, and NullTracker
    describe.py   what of a run MLflow shows: params, tags, metrics; a run's key
    view.py       which columns MLflow's run table shows first
    notes.py      what stands in a run's description
    store.py      the only place that talks to MLflow: everything there is done once, however often
    models.py     a run's models, where it is asked to log them
    live.py       MlflowTracker: a queue and one writing thread
    uploading.py  what a run could not log, later: `python -m fedray.tracking upload DIR`

Importing this package imports neither MLflow nor torch.
"""

from fedray.tracking.describe import (
    DATA_TAG,
    FOLDER_TAG,
    IDENTITY_TAG,
    METHOD_TAG,
    SEED_TAG,
    DataInput,
    data_of,
    describe_run,
    experiment_name,
    grouped,
    run_key,
    run_name,
    source_tags,
)
from fedray.tracking.live import MlflowTracker, run_tracker, tracker_for, ui_hint
from fedray.tracking.notes import folder_note, picture, table
from fedray.tracking.protocol import NullTracker, Tracker
from fedray.tracking.store import resolve_uri, ui_command
from fedray.tracking.uploading import upload

__all__ = [
    "DATA_TAG",
    "DataInput",
    "FOLDER_TAG",
    "IDENTITY_TAG",
    "METHOD_TAG",
    "MlflowTracker",
    "NullTracker",
    "SEED_TAG",
    "Tracker",
    "data_of",
    "describe_run",
    "experiment_name",
    "folder_note",
    "grouped",
    "picture",
    "resolve_uri",
    "run_key",
    "run_name",
    "run_tracker",
    "source_tags",
    "table",
    "tracker_for",
    "ui_command",
    "ui_hint",
    "upload",
]
