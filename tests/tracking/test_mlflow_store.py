"""`Store.sync`: MLflow holds a run as it should be, once, whatever failed before."""

from __future__ import annotations

import json
import multiprocessing
import shlex
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from fedray.errors import UserError
from fedray.tracking import (
    Store,
    grouped,
    mlflow_store,
    reason,
    refused,
    resolve_uri,
    ui_command,
)
from fedray.tracking.mlflow_store import sqlite_path, sqlite_uri
from fedray.tracking.view import trials_view, view_path
from tests.tracking.runs import Held, make_round, tracked

LOCK_NAME = ".mlflow.db.lock"
ROUNDS = [make_round(r) for r in range(6)]


def test_an_experiment_opens_as_model_training_with_accuracy_first(uri: str) -> None:
    for words in ("Does text help?", "my own words"):
        store = Store(uri, "digits", "Does text help?")
        store.connect()
        place = Held(uri).client.get_experiment_by_name("digits")
        assert place.tags["mlflow.experimentKind"] == "custom_model_development"
        assert place.tags["mlflow.note.content"] == words
        Held(uri).client.set_experiment_tag(
            place.experiment_id, "mlflow.note.content", "my own words"
        )
    view = json.loads(place.tags["mlflow.sharedViewState.accuracy"])
    columns = json.loads(view["state"])["selectedColumns"]
    assert columns[0] == "metrics.`best/local_accuracy`"
    page = f"/#/experiments/{place.experiment_id}/runs?viewStateShareKey=accuracy"
    assert view_path(store.experiment_id).startswith(page)


def test_a_view_of_a_runs_children_is_saved_once_and_linked_in_its_description(uri: str) -> None:
    state = trials_view(["lr"], ["objective"], of_numbers=True, is_min=False)
    for status in ("RUNNING", "FINISHED"):
        store = Store(uri, "digits")
        store.sync(tracked(status=status, view=state, note="[trials](view:)"))
        place = Held(uri).client.get_experiment(store.experiment_id)
        saved = json.loads(place.tags["mlflow.sharedViewState.k"])
        assert saved["name"] == "k"
        if status == "RUNNING":
            run = Held(uri).run()
            children = f"tags.`mlflow.parentRunId` = '{run.info.run_id}'"
            assert json.loads(saved["state"]) == {**state, "searchFilter": children}
            mine = json.dumps({**saved, "state": "{}"})  # a user overrides it
            Held(uri).client.set_experiment_tag(
                store.experiment_id, "mlflow.sharedViewState.k", mine
            )
    assert saved["state"] == "{}"
    link = f"[trials]({view_path(store.experiment_id, 'k')[1:]})"
    assert link in Held(uri).run().data.tags["mlflow.note.content"]


@pytest.mark.parametrize("is_min", [False, True])
def test_the_view_of_two_swept_params_has_a_contour_of_numbers(is_min: bool) -> None:
    def charts(params: list[str], *, of_numbers: bool) -> list[str]:
        view = trials_view(params, ["objective", "x"], of_numbers=of_numbers, is_min=is_min)
        assert view["selectedColumns"] == [
            *(f"params.`{name}`" for name in params), "metrics.`objective`", "metrics.`x`"
        ]  # fmt: skip
        assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`objective`", is_min)
        return [chart["type"] for chart in view["compareRunCharts"]]

    rest = ["PARALLEL", "BAR"]
    assert charts(["a"], of_numbers=True) == ["SCATTER", *rest]
    assert charts(["a", "b"], of_numbers=True) == ["CONTOUR", "SCATTER", "SCATTER", *rest]
    assert charts(["a", "b"], of_numbers=False) == ["SCATTER", "SCATTER", *rest]
    assert charts(list("abcdefgh"), of_numbers=True) == ["SCATTER"] * 4 + rest


