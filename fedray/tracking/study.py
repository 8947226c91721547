"""`TrackedStudy`: what MLflow shows of a study, written into the study's folder by its process."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedray.errors import UserError, one_line
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

FILE = "tracking.json"
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
class Member:
    """A run of a study, beyond what its own folder tells.

    Attributes:
        name: the displayed name.
        tags: further tags by name.
        metrics: further final numbers by name, such as `OBJECTIVE`.
        status: how the study ended the run; None: as the run's folder tells.
    """

    name: str
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    status: RunStatus | None = None


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
    runs: Mapping[str, Member]
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
            study = TypeAdapter(cls).validate_json(read_regular(path)) if path.exists() else None
        except (OSError, ValidationError) as error:
            raise UserError(f"{path} cannot be read: {one_line(error)}") from None
        if study is None:
            return None
        files = [home / name for name in study.parent.files]
        runs = {os.path.abspath(home / name): run for name, run in study.runs.items()}
        return replace(study, parent=replace(study.parent, files=files), runs=runs)

    def view(self, parent_id: str) -> str:
        """Return the saved view of the study's runs: of a sweep, its keys and the best on top."""
        columns = [f"metrics.`{OBJECTIVE}`", *(f"params.`{key}`" for key in self.swept)]
        state: dict[str, Any] = {"searchFilter": f"tags.`mlflow.parentRunId` = '{parent_id}'"}
        if self.swept:
            state |= {"orderByKey": columns[0], "orderByAsc": self.is_min}
        return saved_view(self.parent.name, self.parent.started_ms, columns, state)


def saved_view(name: str, began_ms: int, columns: Sequence[str], state: Mapping[str, Any]) -> str:
    """Return a view of MLflow's table of runs; `state` is `ExperimentPageUIState` of MLflow 3.17.

    Args:
        name: the name in MLflow's list of views.
        began_ms: milliseconds since the epoch; MLflow lists the latest view first.
        columns: what the table shows before `COLUMNS`.
        state: filter and order of the table.
    """
    state = {"selectedColumns": [*columns, *COLUMNS], **state}
    return json.dumps({"name": name, "createdAt": began_ms, "state": json.dumps(state)})


def view_path(experiment_id: str, view: str) -> str:
    """Return the path of a view on a tracking server, in MLflow's menu for model training."""
    query = f"viewStateShareKey={view}&workflowType=machine_learning"
    return f"/#/experiments/{experiment_id}/runs?{query}"
