"""`TrackedStudy`: what MLflow shows of a study, written into the study's folder by its process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedray.base.errors import UserError, one_line
from fedray.storage.files import read_regular, write_atomic
from fedray.tracking.describe import (
    BEST_METRIC,
    DATA_TAG,
    METHOD_TAG,
    SEED_TAG,
    TOTALS,
    RunStatus,
    TrackedRun,
)

FILE = "mlflow.json"
"""File in a study's folder with its `TrackedStudy`."""
OBJECTIVE = "objective"
"""Metric of a study's run: the value that chooses a configuration."""
VIEW = "accuracy"
"""Name in addresses of the view of an experiment that is no study."""
COLUMNS = (
    f"metrics.`{BEST_METRIC}`",
    f"tags.`{METHOD_TAG}`",
    f"tags.`{DATA_TAG}`",
    f"tags.`{SEED_TAG}`",
    f"metrics.`{TOTALS[0]}`",
)
"""Columns of a view; MLflow hides all metrics and params by default."""


@dataclass(frozen=True)
class TrackedMember:
    """A run of a study, beyond what its own folder tells.

    Attributes:
        name: the displayed name; "": that of a run without a study.
        tags: further tags by name.
        metrics: further final numbers by name, such as `OBJECTIVE`.
        status: how the study ended the run; None: as the run's folder tells.
    """

    name: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    status: RunStatus | None = None

    def described(self, run: TrackedRun) -> TrackedRun:
        """Return the run with this."""
        tags, metrics = {**run.tags, **self.tags}, {**run.metrics, **self.metrics}
        name, status = self.name or run.name, self.status or run.status
        return replace(run, name=name, tags=tags, metrics=metrics, status=status)


@dataclass(frozen=True)
class TrackedStudy:
    """The content of a study in MLflow.

    Attributes:
        parent: the parent of the study's runs; its files are relative to the study's folder.
        runs: the study's runs by their folders, relative to the study's; they need not exist yet.
        question: description of a new experiment; "" for none.
        swept: the swept keys, as params; empty for a table.
        is_min: whether smaller objectives are better.
    """

    parent: TrackedRun
    runs: Mapping[str, TrackedMember]
    question: str = ""
    swept: Sequence[str] = ()
    is_min: bool = False

    def write(self, home: Path) -> None:
        """Replace the file in the study's folder in one step."""
        write_atomic(home / FILE, TypeAdapter(TrackedStudy).dump_json(self).decode())

    @classmethod
    def read(cls, home: Path) -> TrackedStudy | None:
        """Read the file in a study's folder; return None if there is none.

        Raises:
            UserError: if the file cannot be read.
        """
        path = home / FILE
        try:
            study = TypeAdapter(cls).validate_json(read_regular(path))
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise UserError(f"{path} cannot be read: {one_line(error)}") from None
        files = [home / path.name for path in study.parent.files]  # no other files
        runs = {os.path.abspath(home / name): run for name, run in study.runs.items()}
        return replace(study, parent=replace(study.parent, files=files), runs=runs)


def saved_view(study: TrackedStudy | None = None, parent_id: str = "") -> str:
    """Return a view of MLflow's table of runs; its state is `ExperimentPageUIState` of MLflow 3.17.

    Of a study, it shows the runs below its parent; of a sweep, the swept keys and the best on top.
    """
    columns, state, name, began_ms = list(COLUMNS), dict[str, Any](), VIEW, 0
    if study is not None:
        name, began_ms = study.parent.name, study.parent.started_ms  # the latest is listed first
        objective, swept = f"metrics.`{OBJECTIVE}`", [f"params.`{key}`" for key in study.swept]
        columns = [objective, *swept, *columns]
        state["searchFilter"] = f"tags.`mlflow.parentRunId` = '{parent_id}'"
        state |= {"orderByKey": objective, "orderByAsc": study.is_min} if swept else {}
    state["selectedColumns"] = columns
    return json.dumps({"name": name, "createdAt": began_ms, "state": json.dumps(state)})


def view_path(experiment_id: str, view: str) -> str:
    """Return the path of a view on a tracking server, in MLflow's menu for model training."""
    query = f"viewStateShareKey={view}&workflowType=machine_learning"
    return f"/#/experiments/{experiment_id}/runs?{query}"