def test_a_run_grows_and_ends(uri: str) -> None:
    store, held = Store(uri, "digits"), Held(uri)
    added = [
        store.sync(tracked(rounds=ROUNDS[:count], params={"a": "1"}, tags={"git": "x"}))
        for count in (0, 2, 2, 4)
    ]
    assert [(each.rounds, each.params) for each in added] == [(0, 1), (2, 0), (0, 0), (2, 0)]
    assert held.run().info.status == "RUNNING"
    numbers = {"objective": 0.5, "objective_std": float("nan")}
    ended = tracked(rounds=ROUNDS, status="FINISHED", seconds=20.0, metrics=numbers)
    for store_again in (store, Store(uri, "digits")):
        store_again.sync(ended)
    run = held.run()
    assert (run.info.run_name, run.info.status) == ("k", "FINISHED")
    assert run.info.start_time == ended.started_ms
    assert run.info.end_time - run.info.start_time == 20_000
    assert (run.data.params, run.data.tags["git"]) == ({"a": "1"}, "x")
    assert held.history(run, "objective") == [(5, 0.5)]
    assert len(held.history(run, "objective_std")) == 1
    assert held.history(run, "time/total_seconds") == [(r, 2.0 * (r + 1)) for r in range(6)]
    points = held.client.get_metric_history(run.info.run_id, "time/seconds")
    stamps = {point.step: point.timestamp - run.info.start_time for point in points}
    assert stamps == {r: 2000 * (r + 1) for r in range(6)}


@pytest.mark.parametrize("known", [0, 3])
def test_a_resumed_run_goes_on_in_the_same_run(known: int, uri: str) -> None:
    killed = tracked(rounds=ROUNDS[:4], params={"workers": "2"}, tags={"git": "a"})
    Store(uri, "digits").sync(killed)
    before = Held(uri).run()
    again = [*ROUNDS[:known], *(replace(done, seconds=7.0) for done in ROUNDS[known:])]
    resumed = tracked(
        rounds=again,
        params={"workers": "4", "new": "1"},
        tags={"git": "b", "host": "x"},
        status="FINISHED",
    )
    assert Store(uri, "digits").sync(resumed).rounds == 2
    held = Held(uri)
    run = held.run()
    assert (run.info.run_id, run.info.status) == (before.info.run_id, "FINISHED")
    assert run.data.params == {"workers": "2", "new": "1"}
    assert (run.data.tags["git"], run.data.tags["host"]) == ("a", "x")
    held.assert_every_metric_once_per_round(run, range(6))
    assert dict(held.history(run, "traffic/total_up_bytes"))[5] == 1500


def test_a_run_that_has_ended_is_not_killed_afterwards(uri: str) -> None:
    status = []
    for given in ("KILLED", "FAILED", "RUNNING", "FAILED", "FINISHED", "KILLED"):
        Store(uri, "digits").sync(tracked(status=given))
        status.append(Held(uri).run().info.status)
    assert status == ["KILLED", "KILLED", "RUNNING", "FAILED", "FINISHED", "FINISHED"]


def test_the_time_of_an_end_is_set_when_it_is_known(uri: str) -> None:
    """A sweep's file tells the time of a trial up to a second after its folder tells its end."""
    store = Store(uri, "sweep")
    for seconds in (None, 0.0, 20.0, None):
        store.sync(tracked(status="FINISHED", seconds=seconds))
    for again in (store, Store(uri, "sweep")):
        again.sync(tracked(status="KILLED", seconds=30.0))
        info = Held(uri).run("sweep").info
        assert (info.status, info.end_time - info.start_time) == ("FINISHED", 20_000)


def test_children_belong_to_their_parent(uri: str) -> None:
    store, held = Store(uri, "sweep"), Held(uri)
    store.sync(tracked("early", parent="p"))
    for key, parent in (("p", None), ("a", "p"), ("early", "p")):
        store.sync(tracked(key, parent=parent))
    Store(uri, "sweep").sync(tracked("b", parent="p"))
    runs = {run.info.run_name: run for run in held.runs("sweep")}
    parents = {name: run.data.tags.get("mlflow.parentRunId") for name, run in runs.items()}
    parent = runs["p"].info.run_id
    assert parents == {"p": None, "early": parent, "a": parent, "b": parent}

    held.client.delete_run(parent)
    store = Store(uri, "sweep")
    for key, parent in (("p", None), ("a", "p"), ("b", "p")):
        store.sync(tracked(key, parent=parent))
    runs = {run.info.run_name: run for run in held.runs("sweep")}
    parents = {runs[name].data.tags["mlflow.parentRunId"] for name in "ab"}
    assert parents == {runs["p"].info.run_id}, "a deleted parent is made again for all children"


