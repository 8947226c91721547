from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedray.config import Experiment
from fedray.errors import FedrayError, UserError
from fedray.records import (
    Costs,
    Environment,
    Event,
    FolderClaim,
    Round,
    Run,
    RunFolder,
    RunInfo,
    Traffic,
    versions,
)
from fedray.runtime.resolve import from_tree
from fedray.tracking import (
    MlflowTracker,
    NullTracker,
    Tracker,
    describe_run,
    experiment_name,
    grouped,
    resolve_uri,
    run_key,
    run_name,
    source_tags,
    tracker_for,
    ui_command,
    ui_hint,
    upload,
)
from fedray.tracking.__main__ import main
from fedray.tracking.describe import (
    MAX_PARAM,
    Totals,
    metrics_of,
    params_of,
    per_client_json,
    read_metadata,
    valid_name,
)
from fedray.tracking.store import Store, check_installed, reason

Serve = Callable[[int], "subprocess.Popen[bytes]"]


def make_round(round_: int, seconds: float = 2.0) -> Round:
    return Round(
        round=round_,
        seconds=seconds,
        metrics={"local_accuracy": 0.1 * round_, "train_loss": 1.0 / (1 + round_)}
        | {"local_accuracy_weighted": 0.1},
        per_client={0: 0.1, 1: 0.2 * round_, 10: 0.3},
        up=Traffic(
            {"prototypes": 15, "weights": 10}, {"prototypes": 60 * round_, "weights": 40 * round_}
        ),
        down=Traffic({"prototypes": 5}, {"prototypes": 10 * round_}),
        participants=[0, 1],
        events=[Event(1, "late")],
    )


def make_run(rounds: int, of: int | None = None, seed: int = 0) -> Run:
    experiment = Experiment(name="digits", rounds=of or rounds, seed=seed)
    info = RunInfo(
        name="digits",
        scale="laptop",
        algorithm="fedtsp",
        config=experiment.tree(),
        seed=seed,
        identity=experiment.identity("data"),
        environment=Environment({"torch": "2.15.0", "git": "abc"}),
        partition_sha256="f" * 64,
        data_sha256="d" * 64,
    )
    costs = Costs(wall_seconds=2.0 * (rounds + 1))
    return Run(info, [make_round(r) for r in range(rounds + 1)], costs)


def write_run(folder: Path, run: Run) -> Path:
    RunFolder(folder).write(run)
    (folder / "config.yaml").write_text("rounds: 3\n")
    (folder / "partition.json").write_text("{}")
    return folder


@pytest.fixture
def uri(tmp_path: Path, empty_database: Path) -> str:
    path = tmp_path / "store" / "mlflow.db"
    path.parent.mkdir()
    shutil.copy(empty_database, path)
    return f"sqlite:///{path}"


class Held:
    """What a store holds."""

    def __init__(self, uri: str) -> None:
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri=uri)

    def runs(self, experiment: str) -> list[Any]:
        found = self.client.get_experiment_by_name(experiment)
        return [] if found is None else list(self.client.search_runs([found.experiment_id]))

    def run(self, experiment: str = "digits") -> Any:
        (only,) = self.runs(experiment)
        return only

    def history(self, run: Any, name: str) -> list[tuple[int, float]]:
        points = self.client.get_metric_history(run.info.run_id, name)
        return sorted((point.step, point.value) for point in points)

    def artifact(self, run: Any, path: str) -> str:
        return Path(self.client.download_artifacts(run.info.run_id, path)).read_text()

    def artifacts(self, run: Any, folder: str | None = None) -> set[str]:
        return {item.path for item in self.client.list_artifacts(run.info.run_id, folder)}

    def assert_every_metric_once_per_round(self, run: Any, rounds: range) -> None:
        assert "time/seconds" in run.data.metrics
        for name in run.data.metrics:
            steps = [step for step, _ in self.history(run, name)]
            assert steps == list(rounds), name


# --- names, params, metrics ----------------------------------------------------------------------


