"""What MLflow shows of a run: names, params, tags, metrics; a run's key; where runs are tracked."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from lab import refused

from fedray.config import flatten
from fedray.runtime.resolve import from_tree
from fedray.storage.environment import Environment, versions
from fedray.storage.run import Round
from fedray.tracking.describe import (
    as_params,
    describe_run,
    experiment_name,
    grouped,
    metrics_of,
    run_name,
    source_tags,
    tracked_run,
    valid_name,
)
from fedray.tracking.store import check_installed, reason, resolve_uri, sqlite_path, ui_command
from tests.tracking.runs import STARTED, make_round, make_run, write_run

# --- names, params, metrics ----------------------------------------------------------------------


def test_configuration_is_flattened_by_dotted_keys():
    tree = {"data": {"partition": {"alpha": 0.1}, "root": None}, "lr": 1e-3, "on": True}
    assert as_params(flatten({**tree, "empty": "", "list": [1, 2], "none": {}})) == {
        "data.partition.alpha": "0.1",
        "data.root": "null",
        "lr": "0.001",
        "on": "true",
        "empty": '""',
        "list": "[1, 2]",
        "none": "{}",
    }


def test_names_are_valid_and_stay_distinct():
    assert valid_name("up_bytes/prototypes") == "up_bytes/prototypes"
    names = [*("a" * 300 + end for end in "xy"), "λ", "τ", "../up", "a//b", "/"]
    found = list(map(valid_name, names))
    assert all(len(name) <= 250 and name.isascii() for name in found)
    assert len(set(found)) == len(names)


def test_metrics_are_flat_and_without_clients():
    found = metrics_of(make_round(3))
    assert found["accuracy/local_accuracy"] == pytest.approx(0.3)
    assert found["traffic/up_bytes"] == 300.0
    assert found["traffic/by kind/up_bytes_prototypes"] == 180.0
    assert found["traffic/by kind/down_params_prototypes"] == 5
    assert (found["round/absent"], found["round/participants"]) == (1, 2)
    assert not [name for name in found if "client" in name]
    assert "round" not in found
    assert "round/participants" not in metrics_of(Round(0, 1.0, {}))


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("local_accuracy", "accuracy/local_accuracy"),
        ("dice_in_A", "accuracy/others/dice_in_A"),
        ("local_accuracy_worst10", "accuracy/over clients/local_accuracy_worst10"),
        ("validation/local_accuracy", "accuracy/validation/local_accuracy"),
        ("train_loss", "loss/train_loss"),
        ("tau", "measured/tau"),
        ("client/local_accuracy", "client/local_accuracy"),
    ],
)
def test_charts_begin_with_accuracy_and_fold_the_rest(name, shown):
    assert grouped(name) == shown


def test_a_run_is_described_by_its_whole_configuration():
    experiment = from_tree({"algorithm": {"name": "fedproto", "lambda": 7}, "seed": 3})
    info = replace(make_run(1).info, config=experiment.tree(), environment=Environment(versions()))
    params, tags = describe_run(info)
    expected = {
        "algorithm.lambda": "7.0",
        "algorithm.proto_agg": "weighted",  # never set, and yet it is there
        "data.partition.name": "fedtsp_dirichlet",
        "data.partition.min_samples": "null",
    }
    assert expected.items() <= params.items()
    expected = {
        "fedray.method": "fedproto",
        "fedray.seed": "3",
        "scale": "laptop",
        "fedray.data": "digits",
        "fedray.identity": info.identity,
        "data_sha256": "d" * 64,
    }
    assert expected.items() <= tags.items()
    assert run_name(info) == "fedproto digits seed 3"
    assert tags["version.torch"][0].isdigit()


@pytest.mark.parametrize(
    ("described", "commit", "dirty"),
    [("cf3951de5740", "cf3951de5740", "false"), ("v1.2-3-gabc1234-dirty", "abc1234", "true")],
)
def test_the_commit_is_what_mlflow_takes_for_one(described, commit, dirty):
    tags = source_tags("fedray run x", {"git": described})
    assert tags["mlflow.source.git.commit"] == commit
    assert tags["mlflow.source.git.dirty"] == dirty
    assert "mlflow.source.git.commit" not in source_tags("fedray run x", {})


def test_runs_are_compared_by_their_data_and_own_questions_keep_their_name():
    experiment = from_tree({"algorithm": "fedproto", "data": {"source": "digits"}})
    assert experiment_name("fedtsp_digits", experiment.tree()) == "methods on digits"
    assert experiment_name("does it help", experiment.tree()) == "does it help"
    pictures = {"data": {"source": {"name": "image_folder"}, "root": "/home/me/leaves/"}}
    assert experiment_name("fedtsp_digits", pictures) == "methods on image_folder leaves"


def test_a_folder_keeps_its_key_when_it_moves_and_goes_on(tmp_path: Path):
    key = tracked_run(write_run(tmp_path / "a", make_run(1, of=2))).key
    (tmp_path / "a").rename(tmp_path / "b")
    assert tracked_run(write_run(tmp_path / "b", make_run(2))).key == key
    later = make_run(2)
    later = replace(later, info=replace(later.info, started=STARTED + timedelta(milliseconds=1)))
    assert tracked_run(write_run(tmp_path / "a", later)).key != key
    assert tracked_run(write_run(tmp_path / "a", make_run(2, seed=1))).key != key


def test_the_status_follows_from_the_folder(tmp_path: Path):
    folder = write_run(tmp_path / "run", make_run(2, of=4))
    assert tracked_run(folder).status == "KILLED"
    (folder / "error.txt").write_text("an error")
    assert tracked_run(folder).status == "FAILED"
    assert tracked_run(folder, going=True).status == "RUNNING"
    assert tracked_run(write_run(folder, make_run(4)), going=True).status == "FINISHED"


# --- where ---------------------------------------------------------------------------------------


def test_the_store_is_next_to_the_results_unless_the_environment_names_another(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "a%20b"))
    assert sqlite_path(resolve_uri()) == tmp_path / "a%20b" / "mlflow.db"
    assert not (tmp_path / "a%20b").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///my.db")
    assert resolve_uri() == f"sqlite:///{tmp_path}/my.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert ui_command(resolve_uri()) == "http://host:5000"
    assert ui_command("http://ada:secret@host:5000") == "http://ada:***@host:5000"
    assert "secret" not in ui_command("postgresql://ada:secret@host/db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:///tmp/mlruns")
    refused(resolve_uri, "MLFLOW_TRACKING_URI=file:///tmp/mlruns")


@pytest.mark.parametrize("spec", [None, SimpleNamespace(origin=None)])  # a folder called mlflow
def test_without_mlflow_it_is_named(spec, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    refused(check_installed, "mlflow", "--no-track")


def test_the_innermost_cause_is_named():
    error = RuntimeError("wrapped")
    error.__cause__ = OSError("handled")
    error.__cause__.__context__ = ConnectionRefusedError("nobody\n is there")
    assert reason(error, "") == "ConnectionRefusedError: nobody is there"