def test_a_run_is_found_in_another_experiment(uri: str) -> None:
    Store(uri, "old name").sync(tracked())
    Store(uri, "new name").sync(tracked(rounds=ROUNDS))
    held = Held(uri)
    assert held.runs("new name") == []
    held.assert_every_metric_once_per_round(held.run("old name"), range(6))


def test_a_description_shows_the_runs_figure_and_leaves_other_words_alone(uri: str) -> None:
    def described(note: str) -> tuple[str, str]:
        Store(uri, "digits").sync(tracked(status="FINISHED", note=note))
        run = Held(uri).run()
        return run.info.run_id, run.data.tags["mlflow.note.content"]

    described("4 of 5 rounds")
    run_id, note = described("5 of 5 rounds ![who](artifact:partition.png)")
    assert "4 of 5" not in note
    assert f"5 of 5 rounds ![who](get-artifact?run_uuid={run_id}&path=partition.png)" in note
    assert "**FedX&lt;script>**" in described("**FedX<script>**")[1]
    store = Store(uri, "digits")
    store.sync(tracked())
    Held(uri).client.set_tag(run_id, "mlflow.note.content", "mine")
    store.sync(tracked(status="FINISHED", note="anew"))
    assert described("anew")[1] == "mine"


def test_more_than_a_batch_and_more_than_a_name_can_hold(uri: str) -> None:
    many = {f"m{i}": float(i) for i in range(2100)} | {"λ": 3.0}
    wide = replace(ROUNDS[0], metrics={**ROUNDS[0].metrics, **many})
    params = {f"p{i}": str(i) for i in range(250)}
    tags = {f"t{i}": "y" * 9000 for i in range(120)}
    Store(uri, "digits").sync(tracked(rounds=[wide, *ROUNDS[1:]], params=params, tags=tags))
    held = Held(uri)
    run = held.run()
    assert len(run.data.params) == 250
    assert run.data.metrics["measured/m2099"] == 2099
    assert run.data.metrics[grouped("λ")] == 3.0
    assert run.data.tags["t119"].endswith("... (9000 characters)")
    assert [step for step, _ in held.history(run, "time/seconds")] == list(range(6))


def test_files_are_sent_once_and_again_when_they_have_changed(tmp_path: Path, uri: str) -> None:
    for seed in (0, 1):
        (tmp_path / f"seed_{seed}").mkdir()
        (tmp_path / f"seed_{seed}" / "result.json").write_text("{}")
    files = [(tmp_path / f"seed_{s}" / "result.json", f"seed_{s}") for s in (0, 1)]
    files.append((tmp_path / "missing", ""))
    texts = {"per_client.json": "[]", "seed_1/per_client.json": "[1]"}
    run = tracked(status="FINISHED", files=files, texts=texts)
    assert [Store(uri, "digits").sync(run).files for _ in range(2)] == [4, 0]
    files[0][0].write_text("{ }")
    assert Store(uri, "digits").sync(run).files == 1
    held = Held(uri)
    assert held.artifacts(held.run()) == {"per_client.json", "seed_0", "seed_1"}
    assert held.artifact(held.run(), "seed_0/result.json") == "{ }"
    assert held.artifact(held.run(), "seed_1/per_client.json") == "[1]"


# --- requests that fail --------------------------------------------------------------------------


class Flaky:
    """A store whose requests of one kind fail as a test says; `sync` is repeated until it works.

    Args:
        uri: of the database.
        method: name of the client's method.
        around: called with the method and its arguments in place of it.
    """

    def __init__(self, uri: str, method: str, around: Callable[..., Any]) -> None:
        self.store = Store(uri, "digits")
        self.store.connect()
        real = getattr(self.store._client, method)
        setattr(self.store._client, method, lambda *args, **what: around(real, *args, **what))
        self.failures = 0

    def sync(self, run: Any) -> None:
        while True:
            try:
                self.store.sync(run)
                return
            except TimeoutError:
                self.failures += 1


