"""In short, what `python -m benchmarks.faults tracker --count 1000` does."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from benchmarks.faults import tracker


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [5, pytest.param(24, marks=pytest.mark.long)])
def test_nothing_is_lost_and_nothing_twice(tmp_path: Path, count: int) -> None:
    tally = tracker.run(count, 0, tmp_path)
    assert tally.wrong == []
    assert tally.count >= count


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_number_that_stands_twice_is_found(tmp_path: Path, empty_database: Path) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{shutil.copy(empty_database, tmp_path)}"
    home, runs = tmp_path / "sweep", tracker.make_runs(random.Random(0))
    assert tracker.look(home, runs, uri, "sweep") == ""
    client = MlflowClient(uri)
    place = client.get_experiment_by_name("faults").experiment_id
    (run,) = client.search_runs([place], "attributes.run_name = 'sweep trial_0'")
    client.log_metric(run.info.run_id, "time/seconds", 1.0, step=2)
    assert "trial_0 time/seconds" in tracker.look(home, runs, uri, "sweep")