def test_importing_tracking_is_light() -> None:
    code = (
        "import sys, fedray.tracking; "
        "print([m for m in ('mlflow', 'torch', 'matplotlib', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_configuration_is_flattened_by_dotted_keys() -> None:
    tree = {"data": {"partition": {"alpha": 0.1}, "root": None}, "lr": 1e-3, "on": True}
    assert params_of({**tree, "name": "a", "empty": "", "list": [1, 2], "none": {}}) == {
        "data.partition.alpha": "0.1",
        "data.root": "null",
        "lr": "0.001",
        "on": "true",
        "name": "a",
        "empty": '""',
        "list": "[1, 2]",
        "none": "{}",
    }


def test_long_values_are_cut_and_say_so() -> None:
    (value,) = params_of({"text": "x" * 7000}).values()
    assert len(value) == MAX_PARAM
    assert value.endswith("... (7000 characters)")


def test_names_are_valid_and_stay_distinct() -> None:
    assert valid_name("up_bytes/prototypes") == "up_bytes/prototypes"
    long = [valid_name("a" * 300 + end) for end in "xy"]
    odd = [valid_name(name) for name in ("λ", "τ", "../up", "a//b", "/")]
    assert all(len(name) <= 250 and name.isascii() for name in long + odd)
    assert len(set(long + odd)) == 7


def test_metrics_are_flat_and_without_clients() -> None:
    found = metrics_of(make_round(3))
    assert found["accuracy/local_accuracy"] == pytest.approx(0.3)
    assert found["traffic/up_bytes"] == 300.0
    assert found["traffic/by kind/up_bytes_prototypes"] == 180.0
    assert found["traffic/by kind/down_params_prototypes"] == 5
    assert (found["round/faults"], found["round/participants"]) == (1, 2)
    assert not [name for name in found if "client" in name]
    assert "round" not in found
    assert "round/participants" not in metrics_of(Round(0, 1.0, {}))


def test_charts_begin_with_accuracy_and_fold_the_rest() -> None:
    names = {
        "local_accuracy": "accuracy/local_accuracy",
        "dice_in_A": "accuracy/others/dice_in_A",
        "local_accuracy_worst10": "accuracy/over clients/local_accuracy_worst10",
        "validation/local_accuracy": "accuracy/validation/local_accuracy",
        "train_loss": "loss/train_loss",
        "tau": "measured/tau",
        "client/local_accuracy": "client/local_accuracy",
    }
    assert {name: grouped(name) for name in names} == names
    sections = sorted({name.rpartition("/")[0] for name in metrics_of(make_round(1))})
    assert sections == [
        "accuracy",
        "accuracy/others",
        "loss",
        "round",
        "time",
        "traffic",
        "traffic/by kind",
    ]


def test_totals_count_each_round_once() -> None:
    totals = Totals()
    points = [totals.point(make_round(r)) for r in (0, 1, 2, 2, 1, 3)]
    assert [None if p is None else p.step for p in points] == [0, 1, 2, None, None, 3]
    assert points[5] is not None
    assert points[5].metrics["traffic/total_up_bytes"] == 600
    assert points[5].total_seconds == 8


def test_per_client_table_is_clients_by_rounds() -> None:
    tables = json.loads(per_client_json({2: {10: 0.5, 9: 0.1}, 0: {9: 0.2}}))
    expected = {"rounds": [0, 2], "clients": [9, 10], "values": [[0.2, 0.1], [None, 0.5]]}
    assert tables == {"per_client": expected}
    assert per_client_json({}) == ""


def test_a_run_is_described_by_its_whole_configuration() -> None:
    experiment = from_tree({"algorithm": {"name": "fedproto", "lambda": 7}, "seed": 3})
    info = replace(
        make_run(1).info, config=experiment.tree(), seed=3, environment=Environment(versions())
    )
    params, tags = describe_run(info)
    assert params["algorithm.lambda"] == "7.0"
    assert params["algorithm.proto_agg"] == "weighted"  # never set, and yet it is there
    assert params["data.partition.name"] == "fedtsp_dirichlet"
    assert params["data.partition.min_samples"] == "null"
    assert (tags["fedray.method"], tags["fedray.seed"], tags["scale"]) == ("fedtsp", "3", "laptop")
    assert tags["fedray.data"] == "digits"
    assert tags["mlflow.source.name"] == "fedray run digits"
    assert run_name(info) == "fedtsp digits seed 3"
    assert tags["fedray.identity"] == info.identity
    assert tags["data_sha256"] == "d" * 64
    assert tags["version.torch"][0].isdigit()


# --- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("described", "commit", "dirty"),
    [("cf3951de5740", "cf3951de5740", "false"), ("v1.2-3-gabc1234-dirty", "abc1234", "true")],
)
def test_the_commit_is_what_mlflow_takes_for_one(described: str, commit: str, dirty: str) -> None:
    tags = source_tags("fedray run x", {"git": described})
    assert tags["mlflow.source.git.commit"] == commit
    assert tags["mlflow.source.git.dirty"] == dirty
    assert "mlflow.source.git.commit" not in source_tags("fedray run x", {})


def test_runs_are_compared_by_their_data_and_own_questions_keep_their_name() -> None:
    experiment = from_tree({"algorithm": "fedproto", "data": {"source": "digits"}})
    assert experiment_name("fedtsp_digits", experiment.tree()) == "methods on digits"
    assert experiment_name("does it help", experiment.tree()) == "does it help"
    pictures = {"data": {"source": {"name": "image_folder"}, "root": "/home/me/leaves/"}}
    assert experiment_name("fedtsp_digits", pictures) == "methods on image_folder leaves"


def test_a_folder_keeps_its_key_when_it_moves(tmp_path: Path) -> None:
    key = run_key(tmp_path / "a b", "1" * 64)
    assert run_key(tmp_path / "a b", "1" * 64) == key
    (tmp_path / "a b").rename(tmp_path / "c")
    assert run_key(tmp_path / "c", "1" * 64, name="c") == key
    assert read_metadata(tmp_path / "c")["name"] == "c"
    assert run_key(tmp_path / "c", "1" * 64) == key
    assert read_metadata(tmp_path / "c")["name"] == "c"


def test_a_folder_that_is_run_anew_gets_a_new_key(tmp_path: Path) -> None:
    keys = {run_key(tmp_path / "a", "1" * 64), run_key(tmp_path / "a", "2" * 64)}
    shutil.rmtree(tmp_path / "a")
    keys.add(run_key(tmp_path / "a", "1" * 64))
    assert len(keys) == 3


def test_broken_metadata_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "tracking.json").write_text("{")
    with pytest.raises(UserError, match=r"tracking.json cannot be read.*delete it"):
        run_key(tmp_path, "1")
    (tmp_path / "tracking.json").write_text("{}")
    with pytest.raises(UserError, match="holds no key"):
        run_key(tmp_path, "1")


# --- where ---------------------------------------------------------------------------------------


def test_default_store_is_next_to_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    assert resolve_uri(Path("results")) == f"sqlite:///{tmp_path}/results/mlflow.db"
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "home"))
    tracker = tracker_for("digits")
    assert ui_hint(tracker) == (
        f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/home/mlflow.db --port 5000"
    )
    assert ui_hint(NullTracker()) is None
    assert not (tmp_path / "home").exists()


def test_environment_decides_and_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///my.db")
    assert resolve_uri(Path("results")) == f"sqlite:///{tmp_path}/my.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert ui_command(resolve_uri(Path("results"))) == "http://host:5000"
    assert ui_command("http://ada:secret@host:5000") == "http://ada:***@host:5000"
    assert ui_command("postgresql://ada:secret@host/db") == (
        'mlflow ui --backend-store-uri "$MLFLOW_TRACKING_URI" --port 5000'
    )