def test_a_request_that_arrived_although_it_failed_is_not_logged_twice(uri: str) -> None:
    failing = {1, 3}

    def log_batch(real: Callable[..., Any], run_id: str, **what: Any) -> None:
        real(run_id, **what)
        steps = {metric.step for metric in what.get("metrics", ())}
        if steps & failing:
            failing.difference_update(steps)
            raise TimeoutError("no answer")

    flaky = Flaky(uri, "log_batch", log_batch)
    for count in range(1, 6):
        flaky.sync(tracked(rounds=ROUNDS[:count]))
    flaky.sync(tracked(rounds=ROUNDS[:5], status="FINISHED"))
    assert flaky.failures == 2
    held = Held(uri)
    held.assert_every_metric_once_per_round(held.run(), range(5))
    assert held.run().info.status == "FINISHED"


def test_a_run_that_was_created_twice_is_one_run(uri: str) -> None:
    calls = []

    def create_run(real: Callable[..., Any], *args: Any, **what: Any) -> Any:
        calls.append(real(*args, **what))
        if len(calls) == 1:  # repeated by a proxy, and no answer arrived
            real(*args, **what)
            raise TimeoutError("no answer")
        return calls[-1]

    flaky = Flaky(uri, "create_run", create_run)
    flaky.sync(tracked(rounds=ROUNDS[:1]))
    flaky.sync(tracked(rounds=ROUNDS[:1], status="FINISHED"))
    held = Held(uri)
    held.assert_every_metric_once_per_round(held.run(), range(1))


def test_an_empty_run_that_is_created_late_goes_away_at_the_end(uri: str) -> None:
    late = []

    def create_run(real: Callable[..., Any], *args: Any, **what: Any) -> Any:
        if not late:
            late.append(lambda: real(*args, **what))
            raise TimeoutError("no answer")
        return real(*args, **what)

    flaky = Flaky(uri, "create_run", create_run)
    flaky.sync(tracked(rounds=ROUNDS[:1]))
    late[0]()
    assert len(Held(uri).runs("digits")) == 2
    flaky.sync(tracked(rounds=ROUNDS[:2], status="FINISHED"))
    held = Held(uri)
    held.assert_every_metric_once_per_round(held.run(), range(2))


def test_of_runs_with_one_key_the_fullest_is_continued_and_no_numbers_are_deleted(
    uri: str,
) -> None:
    held = Held(uri)
    place = held.client.create_experiment("digits")
    tags = {"fedray.key": "k"}
    empty, full, copied = (held.client.create_run(place, tags=tags).info.run_id for _ in range(3))
    for step, run_id in ((0, copied), (0, full), (1, full)):
        held.client.log_metric(run_id, "time/total_seconds", 2.0 * (step + 1), step=step)
        held.client.log_metric(run_id, "time/seconds", 2.0, step=step)
    Store(uri, "digits").sync(tracked())
    assert {run.info.run_id for run in held.runs("digits")} == {empty, full, copied}
    Store(uri, "digits").sync(tracked(rounds=ROUNDS, status="FINISHED"))
    runs = {run.info.run_id: run for run in held.runs("digits")}
    assert set(runs) == {full, copied}
    assert runs[full].info.status == "FINISHED"
    assert len(held.history(runs[copied], "time/seconds")) == 1


def test_a_server_of_files_that_is_down_does_not_keep_a_run_open(tmp_path: Path, uri: str) -> None:
    (tmp_path / "file").write_text("")

    def log_artifact(real: Callable[..., Any], *args: Any) -> None:
        raise ConnectionError("no room")

    flaky = Flaky(uri, "log_artifact", log_artifact)
    run = tracked(status="FINISHED", rounds=ROUNDS, files=[(tmp_path / "file", "")])
    with pytest.raises(UserError, match="files"):
        flaky.sync(run)
    assert Held(uri).run().info.status == "FINISHED"
    added = Store(uri, "digits").sync(run)
    assert (added.rounds, added.files) == (0, 1)


# --- the database --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_process_that_dies_while_it_makes_the_database_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "store" / "mlflow.db"
    done = subprocess.run([sys.executable, "-c", DIES, str(path)], check=False, timeout=120)
    assert done.returncode == 9
    assert not path.exists()
    Store(f"sqlite:///{path}", "digits").sync(tracked(rounds=ROUNDS, status="FINISHED"))
    assert Held(f"sqlite:///{path}").run().info.status == "FINISHED"


DIES = """
import os, sys, threading, time
from pathlib import Path
from fedray.storage.files import cache_folder
from fedray.tracking import Store

path = Path(sys.argv[1])
store = Store(f"sqlite:///{path}", "e")
threading.Thread(target=store.connect, daemon=True).start()
while not any(p.stat().st_size for p in cache_folder().glob("mlflow/*.tmp/*.db")):
    time.sleep(0.001)
os._exit(9)
"""


