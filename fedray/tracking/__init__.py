"""MLflow behind a small protocol: one MLflow run per federated run, and the run never waits for it.

    protocol.py   Tracker, the four calls that a run makes, and NullTracker
    describe.py   what of a run MLflow shows: params, tags, metrics; a run's key
    store.py      the only place that talks to MLflow: everything there is done once, however often
    live.py       MlflowTracker: a queue and one writing thread
    uploading.py  what a run could not log, later: `python -m fedray.tracking upload DIR`

Importing this package imports neither MLflow nor torch.
"""

from fedray.tracking.describe import IDENTITY_TAG, describe_run, run_key
from fedray.tracking.live import MlflowTracker, tracker_for, ui_hint
from fedray.tracking.protocol import NullTracker, Tracker
from fedray.tracking.store import resolve_uri, ui_command
from fedray.tracking.uploading import upload

__all__ = [
    "IDENTITY_TAG",
    "MlflowTracker",
    "NullTracker",
    "Tracker",
    "describe_run",
    "resolve_uri",
    "run_key",
    "tracker_for",
    "ui_command",
    "ui_hint",
    "upload",
]