@pytest.mark.parametrize("uri", ["mlruns", "file:///tmp/mlruns"])
def test_a_folder_is_refused(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UserError, match=f"MLFLOW_TRACKING_URI={uri} is a folder"):
        resolve_uri(Path("results"))


def test_a_folder_called_mlflow_is_not_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = SimpleNamespace(origin=None, submodule_search_locations=["/here/mlflow"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: folder)
    with pytest.raises(UserError, match=r"finds only the folder /here/mlflow.*--no-track"):
        MlflowTracker("http://host", "e")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="mlflow is not installed"):
        check_installed()


# --- a run in a database -------------------------------------------------------------------------


def test_an_experiment_opens_as_model_training(uri: str) -> None:
    tracker: Tracker = MlflowTracker(uri, "digits")
    tracker.start("k", "my run", params={}, tags={})
    tracker.close()
    place = Held(uri).client.get_experiment_by_name("digits")
    assert place.tags["mlflow.experimentKind"] == "custom_model_development"


def test_a_run_is_all_there(tmp_path: Path, uri: str) -> None:
    folder = write_run(tmp_path / "run", make_run(3))
    tracker: Tracker = MlflowTracker(uri, "digits")
    params = {**params_of(make_run(3).info.config), "extra": 5}
    tracker.start("k", "my run", params=params, tags={"algorithm": "fedtsp"})
    for r in range(4):
        tracker.round("k", make_round(r))
    files = [folder / n for n in ("result.json", "config.yaml", "matrices.json")]
    tracker.finish("k", "FINISHED", files, {"best": 0.3})
    tracker.close()

    held = Held(uri)
    run = held.run()
    assert (run.info.run_name, run.info.status) == ("my run", "FINISHED")
    assert run.data.params["extra"] == "5"
    assert {k: run.data.params[k] for k in params} == {k: str(v) for k, v in params.items()}
    assert run.data.tags["algorithm"] == "fedtsp"
    assert run.data.tags["fedray.key"] == "k"
    assert run.data.tags["partition_sha256"] == "f" * 64
    assert held.history(run, "best") == [(3, 0.3)]
    accuracy = [(r, make_round(r).metrics["local_accuracy"]) for r in range(4)]
    assert held.history(run, "accuracy/local_accuracy") == accuracy
    assert held.history(run, "traffic/by kind/up_bytes_prototypes") == [
        (0, 0),
        (1, 60),
        (2, 120),
        (3, 180),
    ]
    assert held.history(run, "traffic/total_up_bytes") == [(0, 0), (1, 100), (2, 300), (3, 600)]
    assert held.history(run, "time/total_seconds") == [(0, 2), (1, 4), (2, 6), (3, 8)]
    assert held.artifacts(run) == {"result.json", "config.yaml", "per_client.json"}
    assert json.loads(held.artifact(run, "per_client.json"))["per_client"] == {
        "rounds": [0, 1, 2, 3],
        "clients": [0, 1, 10],
        "values": [[0.1] * 4, [0.2 * r for r in range(4)], [0.3] * 4],
    }
    assert (tmp_path / "store" / "mlartifacts").is_dir()


def test_an_experiment_says_its_question_and_opens_with_accuracy_first(uri: str) -> None:
    tracker = MlflowTracker(uri, "digits", question="Does text help?")
    tracker.start("k", "n", params={}, tags={})
    tracker.finish("k", "FINISHED")
    tracker.close()
    client = Held(uri).client
    place = client.get_experiment_by_name("digits")
    assert place.tags["mlflow.note.content"] == "Does text help?"
    columns = json.loads(place.tags["mlflow.sharedViewState.accuracy"])["selectedColumns"]
    assert columns[1] == "metrics.`accuracy/local_accuracy`"
    assert f"/#/experiments/{place.experiment_id}/runs?viewStateShareKey=accuracy" in str(
        ui_hint(tracker)
    )

    client.set_experiment_tag(place.experiment_id, "mlflow.note.content", "my own words")
    again = MlflowTracker(uri, "digits", question="Does text help?")
    again.start("k", "n", params={}, tags={})
    again.finish("k", "FINISHED")
    again.close()
    place = client.get_experiment_by_name("digits")
    assert place.tags["mlflow.note.content"] == "my own words"


def test_a_description_shows_the_runs_figure_and_leaves_other_words_alone(uri: str) -> None:
    def described(note: str) -> tuple[str, str]:
        tracker = MlflowTracker(uri, "digits")
        tracker.start("k", "n", params={}, tags={})
        tracker.finish("k", "FINISHED", note=note)
        tracker.close()
        run = Held(uri).run()
        return run.info.run_id, run.data.tags["mlflow.note.content"]

    described("4 of 5 rounds")
    run_id, note = described("5 of 5 rounds ![who](artifact:partition.png)")
    assert "4 of 5" not in note
    assert f"5 of 5 rounds ![who](get-artifact?run_uuid={run_id}&path=partition.png)" in note
    assert "**FedX&lt;script>**" in described("**FedX<script>**")[1]
    Held(uri).client.set_tag(run_id, "mlflow.note.content", "mine")
    assert described("anew")[1] == "mine"


def test_more_than_a_batch_and_more_than_a_name_can_hold(uri: str) -> None:
    many = {f"m{i}": float(i) for i in range(2100)} | {"λ": 3.0}
    done = replace(make_round(0), metrics={**make_round(0).metrics, **many})
    params: dict[str, Any] = {f"p{i}": i for i in range(250)}
    params |= {"k" * 400: "x" * 9000}
    tracker = MlflowTracker(uri, "digits")
    tracker.start("k", "n", params=params, tags={f"t{i}": "y" * 9000 for i in range(120)})
    tracker.round("k", done)
    tracker.finish("k", "FINISHED")
    tracker.close()
    assert tracker.failure is None
    run = Held(uri).run()
    assert len(run.data.params) == 251
    assert run.data.metrics["measured/m2099"] == 2099
    assert run.data.metrics[grouped("λ")] == 3.0
    assert run.data.tags["t119"].endswith("... (9000 characters)")