def test_a_database_that_cannot_be_made_is_a_failure_with_its_reason(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("no more")

    monkeypatch.setattr(mlflow_store, "_make_tables", fail)
    with pytest.raises(RuntimeError, match="no more"):
        Store(f"sqlite:///{tmp_path}/mlflow.db", "digits").connect()
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".tmp"]


def test_a_new_database_is_a_copy_of_one_that_is_made_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Path
) -> None:
    template = cache / "mlflow" / f"{version('mlflow')}.db"
    made = []

    def make(path: Path) -> None:
        made.append(path)
        shutil.copy(empty_database, path)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("DELETE FROM experiment_tags")
            database.execute("DELETE FROM experiments")

    monkeypatch.setattr(mlflow_store, "_make_tables", make)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        Store(f"sqlite:///{tmp_path}/{name}/mlflow.db", "digits").connect()
        places = {each.artifact_location for each in experiments_of(tmp_path / name)}
        assert places == {f"{tmp_path}/{name}/mlruns/0", f"file://{tmp_path}/{name}/mlartifacts"}
    assert [path.name for path in made] == [template.name]
    assert [path for path in template.parent.iterdir() if path.suffix != ".lock"] == [template]
    monkeypatch.setenv("FEDRAY_CACHE", str(empty_database))  # a file: nothing can be written there
    Store(f"sqlite:///{tmp_path}/three/mlflow.db", "digits").connect()
    assert len(made) == 2


def experiments_of(folder: Path) -> list[Any]:
    return list(Held(f"sqlite:///{folder}/mlflow.db").client.search_experiments())


def _log_rounds(uri: str, process: int) -> None:
    store = Store(uri, "many")
    rounds = [make_round(r) for r in range(50)]
    for count in range(0, 50, 5):
        store.sync(tracked(f"process {process}", rounds[:count]))
    store.sync(tracked(f"process {process}", rounds, status="FINISHED"))


@pytest.mark.slow
def test_four_processes_share_a_database_that_none_of_them_finds(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_log_rounds, args=(uri, i)) for i in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(250)
    assert [process.exitcode for process in processes] == [0] * 4
    held = Held(uri)
    runs = held.runs("many")
    assert {run.info.run_name for run in runs} == {f"process {i}" for i in range(4)}
    for run in runs:
        assert run.info.status == "FINISHED"
        held.assert_every_metric_once_per_round(run, range(50))


def test_a_database_has_one_writer_at_a_time(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, lock = Store(uri, "digits"), FileLock(Path(sqlite_path(uri) or "").parent / LOCK_NAME)
    store.connect()
    taken = []

    def try_lock(*_: Any) -> None:
        with suppress(Timeout), lock.acquire(timeout=0):
            taken.append(True)

    for step in ("_add_params_and_tags", "_add_data", "_add_rounds", "_set_status"):
        real = getattr(store, step)
        monkeypatch.setattr(store, step, lambda *a, real=real: (try_lock(), real(*a))[1])
    store.sync(tracked(rounds=ROUNDS, status="FINISHED"))
    assert not taken


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (sqlite3.SQLITE_READONLY, "Permission denied; change its permissions"),
        (sqlite3.SQLITE_CANTOPEN, "Permission denied; change its permissions"),
        (sqlite3.SQLITE_FULL, "No space left on device; free some space"),
    ],
)
def test_errors_of_a_database_name_its_file_and_a_remedy(
    code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda kind: (1, -1))
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    (tmp_path / "mlflow.db").touch()
    assert reason(error, f"sqlite:///{tmp_path}/mlflow.db").startswith(
        f"{tmp_path}/mlflow.db: {said}"
    )


def test_an_error_of_a_file_names_a_remedy(tmp_path: Path) -> None:
    error = PermissionError(13, "Permission denied", str(tmp_path / ".mlflow.db.lock"))
    said = f"{tmp_path}/.mlflow.db.lock: Permission denied; change its permissions"
    assert reason(error) == said
    assert not refused(error)


