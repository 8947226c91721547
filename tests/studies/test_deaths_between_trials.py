"""A trial's process that dies when one trial is over and the next has not begun ends no sweep."""

from __future__ import annotations

import csv
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import OutOfMemoryError

from fedray.checkpoint import CheckpointStore
from fedray.config import dump_yaml
from fedray.sweep import main
from fedray.studies.study import Ledger
from fedray.studies.space import plan_sweep

EXPERIMENT = {
    "extends": "fedproto_digits",
    "rounds": 1,
    "local_epochs": 1,
    "workers": 1,
    "data": {"clients": 3, "samples": 200, "partition": {"name": "dirichlet", "alpha": 1.0}},
    "faults": {"max_failures": 10},
    "report": {"select": "test"},
}
SWEEP = {
    "answers": "nothing",
    "space": {"algorithm.lambda": {"grid": [0, 1, 2, 3, 4, 5, 6, 7]}},
    "scales": {"laptop": {"experiment": "quick.yaml"}},
}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A working directory with a sweep of short trials."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quick.yaml").write_text(dump_yaml(EXPERIMENT))
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune" / "quick.yaml").write_text(dump_yaml(SWEEP))
    return tmp_path


class _Shown:
    """Stands for the progress that is shown."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def test_what_ray_gives_up_too_early_is_run_again_so_often_as_it_may_die(here):
    from fedray.sweep.watch import Watcher

    plan = plan_sweep("quick", ["faults.max_failures=2"], "laptop", None)
    ledger = Ledger(here / "out", plan)
    ledger.home.mkdir()
    trial = ledger.add(1, {"algorithm.lambda": 1})
    watcher = Watcher(ledger, None, _Shown())  # type: ignore[arg-type]
    given_up = SimpleNamespace(config={"trial": {"number": 1}})
    for _ in range(2):
        trial.status = "running"
        watcher.on_trial_error(0, [], given_up)
        assert trial.status == "pending"
        assert watcher.take_again()
        assert not watcher.take_again()
    watcher.on_trial_error(0, [], given_up)
    assert trial.status == "failed"
    assert "died 3 time(s)" in (trial.reason or "")
    assert not watcher.take_again()


def values(home: Path) -> list[tuple[str, str]]:
    """Each trial's value, in the order of their numbers."""
    with (home / "trials.csv").open() as file:
        return [(row["status"], row["objective"]) for row in csv.DictReader(file)]


@pytest.mark.ray
@pytest.mark.slow
def test_a_trial_whose_process_is_killed_for_memory_starts_again(here, monkeypatch):
    resolved, killed = RayActorManager._actor_task_resolved, []

    def kill_once(self: Any, tracked_actor_task: Any, result: Any) -> None:
        if killed:
            resolved(self, tracked_actor_task, result)
            return
        killed.append(tracked_actor_task)
        error = OutOfMemoryError("the node runs low on memory")
        self._actor_task_failed(tracked_actor_task=tracked_actor_task, exception=error)

    monkeypatch.setattr(RayActorManager, "_actor_task_resolved", kill_once)
    sweep = {**SWEEP, "space": {"algorithm.lambda": {"grid": [0, 1]}}}
    (here / "tune" / "quick.yaml").write_text(dump_yaml(sweep))
    assert main(["quick", "--no-track", "--out", str(here / "killed")]) == 0
    assert killed
    assert [status for status, _ in values(here / "killed")] == ["finished"] * 2


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
def test_processes_that_die_between_trials_end_no_sweep(here):
    assert main(["quick", "--no-track", "--out", str(here / "undisturbed")]) == 0
    over, ends = threading.Event(), []

    def kill() -> None:
        """Kill a trial's process whenever another trial is over."""
        while not over.is_set():
            runs = here.glob("killed/trial_*/seed_0")
            done = sum(CheckpointStore(run, identity="").latest() == 1 for run in runs)
            if done > len(ends):
                found = [p for p in psutil.Process().children(recursive=True)
                         if p.name().startswith("ray::Implicit")]  # fmt: skip
                time.sleep(0.02 * len(ends))
                if found:
                    ends.append(found[len(ends) % len(found)])
                    ends[-1].kill()
            time.sleep(0.005)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert main(["quick", "--no-track", "--out", str(here / "killed")]) == 0
    over.set()
    killer.join(5)
    assert ends
    assert values(here / "killed") == values(here / "undisturbed")