def test_only_per_client_of_the_process_without_a_result_file(uri: str) -> None:
    tracker = MlflowTracker(uri, "digits")
    tracker.start("k", "n", params={}, tags={})
    tracker.round("k", make_round(1))
    tracker.finish("k", "FAILED")
    tracker.close()
    held = Held(uri)
    assert held.run().info.status == "FAILED"
    assert json.loads(held.artifact(held.run(), "per_client.json"))["per_client"]["rounds"] == [1]


@pytest.mark.parametrize("passed_again", [range(0), range(3), range(2, 3)])
def test_a_resumed_run_goes_on_in_the_same_run(
    passed_again: range, tmp_path: Path, uri: str
) -> None:
    first = MlflowTracker(uri, "digits")
    first.start("k", "n", params={"workers": 2}, tags={"git": "a"})
    for r in range(4):
        first.round("k", make_round(r))
    first.close()  # killed: it was never finished
    assert first.failure is None
    before = Held(uri).run()
    assert before.info.status == "RUNNING"

    second = MlflowTracker(uri, "digits")
    second.start("k", "n", params={"workers": 4, "new": 1}, tags={"git": "b", "host": "x"})
    for r in [*passed_again, 3, 4, 5]:  # round 3 is after the checkpoint, so it is done again
        second.round("k", make_round(r, seconds=2.0 if r in passed_again else 7.0))
    result = make_run(5)
    second.finish("k", "FINISHED", [write_run(tmp_path / "run", result) / "result.json"])
    second.close()

    held = Held(uri)
    run = held.run()
    assert second.failure is None
    assert run.info.run_id == before.info.run_id
    assert run.info.status == "FINISHED"
    assert run.data.params == {"workers": "2", "new": "1"}
    assert (run.data.tags["git"], run.data.tags["host"]) == ("a", "x")
    held.assert_every_metric_once_per_round(run, range(6))
    assert second.rounds_logged == 2
    assert dict(held.history(run, "traffic/total_up_bytes"))[5] == 1500
    tables = json.loads(held.artifact(run, "per_client.json"))
    assert tables["per_client"]["rounds"] == [0, 1, 2, 3, 4, 5]


def test_a_run_started_twice_in_one_process_is_one_run(uri: str) -> None:
    tracker = MlflowTracker(uri, "digits")
    for rounds in (range(3), range(6)):  # a trial that dies is started again
        tracker.start("k", "n", params={"a": 1}, tags={})
        for r in rounds:
            tracker.round("k", make_round(r))
    tracker.finish("k", "FINISHED")
    tracker.close()
    held = Held(uri)
    held.assert_every_metric_once_per_round(held.run(), range(6))


def test_children_belong_to_their_parent_and_orphans_are_closed(uri: str) -> None:
    first = MlflowTracker(uri, "sweep")
    parent = first.start_parent("sweep 1", {"search": "grid"}, {"sweep": "s"}, key="p")
    for key in ("a", "b"):
        first.start(key, key, params={}, tags={})
        first.round(key, make_round(0))
    first.finish("a", "FINISHED", metrics={"objective": 0.5})
    first.close()  # killed: b is left running
    assert first.failure is None

    held = Held(uri)
    assert {run.info.run_name: run.info.status for run in held.runs("sweep")} == {
        "sweep 1": "RUNNING",
        "a": "FINISHED",
        "b": "RUNNING",
    }
    second = MlflowTracker(uri, "sweep")
    assert second.start_parent("sweep 1", {"search": "grid"}, {}, key="p") == parent
    assert {run.info.run_name: run.info.status for run in held.runs("sweep")}["b"] == "KILLED"
    assert second.start("c", "c", params={}, tags={}) is None
    second.finish("c", "KILLED")
    second.finish_parent("FINISHED", metrics={"best": 0.5})
    second.close()

    runs = {run.info.run_name: run for run in held.runs("sweep")}
    assert {name: run.info.status for name, run in runs.items()} == {
        "sweep 1": "FINISHED",
        "a": "FINISHED",
        "b": "KILLED",
        "c": "KILLED",
    }
    assert second.run_id("c") == runs["c"].info.run_id
    assert runs["sweep 1"].data.metrics == {"best": 0.5}
    parents = {name: run.data.tags.get("mlflow.parentRunId") for name, run in runs.items()}
    assert parents == {"sweep 1": None, "a": parent, "b": parent, "c": parent}


def test_files_of_the_same_name_are_distinct(tmp_path: Path, uri: str) -> None:
    folders = [write_run(tmp_path / f"seed_{s}", make_run(s + 1, seed=s)) for s in (0, 1)]
    tracker = MlflowTracker(uri, "digits")
    tracker.start("k", "n", params={}, tags={})
    tracker.finish("k", "FINISHED", [f / "result.json" for f in folders])
    tracker.close()
    held = Held(uri)
    run = held.run()
    assert held.artifacts(run) == {"seed_0", "seed_1"}
    assert held.artifacts(run, "seed_1") == {"seed_1/result.json", "seed_1/per_client.json"}
    tables = json.loads(held.artifact(run, "seed_1/per_client.json"))
    assert tables["per_client"]["rounds"] == [0, 1, 2]


