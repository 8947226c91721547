"""A sweep's parent run in MLflow, without Ray: what is final is there once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedray.config import dump_yaml
from fedray.sweep.ledger import Ledger
from fedray.sweep.runs import SweepRuns
from fedray.sweep.spec import plan_sweep
from fedray.tracking import MlflowTracker


def test_an_interrupted_sweep_has_no_final_numbers_and_a_resumed_one_has_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    (tmp_path / "tune").mkdir()
    sweep = {
        "answers": "nothing",
        "space": {"lr": {"grid": [0.1, 0.2]}},
        "scales": {"laptop": {"experiment": "fedtsp_digits"}},
    }
    (tmp_path / "tune" / "tiny.yaml").write_text(dump_yaml(sweep))
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    ledger = Ledger(tmp_path / "home", plan_sweep("tiny"))
    ledger.home.mkdir()
    trials = [ledger.add(number, {"lr": lr}) for number, lr in enumerate((0.1, 0.2))]
    for ended in (1, 2, 2):  # interrupted after the first trial, resumed, uploaded
        for trial in trials[:ended]:
            trial.status, trial.objective = "finished", 0.5 + trial.number
        ledger.status = "finished" if ended == 2 else "running"
        tracker = MlflowTracker(uri, "tiny")
        SweepRuns(ledger, tracker).end()
        tracker.close()
        assert tracker.failure is None

    client = MlflowClient(uri)
    (parent,) = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    assert parent.info.status == "FINISHED"
    for name, value in {"trials_finished": 2, "trials_failed": 0, "best_objective": 1.5}.items():
        points = client.get_metric_history(parent.info.run_id, name)
        assert [(point.step, point.value) for point in points] == [(0, value)]
