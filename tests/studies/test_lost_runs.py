"""Runs whose processes are lost start again, and are given up when they make no progress."""

from __future__ import annotations

import csv
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import ActorDiedError, ActorUnavailableError, OutOfMemoryError, RayTaskError
from sweeps import EXPERIMENT, laptop, sweep, write_sweep

from fedray.base.errors import RunFailed
from fedray.config import dump_yaml
from fedray.storage.run_folder import RunFolder
from fedray.studies import tune as trials
from fedray.studies.study import Study, StudyRun
from fedray.sweep import main


class _Shown:
    """Stands for the progress that is shown."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture(autouse=True)
def _short_runs(here) -> None:
    tree = {**EXPERIMENT, "rounds": 1, "faults": {"max_failures": 1}}
    (here / "tiny.yaml").write_text(dump_yaml(tree))
    write_sweep()


@pytest.fixture
def study() -> Study:
    """A sweep of which run 0 has begun."""
    found = sweep()
    run = found.ask()
    assert run.number == 0
    run.status = "running"
    return found


@pytest.fixture
def run(study) -> StudyRun:
    """Run 0."""
    return next(iter(study.runs.values()))


@pytest.fixture
def watcher(study) -> trials.Watcher:
    return trials.Watcher(study, _Shown(), lambda: None)  # type: ignore[arg-type]


@pytest.fixture
def lose(watcher, study, run):
    """`lose(error, round)` has run 0 die after a round; return its status, as it is asked again."""

    def lose(error: Exception | None = None, last_round: int | None = None) -> str:
        run.last_round = last_round
        config = {"trial": {"key": run.spec.key}}
        watcher.on_trial_error(
            0, [], SimpleNamespace(config=config, get_pickled_error=lambda: error)
        )
        if run.status == "pending":
            assert study.ask() is run
            run.status = "running"
        return run.status

    return lose


@pytest.mark.parametrize(
    "error",
    [
        ActorDiedError(),
        ActorUnavailableError("no answer", None),
        RayTaskError("train", "traceback", RunFailed("workers were lost 4 time(s)")),
        None,
    ],
)
def test_a_run_that_is_lost_again_without_a_new_round_is_given_up(lose, run, study, error):
    assert [lose(error, last) for last in (None, 3, 4, 4)] == ["running"] * 3 + ["failed"]
    assert "it died 2 time(s) (faults.max_failures=1): " in run.reason
    assert study.repeatable == [run.spec.key]
    with pytest.raises(ValueError, match="has ended already"):
        study.tell(run, "finished")


@pytest.mark.parametrize("rounds", [(7, 6), (3, 2, 1), (103, 98, 107, 105), (5, None), (None,)])
def test_a_run_that_is_lost_again_in_repeated_rounds_is_given_up(lose, run, rounds):
    most = run.spec.experiment.faults.max_failures
    losses = iter(range(20))
    while lose(None, rounds[next(losses) % len(rounds)]) == "running":
        pass
    assert next(losses) - 1 <= len(rounds) + most


def test_a_run_whose_code_exits_has_failed_and_was_not_stopped(monkeypatch, tmp_path):
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(trials.tune, "report", said.append)

    def exits(*_: Any) -> Any:
        yield {"objective": 0.5}
        sys.exit(0)

    monkeypatch.setattr(trials, "reports", exits)
    config = {"trial": {"number": 0, "folder": str(tmp_path)}}
    trials.run_trial(config, "best")
    assert [report.get("failed") for report in said] == [None, "SystemExit: 0"]

    def stop(report: Any) -> None:
        sys.exit(0)

    monkeypatch.setattr(trials.tune, "report", stop)
    with pytest.raises(SystemExit):
        trials.run_trial(config, "best")


def test_a_trial_works_in_the_folder_that_ray_tune_has_left(monkeypatch, tmp_path):
    """Processes of a joined cluster do not have the driver's RAY_CHDIR_TO_TRIAL_DIR=0."""
    folders: list[Path] = []

    def note_folder(*_: Any) -> Any:
        folders.append(Path.cwd())
        yield from ()

    monkeypatch.setattr(trials, "reports", note_folder)
    (tmp_path / "trial").mkdir()
    monkeypatch.chdir(tmp_path / "trial")
    monkeypatch.setenv("TUNE_ORIG_WORKING_DIR", str(tmp_path))
    trials.run_trial({"trial": {"folder": str(tmp_path)}}, "best")
    assert folders == [tmp_path]


def test_a_run_whose_files_are_damaged_fails_once_and_for_all(study, run, watcher):
    trial = SimpleNamespace(config={"trial": {"key": run.spec.key}}, trial_id="0")
    list(trials.reports(trials.config_of(run, study.plan), "best"))
    _, *lines = (run.folder / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run.folder / "rounds.jsonl").write_text("".join(["{}\n", *lines]))
    watcher.on_trial_start(0, [], trial)
    watcher.on_trial_complete(0, [], trial)
    assert run.status == "failed"
    assert "rounds.jsonl, line 1, cannot be read" in (run.reason or "")
    assert study.cells[0].state(study.lookup).tried[0].objective is None


def values(home: Path) -> list[tuple[str, str]]:
    """Each configuration's value, in the order of their numbers."""
    with (home / "trials.csv").open() as file:
        return [(row["status"], row["objective"]) for row in csv.DictReader(file)]


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_whose_process_is_killed_for_memory_starts_again(here, monkeypatch):
    resolved, killed = RayActorManager._actor_task_resolved, []

    def kill_once(self: Any, tracked_actor_task: Any, result: Any) -> None:
        if killed:
            resolved(self, tracked_actor_task, result)
            return
        killed.append(tracked_actor_task)
        error = OutOfMemoryError("the node runs low on memory")
        self._actor_task_failed(tracked_actor_task=tracked_actor_task, exception=error)

    monkeypatch.setattr(RayActorManager, "_actor_task_resolved", kill_once)
    assert main(["tiny", "--no-track", "--out", str(here / "killed")]) == 0
    assert killed
    assert [status for status, _ in values(here / "killed")] == ["finished"] * 2


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.slow
def test_processes_that_die_between_runs_end_no_sweep(here, monkeypatch):
    space = {"algorithm.lambda": {"grid": [0, 1, 2, 3, 4, 5, 6, 7]}}
    write_sweep(space=space, scales=laptop(set={"faults.max_failures": 10}))
    monkeypatch.setenv("FEDRAY_RESULTS", str(here / "others"))
    assert main(["tiny", "--no-track", "--out", str(here / "undisturbed")]) == 0
    monkeypatch.setenv("FEDRAY_RESULTS", str(here / "results"))
    over, ends = threading.Event(), []

    def kill() -> None:
        """Kill a run's process whenever another run is over."""
        while not over.is_set():
            runs = here.glob("results/store/*")
            done = sum(RunFolder(run).is_finished for run in runs)
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
    assert main(["tiny", "--no-track", "--out", str(here / "killed")]) == 0
    over.set()
    killer.join(5)
    assert ends
    assert values(here / "killed") == values(here / "undisturbed")