@pytest.mark.slow
def test_an_odd_folder_name_is_no_obstacle(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/re sults 50%/mlflow.db"
    folder = write_run(tmp_path / "it's", make_run(1))
    tracker = MlflowTracker(uri, "it's an experiment")
    tracker.start("it's", "n", params={}, tags={})
    tracker.finish("it's", "FINISHED", [folder / "result.json"])
    tracker.close()
    assert tracker.failure is None
    held = Held(uri)
    assert held.artifacts(held.run("it's an experiment")) == {"result.json", "per_client.json"}
    assert (tmp_path / "re sults 50%" / "mlartifacts").is_dir()


# --- failures ------------------------------------------------------------------------------------


def test_a_request_that_arrived_although_it_failed_is_not_logged_twice(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = MlflowTracker(uri, "digits", retry_seconds=0.05)
    tracker._store.connect()
    real = tracker._store._client.log_batch
    fails = Counter[str]()

    def log_batch(run_id: str, **what: Any) -> None:
        real(run_id, **what)
        for metric in what.get("metrics", ()):
            if metric.key == "time/seconds" and metric.step in (1, 3) and fails["n"] < 2:
                fails["n"] += 1
                raise TimeoutError("no answer")

    tracker._store._client.log_batch = log_batch
    tracker.start("k", "n", params={"a": 1}, tags={})
    for r in range(5):
        tracker.round("k", make_round(r))
    deadline = time.monotonic() + 20
    while tracker.rounds_logged < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    tracker.finish("k", "FINISHED")
    tracker.close()
    held = Held(uri)
    assert fails["n"] == 2
    held.assert_every_metric_once_per_round(held.run(), range(5))
    assert held.run().info.status == "FINISHED"
    first, last = capsys.readouterr().err.splitlines()
    assert "TimeoutError: no answer" in first
    assert last == "tracking: MLflow has taken everything after all"


def test_a_run_that_was_created_twice_is_one_run(uri: str) -> None:
    tracker = MlflowTracker(uri, "digits", retry_seconds=0.05)
    tracker._store.connect()
    real, calls = tracker._store._client.create_run, Counter[str]()

    def create_run(*args: Any, **what: Any) -> Any:
        calls["n"] += 1
        if calls["n"] == 1:  # repeated by a proxy, and no answer arrived
            for _ in range(2):
                real(*args, **what)
            raise TimeoutError("no answer")
        return real(*args, **what)

    tracker._store._client.create_run = create_run
    tracker.start("k", "n", params={"a": 1}, tags={})
    tracker.round("k", make_round(0))
    tracker.finish("k", "FINISHED")
    tracker.close()
    held = Held(uri)
    held.assert_every_metric_once_per_round(held.run(), range(1))


def test_a_run_that_is_created_long_after_its_request_was_given_up_goes_away(uri: str) -> None:
    tracker = MlflowTracker(uri, "digits", retry_seconds=0.05)
    tracker._store.connect()
    client = tracker._store._client
    create, log = client.create_run, client.log_batch
    late: list[Callable[[], Any]] = []

    def create_run(*args: Any, **what: Any) -> Any:
        if not late:
            late.append(lambda: create(*args, **what))
            raise TimeoutError("no answer")
        return create(*args, **what)

    def log_batch(*args: Any, **what: Any) -> None:
        log(*args, **what)
        if len(late) == 1:
            late.append(late[0]())

    client.create_run, client.log_batch = create_run, log_batch
    tracker.start("k", "n", params={}, tags={})
    tracker.round("k", make_round(0))
    tracker.finish("k", "FINISHED")
    tracker.close()
    assert len(late) == 2
    held = Held(uri)
    held.assert_every_metric_once_per_round(held.run(), range(1))


def test_twins_of_a_killed_driver_become_the_one_that_has_more(uri: str) -> None:
    held = Held(uri)
    place = held.client.create_experiment("digits")
    twins = [held.client.create_run(place, tags={"fedray.key": "k"}).info.run_id for _ in range(3)]
    held.client.log_metric(twins[1], "time/seconds", 2.0, step=0)
    child = held.client.create_run(place, tags={"mlflow.parentRunId": twins[2]})
    held.client.set_terminated(child.info.run_id)
    store = Store(uri, "digits")
    assert store.find("k") == twins[1]
    assert store.find("k") == twins[1]
    assert len(held.runs("digits")) == 4  # a look-up deletes nothing
    tracker = MlflowTracker(uri, "digits")
    tracker.start("k", "n", params={}, tags={})
    tracker.finish("k", "FINISHED")
    tracker.close()
    assert {run.info.run_id for run in held.runs("digits")} == {twins[1], child.info.run_id}


def test_a_round_of_which_half_arrived_is_completed_and_not_repeated(uri: str) -> None:
    many = {f"m{i}": float(i) for i in range(1500)}
    first = replace(make_round(0), metrics=many)
    killed = MlflowTracker(uri, "digits")
    killed._store.connect()
    real, calls = killed._store._client.log_batch, Counter[str]()

    def log_batch(run_id: str, **what: Any) -> None:
        calls["metrics"] += "metrics" in what
        if calls["metrics"] > 1:
            raise TimeoutError("killed here")
        real(run_id, **what)

    killed._store._client.log_batch = log_batch
    killed.start("k", "n", params={}, tags={})
    killed.round("k", first)
    killed.close(wait_seconds=20)
    assert Held(uri).run().data.metrics.keys() < {grouped(name) for name in many}

    resumed = MlflowTracker(uri, "digits")
    resumed.start("k", "n", params={}, tags={})
    resumed.round("k", replace(first, seconds=9.0))  # done again, at another time
    resumed.finish("k", "FINISHED")
    resumed.close()
    held = Held(uri)
    for name in (*(f"measured/m{i}" for i in (0, 999, 1000, 1499)), "time/seconds"):
        assert len(held.history(held.run(), name)) == 1, name


def test_final_numbers_are_there_once_after_a_kill(uri: str) -> None:
    for _ in range(2):
        tracker = MlflowTracker(uri, "digits")
        tracker.start("k", "n", params={}, tags={})
        tracker.round("k", make_round(0))
        tracker.finish("k", "FINISHED", metrics={"objective": 0.5, "objective_std": float("nan")})
        tracker.close()
    held = Held(uri)
    assert len(held.history(held.run(), "objective")) == 1
    assert len(held.history(held.run(), "objective_std")) == 1


def test_a_store_of_artifacts_that_is_down_does_not_keep_a_run_open(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path / "run", make_run(1))
    key = run_key(folder, make_run(1).info.identity)
    add_file = Store.add_file
    monkeypatch.setattr(Store, "add_file", lambda *_: 1 / 0)
    tracker = MlflowTracker(uri, "digits", folder=folder, retry_seconds=0.05)
    tracker.start(key, "n", params={}, tags={})
    for r in range(2):
        tracker.round(key, make_round(r))
    tracker.finish(key, "FINISHED", [folder / "result.json"])
    tracker.close(wait_seconds=5)
    held = Held(uri)
    assert "ZeroDivisionError" in str(tracker.failure)
    assert held.run().info.status == "FINISHED"
    monkeypatch.setattr(Store, "add_file", add_file)
    (done,) = upload([folder], uri)
    assert (done.rounds, done.files) == (0, 5)
    assert "result.json" in held.artifacts(held.run())


def test_one_refused_run_does_not_stop_the_others(uri: str) -> None:
    tracker = MlflowTracker(uri, "digits")
    tracker.start("a", "a", params={}, tags={})
    tracker.round("a", make_round(0))
    held = Held(uri)
    deadline = time.monotonic() + 20
    while tracker.run_id("a") is None and time.monotonic() < deadline:
        time.sleep(0.01)
    held.client.delete_run(tracker.run_id("a"))
    tracker.start("b", "b", params={}, tags={})
    tracker.round("a", make_round(1))
    tracker.round("b", make_round(0))
    tracker.finish("b", "FINISHED")
    tracker.close()
    runs = {run.info.run_name: run for run in held.runs("digits")}
    assert runs["b"].info.status == "FINISHED"
    held.assert_every_metric_once_per_round(runs["b"], range(1))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_a_dead_server_costs_nothing_and_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = MlflowTracker(
        f"http://127.0.0.1:{free_port()}", "digits", folder=tmp_path, retry_seconds=0.01
    )
    slowest = 0.0
    tracker.start("k", "n", params={}, tags={})
    for r in range(200):
        began = time.monotonic()
        tracker.round("k", make_round(r))
        slowest = max(slowest, time.monotonic() - began)
        time.sleep(0.01)
    tracker.finish("k", "FINISHED")
    began = time.monotonic()
    tracker.close()
    assert time.monotonic() - began < 10
    assert slowest < 1
    printed = capsys.readouterr().err
    first, last = printed.splitlines()
    assert "failed (ConnectionRefusedError" in first
    assert "is missing 200 round(s) and the end of 1 run(s)" in last
    assert first.endswith(f"python -m fedray.tracking upload {tmp_path}")
    assert last.endswith(f"python -m fedray.tracking upload {tmp_path}")
    with pytest.raises(RuntimeError, match="closed"):
        tracker.start("k", "n", params={}, tags={})


def test_a_server_that_never_answers_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedray.tracking.live.CLOSE_SECONDS", 0.5)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        tracker = MlflowTracker(f"http://127.0.0.1:{listener.getsockname()[1]}", "digits")
        tracker.start("k", "n", params={}, tags={})
        tracker.round("k", make_round(0))
        tracker.finish("k", "FINISHED")
        began = time.monotonic()
        tracker.close()
        assert time.monotonic() - began < 3
    assert "not ready after 0.5 s" in capsys.readouterr().err


def test_a_sweep_starts_without_its_server(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = MlflowTracker(uri, "sweep", retry_seconds=0.2)
    connect = Store.connect
    monkeypatch.setattr(Store, "connect", lambda self: 1 / 0)
    assert tracker.start_parent("sweep 1", {}, {}, key="p") == "key:p"
    monkeypatch.setattr(Store, "connect", connect)
    child = MlflowTracker(uri, "sweep", parent="key:p")
    child.start("a", "a", params={}, tags={})
    child.finish("a", "FINISHED")
    child.close()
    tracker.finish_parent("FINISHED")
    tracker.close()
    runs = {run.data.tags["fedray.key"]: run for run in Held(uri).runs("sweep")}
    assert set(runs) == {"p", "a"}
    assert runs["a"].data.tags["mlflow.parentRunId"] == runs["p"].info.run_id
    assert runs["p"].info.status == "FINISHED"


def test_the_innermost_cause_is_named() -> None:
    error = RuntimeError("wrapped")
    error.__cause__ = OSError("handled")
    error.__cause__.__context__ = ConnectionRefusedError("nobody\n is there")
    assert reason(error) == "ConnectionRefusedError: nobody is there"


# --- upload --------------------------------------------------------------------------------------


def test_upload_adds_what_is_missing_and_nothing_twice(tmp_path: Path, uri: str) -> None:
    folder = write_run(tmp_path / "runs" / "one", make_run(5))
    tracker = MlflowTracker(uri, "digits")
    tracker.start(run_key(folder, make_run(5).info.identity), "one", params={"lr": 1}, tags={})
    for r in range(3):
        tracker.round(run_key(folder, make_run(5).info.identity), make_round(r))
    tracker.close()

    (done,) = upload([tmp_path / "runs"], uri)
    params = len(params_of(make_run(5).info.config))
    assert (done.folder, done.rounds, done.params, done.files) == (folder, 3, params - 1, 5)
    held = Held(uri)
    run = held.run()
    assert run.info.run_id == done.run_id
    assert run.info.status == "FINISHED"
    assert (run.data.params["lr"], run.data.params["rounds"]) == ("1", "5")
    held.assert_every_metric_once_per_round(run, range(6))
    assert dict(held.history(run, "traffic/total_up_bytes"))[5] == 1500
    assert {"result.json", "per_client.json"} < held.artifacts(run)

    (second,) = upload([tmp_path / "runs", folder], uri)
    assert (second.rounds, second.params, second.files) == (0, 0, 0)
    assert str(second) == f"{folder}: nothing was missing"
    held.assert_every_metric_once_per_round(held.run(), range(6))


def test_upload_leaves_a_run_open_whose_process_goes_on(tmp_path: Path, uri: str) -> None:
    folder = write_run(tmp_path / "half", make_run(2, of=4))
    claim = FolderClaim(RunFolder(folder))
    claim.acquire()
    try:
        upload([folder], uri)
        assert Held(uri).run().info.status == "RUNNING"
    finally:
        claim.release()
    upload([folder], uri)
    assert Held(uri).run().info.status == "KILLED"


def test_upload_of_unknown_runs(tmp_path: Path, uri: str) -> None:
    write_run(tmp_path / "runs" / "whole", make_run(2))
    write_run(tmp_path / "runs" / "half", make_run(2, of=4))
    run_key(tmp_path / "runs" / "half", make_run(2, of=4).info.identity, experiment="mine")
    done = upload([tmp_path / "runs"], uri)
    assert [(d.folder.name, d.rounds) for d in done] == [("half", 3), ("whole", 3)]
    held = Held(uri)
    whole, half = held.run("digits"), held.run("mine")
    assert (whole.data.tags["fedray.folder"], whole.info.status) == ("whole", "FINISHED")
    assert (half.data.tags["fedray.folder"], half.info.status) == ("half", "KILLED")
    assert whole.info.run_name == half.info.run_name == "fedtsp digits seed 0"
    (given,) = whole.inputs.dataset_inputs
    assert (given.dataset.name, given.dataset.digest) == ("digits", f"{'d' * 12}-{'f' * 12}")
    assert json.loads(given.dataset.profile)["partition_sha256"] == "f" * 64
    assert whole.data.tags["partition_sha256"] == "f" * 64
    assert whole.info.end_time - whole.info.start_time == 6000
    began = (tmp_path / "runs" / "whole" / "partition.json").stat().st_mtime
    assert whole.info.start_time == int(began * 1000)


@pytest.mark.parametrize("text", ["nope", "[]", '{"format": 3}'])
def test_a_damaged_sweep_is_one_sentence(text: str, tmp_path: Path, uri: str) -> None:
    write_run(tmp_path / "trial_0" / "seed_0", make_run(2))
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(UserError, match=r"sweep\.json is damaged .*; it is not uploaded"):
        upload([tmp_path], uri, replay=lambda *_: None)


def test_upload_of_a_sweep_logs_all_of_it(tmp_path: Path, uri: str) -> None:
    home = tmp_path / "sweep"
    write_run(home / "trial_0" / "seed_0", make_run(2))
    (home / "sweep.json").write_text(json.dumps({"sweep": "question"}))

    def replay(folder: Path, tracker: Tracker) -> None:
        assert folder == home
        tracker.start("t0", "trial_0", params={}, tags={})
        for r in range(3):
            tracker.round("t0", make_round(r))
        tracker.finish("t0", "FINISHED", [home / "trial_0" / "seed_0" / "result.json"])

    added = [upload([home / "trial_0"], uri, replay=replay)[0].rounds for _ in range(2)]
    assert added == [3, 0]
    held = Held(uri)
    assert held.runs("digits") == []
    held.assert_every_metric_once_per_round(held.run("question"), range(3))
    with pytest.raises(FedrayError, match="is a sweep"):
        upload([home], uri)


def test_upload_says_what_is_wrong(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def message_of(*folders: Path, uri: str = uri) -> str:
        assert main(["upload", *map(str, folders), "--uri", uri]) in (1, 2)
        return capsys.readouterr().err.strip()

    assert message_of(tmp_path / "none").endswith(
        "none is not a folder; pass a run's or sweep's folder"
    )
    assert "there is no result.json in or below" in message_of(tmp_path)
    folder = write_run(tmp_path / "run", make_run(1))
    port = free_port()
    message = message_of(folder, uri=f"http://127.0.0.1:{port}")
    assert "Connection refused" in message
    assert "--uri" in message
    (folder / "result.json").write_text("{")
    assert message_of(folder).startswith(f"error: {folder / 'result.json'} cannot be read")
    (folder / "result.json").write_text('{"config": {}}')
    assert "is not a run's result" in message_of(folder)
    assert main(["upload", str(tmp_path / "none")]) == 2


def test_the_upload_command(tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", make_run(1))
    assert main(["upload", str(folder), "--uri", uri]) == 0
    assert f"{folder}: added 2 rounds" in capsys.readouterr().out


# --- many at once --------------------------------------------------------------------------------


DIES = """
import os, sys, threading, time
from pathlib import Path
from fedray.tracking.store import Store

path = Path(sys.argv[1])
store = Store(f"sqlite:///{path}", "e")
threading.Thread(target=store.connect, daemon=True).start()
while not any(p.stat().st_size for p in path.parent.glob(".mlflow.db.*.tmp/mlflow.db")):
    time.sleep(0.001)
os._exit(9)
"""


@pytest.mark.slow
def test_a_process_that_dies_while_it_makes_the_database_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "store" / "mlflow.db"
    done = subprocess.run([sys.executable, "-c", DIES, str(path)], check=False, timeout=120)
    assert done.returncode == 9
    assert not path.exists()
    tracker = MlflowTracker(f"sqlite:///{path}", "digits")
    tracker.start("k", "n", params={}, tags={})
    tracker.round("k", make_round(0))
    tracker.finish("k", "FINISHED")
    tracker.close()
    assert tracker.failure is None
    assert Held(f"sqlite:///{path}").run().info.status == "FINISHED"
    assert [p.name for p in path.parent.iterdir() if ".tmp" in p.name] == []


def test_a_database_that_cannot_be_made_is_a_failure_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedray.tracking.store.sys.executable", "/bin/false")
    tracker = MlflowTracker(f"sqlite:///{tmp_path}/mlflow.db", "digits")
    tracker.start("k", "n", params={}, tags={})
    tracker.close()
    assert "MLflow could not make" in capsys.readouterr().err


def _log_fifty_rounds(uri: str, process: int) -> None:
    tracker = MlflowTracker(uri, "many")
    key = f"process {process}"
    tracker.start(key, key, params={"process": process}, tags={})
    for r in range(50):
        tracker.round(key, make_round(r))
    tracker.finish(key, "FINISHED")
    tracker.close(wait_seconds=200)
    assert tracker.failure is None


@pytest.mark.slow
def test_four_processes_share_a_database_that_none_of_them_finds(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_log_fifty_rounds, args=(uri, i)) for i in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(250)
    assert [process.exitcode for process in processes] == [0] * 4
    held = Held(uri)
    runs = held.runs("many")
    assert {run.data.params["process"] for run in runs} == {"0", "1", "2", "3"}
    for run in runs:
        assert run.info.status == "FINISHED"
        held.assert_every_metric_once_per_round(run, range(50))


def test_many_runs_at_once_in_one_process(uri: str) -> None:
    tracker = MlflowTracker(uri, "many")
    keys = [f"trial {i}" for i in range(20)]
    for key in keys:
        tracker.start(key, key, params={"key": key}, tags={})
    for r in range(5):
        for key in keys:
            tracker.round(key, make_round(r))
    for key in keys:
        tracker.finish(key, "FINISHED")
    tracker.close()
    held = Held(uri)
    runs = held.runs("many")
    assert sorted(run.data.params["key"] for run in runs) == sorted(keys)
    for run in runs:
        assert run.info.status == "FINISHED"
        assert held.history(run, "time/seconds") == [(r, 2.0) for r in range(5)]


# --- a real server -------------------------------------------------------------------------------


@pytest.fixture
def serve(tmp_path: Path, empty_database: Path) -> Iterator[Serve]:
    """Start `mlflow server` on a port, each time with the same database."""
    shutil.copy(empty_database, tmp_path / "server.db")
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
        command += ["--artifacts-destination", str(tmp_path / "kept")]
        with (tmp_path / "server.log").open("ab") as log:
            server = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=tmp_path,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                start_new_session=True,
            )
        started.append(server)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                return server
            except OSError:
                time.sleep(0.1)
        raise AssertionError((tmp_path / "server.log").read_text())

    yield start
    for server in started:
        kill(server)


def kill(server: subprocess.Popen[bytes]) -> None:
    """End a server and the processes that it started."""
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.mark.slow
def test_a_server_that_dies_and_comes_back(
    tmp_path: Path,
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    server = serve(port)
    result = make_run(9)
    folder = write_run(tmp_path / "run", result)
    key = run_key(folder, result.info.identity)
    tracker = MlflowTracker(uri, "digits", folder=folder, retry_seconds=0.5)
    tracker.start(key, "run", params=params_of(result.info.config), tags={})
    for r in range(4):
        tracker.round(key, make_round(r))
    deadline = time.monotonic() + 60
    while tracker.rounds_logged < 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert tracker.failure is None
    kill(server)
    for r in range(4, 10):
        began = time.monotonic()
        tracker.round(key, make_round(r))
        assert time.monotonic() - began < 1
        time.sleep(0.3)
    tracker.finish(key, "FINISHED", [folder / "result.json"])
    tracker.close()
    assert tracker.rounds_logged == 4
    printed = capsys.readouterr().err
    assert printed.count("tracking:") == 2
    assert "is missing 6 round(s) and the end of 1 run(s)" in printed
    assert printed.endswith(f"python -m fedray.tracking upload {folder}\n")

    serve(port)
    held = Held(uri)
    assert held.run().info.status == "RUNNING"
    assert main(["upload", str(folder), "--uri", uri]) == 0
    assert f"{folder}: added 6 rounds, 0 params, 5 files" in capsys.readouterr().out
    assert main(["upload", str(folder), "--uri", uri]) == 0
    assert f"{folder}: nothing was missing" in capsys.readouterr().out
    run = held.run()
    assert run.info.status == "FINISHED"
    held.assert_every_metric_once_per_round(run, range(10))
    assert held.artifacts(run) == {
        "config.yaml",
        "partition.json",
        "per_client.json",
        "result.json",
        "rounds.jsonl",
    }
    assert json.loads(held.artifact(run, "result.json"))["identity"] == result.info.identity
    assert (tmp_path / "kept").is_dir()


@pytest.mark.slow
def test_a_server_that_comes_late_gets_everything_without_an_upload(
    tmp_path: Path, serve: Serve
) -> None:
    port = free_port()
    tracker = MlflowTracker(f"http://127.0.0.1:{port}", "digits", retry_seconds=0.2)
    tracker.start("k", "n", params={"a": 1}, tags={})
    for r in range(3):
        tracker.round("k", make_round(r))
    deadline = time.monotonic() + 60
    while tracker.failure is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert tracker.failure is not None
    serve(port)
    tracker.finish("k", "FINISHED", [write_run(tmp_path / "run", make_run(2)) / "result.json"])
    tracker.close(wait_seconds=60)
    held = Held(f"http://127.0.0.1:{port}")
    run = held.run()
    assert run.info.status == "FINISHED"
    held.assert_every_metric_once_per_round(run, range(3))
    assert held.artifacts(run) == {"result.json", "per_client.json"}
