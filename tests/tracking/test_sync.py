"""`sync`: MLflow holds a run as its folder has it, once, whatever failed before."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import upload
from filelock import FileLock

from fedray.config import flatten
from fedray.tracking.describe import TrackedRun, as_params, grouped
from fedray.tracking.study import TrackedMember, TrackedStudy
from fedray.tracking.sync import sync
from tests.tracking.runs import STARTED, Held, make_round, make_run, write_run

PARENT = TrackedRun(
    key="p", name="sweep-1", experiment="sweep", params={"space.lr": "[0.1, 0.2]"}, tags={"a": "b"},
    status="FINISHED", started_ms=1_700_000_000_000, metrics={"best_objective": 0.5},
    files=[Path("sweep.png")], note="**best** ![who](artifact:sweep.png)",
)  # fmt: skip


def write_study(home: Path, *runs: Path, **more: Any) -> Path:
    """Write a study of two runs, lr=0.1 and lr=0.2."""
    folders = runs or [write_run(home / f"lr{n}", make_run(2, seed=n)) for n in (1, 2)]
    members = {
        folder.name: TrackedMember(f"lr=0.{n}", {"config": f"lr=0.{n}"}, {"objective": n / 10})
        for n, folder in enumerate(folders, 1)
    }
    (home / "sweep.png").write_text("picture")
    study = TrackedStudy(PARENT, members, "Does lr matter?", ["lr"])
    replace(study, **more).write(home)
    return home


def test_a_run_is_all_there_and_nothing_twice(tmp_path: Path, uri: str) -> None:
    result = make_run(3)
    folder = write_run(tmp_path / "run", result)
    added = [sync(folder, uri) for _ in range(2)]
    assert [(done.rounds, done.files, done.problems) for done in added] == [(4, 2, []), (0, 0, [])]
    held = Held(uri)
    run = held.run()
    assert (run.info.run_name, run.info.status) == ("fedtsp digits seed 0", "FINISHED")
    assert run.data.params == as_params(flatten(result.info.config))
    assert (run.data.tags["fedray.folder"], run.data.tags["partition_sha256"]) == ("run", "f" * 64)
    assert run.info.start_time == int(STARTED.timestamp() * 1000)
    assert run.info.end_time - run.info.start_time == 8000
    accuracy = [(r, make_round(r).metrics["local_accuracy"]) for r in range(4)]
    assert held.history(run, "accuracy/local_accuracy") == accuracy
    assert held.history(run, "traffic/total_up_bytes") == [(0, 0), (1, 100), (2, 300), (3, 600)]
    held.assert_every_metric_once_per_round(run, range(4))
    names = ("rounds.jsonl", "run.json")
    assert held.artifacts(run) == set(names)
    (given,) = run.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("digits", f"{'d' * 12}-{'f' * 12}")
    assert json.loads(given.dataset.profile)["partition_sha256"] == "f" * 64
    assert "3 of 3 rounds" in run.data.tags["mlflow.note.content"]
    place = held.client.get_experiment_by_name("digits")
    assert place.tags["mlflow.experimentKind"] == "custom_model_development"
    columns = json.loads(json.loads(place.tags["mlflow.sharedViewState.accuracy"])["state"])
    assert columns["selectedColumns"][0] == "metrics.`best/local_accuracy`"
    assert added[0].page.startswith(f"/#/experiments/{place.experiment_id}/runs?")


def test_a_run_that_is_killed_and_resumed_goes_on_in_the_same_run(tmp_path: Path, uri: str) -> None:
    folder, held, seen = tmp_path / "run", Held(uri), []
    for rounds, going in ((1, True), (2, False), (2, True), (3, True), (4, True), (4, False)):
        write_run(folder, make_run(rounds, of=4))
        sync(folder, uri, going=going)
        run = held.run()
        seen.append((run.info.run_id, run.info.status))
    assert [status for _, status in seen] == [
        "RUNNING", "KILLED", "RUNNING", "RUNNING", "FINISHED", "FINISHED"
    ]  # fmt: skip
    assert len({run_id for run_id, _ in seen}) == 1
    held.assert_every_metric_once_per_round(run, range(5))
    assert "4 of 4 rounds" in run.data.tags["mlflow.note.content"]
    held.client.set_tag(run.info.run_id, "mlflow.note.content", "my own words")
    sync(folder, uri)
    assert held.run().data.tags["mlflow.note.content"] == "my own words"


@pytest.mark.parametrize("method", ["create_run", "log_inputs", "log_batch", "set_terminated"])
@pytest.mark.parametrize("arrives", [True, False])
def test_a_request_that_fails_is_repeated_by_the_next_call(
    method: str, arrives: bool, tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    real, calls = getattr(MlflowClient, method), []

    def fails(*args: Any, **more: Any) -> Any:
        calls.append(method)
        has_failed = len(calls) in (1, 3)
        answer = real(*args, **more) if arrives or not has_failed else None
        if has_failed:
            raise TimeoutError("no answer")
        return answer

    width = 1200 if method == "log_batch" else 8  # more than a request holds
    wide = [replace(make_round(0), metrics={f"m{i}": 0.5 for i in range(width)} | {"λ": 3.0})]
    run = make_run(2)
    folder = write_run(tmp_path / "run", replace(run, rounds=[*wide, *run.rounds[1:]]))
    monkeypatch.setattr(MlflowClient, method, fails)
    for _ in range(4):
        with suppress(TimeoutError):
            sync(folder, uri)
    held = Held(uri)
    found = held.run()
    assert found.info.status == "FINISHED"
    assert found.data.metrics[f"measured/m{width - 1}"] == 0.5
    assert found.data.metrics[grouped("λ")] == 3.0
    for name in ("accuracy/local_accuracy", "loss/train_loss"):
        assert [step for step, _ in held.history(found, name)] == [1, 2]
    assert [step for step, _ in held.history(found, "time/seconds")] == [0, 1, 2]
    assert len(held.history(found, "measured/m7")) == 1


def test_a_database_that_is_locked_is_waited_for_and_a_store_that_is_gone_is_one_line(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "run", make_run(1))
    lock = FileLock(tmp_path / "store" / ".mlflow.db.lock", thread_local=False)
    lock.acquire()
    database, runs = sqlite3.connect(uri.removeprefix("sqlite:///"), check_same_thread=False), []

    def release() -> None:
        runs.append(database.execute("select count(*) from runs").fetchone())
        lock.release()

    threading.Timer(1.0, release).start()
    assert sync(folder, uri).rounds == 2
    assert runs == [(0,)], "nothing was written before"
    (tmp_path / "file").write_text("")
    for gone in (f"sqlite:///{tmp_path}/file/mlflow.db", "http://127.0.0.1:1"):
        assert upload([str(folder), "--uri", gone]) in (1, 2)
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert f"did not take {folder}" in said


def test_what_a_user_deleted_in_mlflow_comes_back(tmp_path: Path, uri: str) -> None:
    folder, held = write_run(tmp_path / "run", make_run(1)), Held(uri)
    sync(folder, uri)
    place = held.client.get_experiment_by_name("digits").experiment_id
    held.client.delete_experiment(place)
    assert sync(folder, uri).rounds == 0
    held.client.delete_run(held.run().info.run_id)
    assert sync(folder, uri).rounds == 2
    held.assert_every_metric_once_per_round(held.run(), range(2))


def test_files_that_a_store_does_not_take_keep_back_no_run(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    held = Held(uri)
    held.client.create_experiment("digits", artifact_location="/proc/mlflow/artifacts")
    for seed in (0, 1):
        write_run(tmp_path / "runs" / str(seed), make_run(1, seed=seed))
    assert upload([str(tmp_path / "runs"), "--uri", uri]) == 2
    assert "MLflow lacks files of fedtsp digits seed 1" in capsys.readouterr().err
    assert [run.info.status for run in held.runs("digits")] == ["FINISHED"] * 2


# --- studies --------------------------------------------------------------------------------------


def test_a_study_has_its_runs_and_a_view_of_the_swept_keys(tmp_path: Path, uri: str) -> None:
    home, held = write_study(tmp_path / "home"), Held(uri)
    for rounds in (6, 0):
        assert sync(home, uri).rounds == rounds
    runs = {run.info.run_name: run for run in held.runs("sweep")}
    assert {name: run.info.status for name, run in runs.items()} == {
        "sweep-1": "FINISHED", "lr=0.1": "FINISHED", "lr=0.2": "FINISHED"
    }  # fmt: skip
    parent = runs.pop("sweep-1")
    assert parent.data.params == PARENT.params
    assert parent.data.metrics == {"best_objective": 0.5}
    assert held.artifact(parent, "sweep.png") == "picture"
    link = f"![who](get-artifact?run_uuid={parent.info.run_id}&path=sweep.png)"
    assert link in parent.data.tags["mlflow.note.content"]
    for name, run in runs.items():
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert (run.data.tags["config"], run.data.metrics["objective"]) == (name, float(name[3:]))
    tags = held.client.get_experiment(parent.info.experiment_id).tags
    assert tags["mlflow.note.content"] == "Does lr matter?"
    state = json.loads(json.loads(tags["mlflow.sharedViewState.p"])["state"])
    assert state["selectedColumns"][:2] == ["metrics.`objective`", "params.`lr`"]
    order = f"{state['orderByKey']} {'ASC' if state['orderByAsc'] else 'DESC'}"
    found = held.client.search_runs(
        [parent.info.experiment_id], state["searchFilter"], order_by=[order]
    )
    assert [run.info.run_name for run in found] == ["lr=0.2", "lr=0.1"]

    held.client.delete_run(parent.info.run_id)
    sync(home, uri)
    runs = {run.info.run_name: run for run in held.runs("sweep")}
    again = runs.pop("sweep-1").info.run_id
    assert {run.data.tags["mlflow.parentRunId"] for run in runs.values()} == {again}


def test_a_study_goes_on_until_its_process_ends(tmp_path: Path, uri: str) -> None:
    home = tmp_path / "home"
    one, two = (
        write_run(home / "one", make_run(2)),
        write_run(home / "two", make_run(1, of=2, seed=1)),
    )
    write_study(home, one, two, parent=replace(PARENT, status="RUNNING"))

    def statuses() -> dict[str, str]:
        return {run.info.run_name: run.info.status for run in Held(uri).runs("sweep")}

    sent: dict[str, object] = {}
    sync(home, uri, going=True, sent=sent)
    assert statuses() == {"sweep-1": "RUNNING", "lr=0.1": "FINISHED", "lr=0.2": "RUNNING"}
    sync(home, uri, going=False, sent=sent)
    assert statuses() == {"sweep-1": "KILLED", "lr=0.1": "FINISHED", "lr=0.2": "KILLED"}


def unreadable_run(home: Path) -> str:
    (home / "lr1" / "run.json").write_text("{")
    return "lr1/run.json"


def unreadable_study(home: Path) -> str:
    (home / "mlflow.json").write_text("{")
    return "mlflow.json"


@pytest.mark.parametrize("damage", [unreadable_run, unreadable_study])
def test_a_folder_that_cannot_be_read_is_named_and_keeps_back_no_other(
    damage: Callable[[Path], str],
    tmp_path: Path,
    uri: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_study(tmp_path / "a")
    write_run(tmp_path / "b" / "run", make_run(1))
    damaged = damage(tmp_path / "a")
    assert upload([str(tmp_path), "--uri", uri]) == 2
    printed = capsys.readouterr()
    assert str(tmp_path / "a" / damaged) in printed.err
    assert printed.err.count("\n") == 1
    assert f"{tmp_path}/b/run: added 2 rounds" in printed.out
    held = Held(uri)
    assert "lr=0.2" in {run.info.run_name for run in held.runs("sweep")} or damaged == "mlflow.json"
    assert upload([str(tmp_path / "b"), "--uri", uri]) == 0
    assert f"{tmp_path}/b/run: nothing was missing" in capsys.readouterr().out