# --- what users do to a store ---------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a%20b", "a%2Fb?c#d", "100% ä&b=c it's"])
def test_a_results_folder_may_have_any_name(
    name: str, tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    results = tmp_path / "place" / name
    results.mkdir(parents=True)
    uri = resolve_uri(results)
    assert sqlite_path(uri) == results / "mlflow.db"
    shutil.copy(empty_database, results)
    note = tmp_path / "it's.txt"
    note.write_text("kept")
    run = tracked("it's", status="FINISHED", files=[(note, "")])
    Store(uri, "it's an experiment").sync(run)
    assert [path.name for path in (tmp_path / "place").iterdir()] == [name]
    assert {path.name for path in results.iterdir()} >= {"mlflow.db", "mlartifacts"}
    assert Held(uri).artifact(Held(uri).run("it's an experiment"), "it's.txt") == "kept"
    assert shlex.quote(uri) in ui_command(uri)


def test_artifacts_follow_results_that_were_moved(tmp_path: Path, empty_database: Path) -> None:
    note, before = tmp_path / "note.txt", tmp_path / "first"
    note.write_text("kept")
    before.mkdir()
    shutil.copy(empty_database, before)
    for name in ("first", "sec%20ond", "third"):
        before = before.rename(tmp_path / name)
        uri = sqlite_uri(before / "mlflow.db")
        store = Store(uri, "digits")
        store.sync(tracked(name, status="FINISHED", files=[(note, "")]))
        assert len(store.notices) == (name != "first")
        assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [name]
    held = Held(uri)
    assert [held.artifact(run, "note.txt") for run in held.runs("digits")] == ["kept"] * 3


def test_artifacts_stay_where_they_are_if_only_the_database_was_moved(
    tmp_path: Path, empty_database: Path
) -> None:
    for place in ("old", "new"):
        (tmp_path / place).mkdir()
    shutil.copy(empty_database, tmp_path / "old" / "mlflow.db")
    note = tmp_path / "note.txt"
    note.write_text("kept")
    Store(f"sqlite:///{tmp_path}/old/mlflow.db", "digits").sync(
        tracked(status="FINISHED", files=[(note, "")])
    )
    (tmp_path / "old" / "mlflow.db").rename(tmp_path / "new" / "mlflow.db")
    uri = f"sqlite:///{tmp_path}/new/mlflow.db"
    store = Store(uri, "digits")
    store.connect()
    assert store.notices == []
    assert Held(uri).artifact(Held(uri).run(), "note.txt") == "kept"


def test_an_experiment_that_was_deleted_is_restored_and_said(uri: str) -> None:
    Store(uri, "digits").sync(tracked("a", status="FINISHED"))
    client = Held(uri).client
    client.delete_experiment(client.get_experiment_by_name("digits").experiment_id)
    store = Store(uri, "digits")
    store.sync(tracked("b", status="FINISHED"))
    assert {run.info.run_name for run in Held(uri).runs("digits")} == {"a", "b"}
    assert "digits had been deleted in MLflow; it is restored" in store.notices[0]
    [b] = [run for run in Held(uri).runs("digits") if run.info.run_name == "b"]
    client.delete_run(b.info.run_id)
    again = Store(uri, "digits")
    again.sync(tracked("b", status="FINISHED"))  # a run that was deleted alone is made anew
    assert again.notices == []
    assert len(Held(uri).runs("digits")) == 2


def test_a_database_of_another_version_says_the_whole_command(tmp_path: Path, uri: str) -> None:
    path = sqlite_path(uri)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '7f2a7d5fae7d'")
    with pytest.raises(Exception, match="schema") as caught:
        Store(uri, "digits").connect()
    said = reason(caught.value, uri)
    assert f"mlflow db upgrade {uri}; " in said
    assert not refused(caught.value)
    assert 'upgrade "$MLFLOW_TRACKING_URI"' in reason(caught.value, "postgresql://a:secret@h/db")


def test_a_file_that_cannot_be_read_concerns_its_run_only(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "note.txt"
    note.write_text("kept")
    real = Path.open

    def refuse(path: Path, *args: Any, **more: Any) -> Any:
        if path == note:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"note.txt cannot be read: Permission denied") as caught:
        Store(uri, "digits").sync(tracked(status="FINISHED", files=[(note, "")]))
    assert refused(caught.value)
    assert not refused(OSError(28, "No space left on device"))
