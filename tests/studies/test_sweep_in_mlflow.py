"""A sweep in MLflow: what is final is there once, and no password is anywhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedray.config import dump_yaml
from fedray.studies.space import plan_sweep
from fedray.studies.study import Ledger
from fedray.sweep.command import hold
from fedray.sweep.runs import SweepRuns, sweep_runs
from fedray.tracking import Tracker


def write_sweep(folder: Path) -> None:
    (folder / "tune").mkdir()
    sweep = {
        "answers": "nothing",
        "space": {"lr": {"grid": [0.1, 0.2]}},
        "scales": {"laptop": {"experiment": "fedtsp_digits"}},
    }
    (folder / "tune" / "tiny.yaml").write_text(dump_yaml(sweep))


def test_an_interrupted_sweep_has_no_final_numbers_and_a_resumed_one_has_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Path
) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path)
    uri = f"sqlite:///{shutil.copy(empty_database, tmp_path)}"
    ledger = Ledger(tmp_path / "home", plan_sweep("tiny"))
    ledger.home.mkdir()
    trials = [ledger.add(number, {"lr": lr}) for number, lr in enumerate((0.1, 0.2))]
    for ended in (1, 2, 2):  # interrupted after the first trial, resumed, uploaded
        for trial in trials[:ended]:
            trial.status, trial.objective = "finished", 0.5 + trial.number
        ledger.status = "finished" if ended == 2 else "running"
        tracker = Tracker(uri, "tiny")
        SweepRuns(ledger, tracker).end()
        tracker.close()
        assert tracker.failure is None

    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert sorted(run.info.status for run in runs) == ["FINISHED"] * 3
    assert parent.info.status == "FINISHED"
    for name, value in {"trials_finished": 2, "trials_failed": 0, "best_objective": 1.5}.items():
        points = client.get_metric_history(parent.info.run_id, name)
        assert [(point.step, point.value) for point in points] == [(0, value)]


def test_a_sweep_that_another_process_executes_keeps_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path)
    ledger = Ledger(tmp_path / "home", plan_sweep("tiny"))
    for number, (lr, status) in enumerate([(0.1, "finished"), (0.2, "running")]):
        trial = ledger.add(number, {"lr": lr})
        trial.status = status
        (ledger.home / trial.name).mkdir(parents=True)
    ledger.write()
    with hold(ledger.home):
        experiment, runs = sweep_runs(ledger.home)
    assert experiment == "tiny"
    assert [run.status for run in runs] == [None, "FINISHED", None]
    assert [run.status for run in sweep_runs(ledger.home)[1]] == ["KILLED", "FINISHED", "KILLED"]


SECRET = "s3cr3t-w0rd"
TINY = {
    "name": "tiny",
    "algorithm": "fedproto",
    "rounds": 1,
    "local_epochs": 1,
    "data": {"clients": 2, "samples": 200, "validation_fraction": 0.2},
    "model": {"feature_dim": 16},
}


@pytest.fixture
def ray_logs() -> Iterator[Path]:
    """A temporary folder with a path that is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.mark.ray
@pytest.mark.timeout(700)
@pytest.mark.long
def test_a_password_in_the_address_is_in_no_file_of_a_sweep_and_of_ray(
    tmp_path: Path, ray_logs: Path
) -> None:
    (tmp_path / "tune").mkdir()
    (tmp_path / "tiny.yaml").write_text(dump_yaml(TINY))
    sweep = {
        "answers": "nothing",
        "space": {"lr": {"grid": [0.05]}},
        "scales": {"laptop": {"experiment": "tiny.yaml"}},
    }
    (tmp_path / "tune" / "tiny.yaml").write_text(dump_yaml(sweep))
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "FEDRAY_RESULTS": str(tmp_path / "results"),
        "RAY_TMPDIR": str(ray_logs),
        "MLFLOW_TRACKING_URI": f"http://ada:{SECRET}@127.0.0.1:9",  # nobody listens there
    }
    done = subprocess.run(
        [sys.executable, "-m", "fedray.sweep", "tiny"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "http://ada:***@127.0.0.1:9" in done.stderr
    assert "does not have all of 2 run(s)" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert any(path.name == "result.json" for path in files)
    logs = [path for path in ray_logs.rglob("*") if path.is_file()]
    assert any("worker" in path.name for path in logs)
    for path in files + logs:
        assert SECRET.encode() not in path.read_bytes(), path
