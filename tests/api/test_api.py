"""fedray from Python: set up, trained, watched, loaded."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pages import ROOT

import fedray
from fedray.base.errors import RunFailed, UserError
from fedray.run import main as command
from fedray.storage.run_folder import RunFolder
from fedray.studies.flow import plan_of

SMALL = {"data.clients": 3, "data.samples": 240, "local_epochs": 1, "model.feature_dim": 8}


FAILED = SimpleNamespace(code=1, study=SimpleNamespace(home=Path("home")))
"""What a study comes to of which nothing succeeded."""


@pytest.fixture
def small():
    """A small experiment."""
    return fedray.Experiment("fedproto_digits", SMALL, rounds=2)


@pytest.mark.slow
def test_the_import_is_light_and_names_collide_with_no_module():
    code = (
        "import sys, fedray; heavy = {'torch', 'ray', 'pydantic', 'numpy', 'yaml'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "assert {'Experiment', 'load'} <= set(dir(fedray));"
        "import fedray.run, fedray.sweep, fedray.cli.report, fedray.table;"
        "assert isinstance(fedray.Experiment, type) and isinstance(fedray.Sweep, type);"
        "assert isinstance(fedray.Table, type) and callable(fedray.load)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="module 'fedray' has no attribute 'nothing'"):
        _ = fedray.nothing


def test_python_and_the_command_line_give_the_same_run(small, tmp_path):
    ours = small.train(tmp_path / "ours", executor="serial")
    words = [f"{key}={value}" for key, value in SMALL.items()]
    theirs = tmp_path / "theirs"
    flags = ["--executor", "serial", "--no-track", "--out", str(theirs)]
    assert command(["fedproto_digits", *words, "rounds=2", *flags]) == 0
    there = fedray.load(theirs)
    assert [r.metrics for r in ours.rounds] == [r.metrics for r in there.rounds]
    assert ours.run.info.identity == there.run.info.identity


def test_an_experiment_comes_from_a_name_a_file_or_a_mapping(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: fedavg_digits\nrounds: 7\ndata: {clients: 4}\n")
    of_file = fedray.Experiment(file)
    tree = {"extends": "fedavg_digits", "name": "mine", "rounds": 7, "data": {"clients": 4}}
    of_mapping = fedray.Experiment(tree)
    of_name = fedray.Experiment("fedavg_digits", {"data.clients": 4, "rounds": 7}, name="mine")
    assert of_file.config == of_mapping.config == of_name.config
    assert tree["extends"] == "fedavg_digits"  # what is given is left as it was
    assert repr(of_name) == ("<Experiment mine: fedavg on digits, 4 clients, 7 rounds, seed 0>")
    other = of_name.but({"data.partition.alpha": 0.3}, data={"samples": 500})
    assert other.config["data"]["samples"] == 500
    assert other.config["data"]["clients"] == 4
    assert of_name.identity != other.identity


def test_a_key_that_was_given_stays_with_another_method_or_is_refused():
    settings = {"data.partition.alpha": 0.1, "algorithm.lambda": 10.0}
    tsp = fedray.Experiment("fedtsp_digits", settings, rounds=5)
    proto = tsp.but(algorithm="fedproto")
    assert proto.config["algorithm"]["lambda"] == 10.0
    given = fedray.Experiment("fedtsp_digits", settings, rounds=5, algorithm="fedproto")
    assert proto.identity == given.identity
    latest = tsp.but(algorithm={"name": "fedproto", "lambda": 4.0})
    assert latest.config["algorithm"]["lambda"] == 4.0
    with pytest.raises(UserError, match="lambda"):
        tsp.but(algorithm="fedavg")


def test_a_callback_sees_every_round_and_changes_no_number(small, tmp_path):
    seen = []

    def meddle(done):
        seen.append(done.round)
        done.metrics.clear()
        done.per_client.clear()
        torch.manual_seed(1)
        np.random.seed(1)  # noqa: NPY002
        random.seed(1)

    small = small.but(algorithm="fedtgp")  # its server draws and trains, in this process
    watched = small.train(tmp_path / "watched", executor="serial", callbacks=[meddle])
    alone = small.train(tmp_path / "alone", executor="serial")
    assert seen == [0, 1, 2]
    assert [r.metrics for r in watched.rounds] == [r.metrics for r in alone.rounds]
    assert watched.per_client


def test_an_error_in_a_callback_ends_the_run_and_is_named(small, tmp_path):
    def my_callback(done):
        if done.round == 1:
            raise ValueError("no disk")

    with pytest.raises(RunFailed, match=r"callback .*my_callback failed after round 1: ValueErr"):
        small.train(tmp_path / "run", executor="serial", callbacks=[my_callback])
    assert fedray.load(tmp_path / "run").run.done == 1
    result = small.train(tmp_path / "run", executor="serial")
    assert result.is_finished
    alone = small.train(tmp_path / "alone", executor="serial")
    assert [r.metrics for r in result.rounds] == [r.metrics for r in alone.rounds]


def test_folders_that_do_not_fit_are_refused(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small.but(rounds=1).train("run", executor="serial")
    again = small.but(rounds=1).train("run", executor="serial")
    assert again.is_finished
    with pytest.raises(UserError, match="holds another experiment"):
        small.but(seed=9).train("run", executor="serial")
    with pytest.raises(UserError, match="there is no run"):
        fedray.load("nowhere")
    with pytest.raises(UserError, match="neither 'ray' nor 'serial'"):
        small.train("third", executor="threads")


def test_a_result_as_tables(small, tmp_path):
    result = small.train(tmp_path / "run", executor="serial")
    rounds, clients = result.to_pandas(), result.to_pandas("clients")
    assert list(rounds.index) == [0, 1, 2]
    assert rounds["local_accuracy"].to_dict() == result.curve()
    assert clients.loc[2]["accuracy"].to_dict() == result.per_client
    sent = [(done.up.total_bytes, done.down.total_bytes) for done in result.rounds]
    assert [*zip(rounds["up_bytes"], rounds["down_bytes"], strict=True)] == sent
    assert any(up != down for up, down in sent)
    assert result.class_names[:2] == ["zero", "one"]
    assert repr(result).startswith("<Result fedproto_digits: fedproto, round 2 of 2, local acc")


def test_a_sweep_is_asked_as_its_command_is(tmp_path, monkeypatch):
    asked = []

    def carry_out(request):
        asked.append(request)
        return FAILED

    monkeypatch.setattr("fedray.api.studies.carry_out", carry_out)
    sweep = fedray.Sweep("fedtsp_lambda", {"data.partition": {"alpha": 0.5}}, rounds=3)
    with pytest.raises(RunFailed, match="no run of fedtsp_lambda succeeded"):
        sweep.run(tmp_path / "sweep")
    request = asked[0]
    assert (request.kind, request.name) == ("sweep", "fedtsp_lambda")
    assert (request.out, request.track) == (tmp_path / "sweep", True)
    assert dict(request.pairs) == {"data.partition": {"alpha": 0.5}, "rounds": 3}


@pytest.mark.parametrize("study", [fedray.Sweep, fedray.Table])
def test_ctrl_c_in_a_study_is_raised(tmp_path, monkeypatch, study):
    """Ray Tune catches the first Ctrl-C, and the command returns its exit code."""
    monkeypatch.setattr("fedray.api.studies.carry_out", lambda request: SimpleNamespace(code=130))
    with pytest.raises(KeyboardInterrupt):
        study("fedtsp_lambda").run(tmp_path / "study")


def test_results_are_opened_by_a_text_or_a_path(tmp_path):
    shutil.copytree(ROOT / "docs/results/dp2fl_table1", tmp_path, dirs_exist_ok=True)
    for folder in (tmp_path, str(tmp_path)):
        table = fedray.TableResult(folder)
        assert table.record.plan.name == "dp2fl_table1"
        assert table.markdown.startswith("# dp2fl_table1")
        frame = table.to_pandas()
        assert len(frame) == 14 * 5 * 2 + 8 * 5  # cells, seeds; three rows lack a metric
        mean = frame.loc["dp2fl", "CIFAR-10", "local_accuracy"].value.mean()
        assert mean == pytest.approx(44.900152786272386)
        with pytest.raises(UserError, match=r"plan\.json"):
            _ = fedray.SweepResult(folder).best
    edited = (tmp_path / "table.json").read_text().replace("maple", "ripple")
    (tmp_path / "table.json").write_text(edited)
    with pytest.raises(UserError, match="damaged or edited"):
        _ = fedray.TableResult(tmp_path).record


def test_a_sweep_and_a_table_may_be_mappings(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "fedray.api.studies.carry_out", lambda request: asked.append(request) or FAILED
    )
    sweep = {
        "name": "rates",
        "answers": "which rate?",
        "space": {"lr": {"grid": (0.1, 0.2)}},
        "scales": {"laptop": {"experiment": "fedavg_digits"}},
    }
    table = {"rows": {"mine": "fedproto"}, "report": {"seeds": [7]}}
    mine = "tests/plugins/mine.py"
    studies = [
        fedray.Sweep(sweep, rounds=2),
        fedray.Table(table, {"report.seeds": [3]}, plugins=mine, published=["old", Path("older")]),
    ]
    for study in studies:
        with pytest.raises(RunFailed):
            study.run(tmp_path / study.name)
    of_sweep, of_table = asked
    plan = plan_of(of_sweep)
    assert (plan.name, plan.report.rounds) == ("rates", 2)
    assert (of_table.name, dict(of_table.pairs)) == ("table", {"report.seeds": [3]})
    assert (list(of_table.plugins), list(of_table.published)) == (
        [mine],
        [Path("old"), Path("older")],
    )
    assert list(plan_of(replace(of_table, plugins=())).rows) == [
        "mine",
        "local",
        "fedavg",
        "fedproto",
    ]
    with pytest.raises(UserError, match="cannot be the name of a file"):
        plan_of(fedray.Table({**table, "name": ".mine"})._request)


@pytest.mark.parametrize("kind", [fedray.Sweep, fedray.Table])
@pytest.mark.parametrize(
    "mistake", [{"serach": 1}, {"space": {"lr": {"grid": []}}}, {"space": {"lr": {"grid": [-1]}}}]
)
def test_a_mapping_with_a_mistake_leaves_no_folder(kind, mistake, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    tree = {"name": "mine", "space": {"lr": {"grid": [0.1]}}, **mistake}
    if kind is fedray.Sweep:
        tree |= {"answers": "?", "scales": {"laptop": {"experiment": "fedavg_digits"}}}
    else:
        tree |= {"rows": {"mine": "fedproto"}}
    for out in (None, tmp_path / "new"):
        with pytest.raises(UserError):
            kind(tree).run(out)
    assert not (tmp_path / "new").exists()
    assert not [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "notes.txt").write_text("mine")
    with pytest.raises(UserError):
        kind(tree).run(kept)
    assert [path.name for path in kept.iterdir()] == ["notes.txt"]


@pytest.mark.ray
@pytest.mark.long  # tests/plugins/test_plugins_on_ray.py has the short form
def test_on_ray_the_numbers_and_the_models_are_the_same(small, tmp_path):
    here = small.train(tmp_path / "here", executor="serial")
    seen = []
    there = small.train(tmp_path / "there", callbacks=[lambda done: seen.append(done.round)])
    assert seen == [0, 1, 2]
    assert [r.metrics for r in here.rounds] == [r.metrics for r in there.rounds]
    for client in range(3):
        ours, theirs = (each.model(client).state_dict() for each in (here, there))
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_predictions_from_the_command_line(small, tmp_path, capsys):
    from commands import predict
    from PIL import Image

    run = tmp_path / "run"
    small.train(run, executor="serial")
    shown = tmp_path / "images"
    shown.mkdir()
    for number in range(2):
        Image.new("L", (20, 20), 90 * number).save(shown / f"{number}.png")
    (shown / "notes.txt").write_text("no image")
    capsys.readouterr()
    assert predict([str(run), str(shown), "--client", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("the model of client 1, round ")
    assert [line.split()[0] for line in said[1:]] == [str(shown / "0.png"), str(shown / "1.png")]
    assert predict([str(run), str(shown)]) == 2
    assert "a client from 0 to 2" in capsys.readouterr().err
    assert predict([str(run), str(tmp_path / "none.png"), "--client", "0"]) == 2
    assert "none.png does not exist" in capsys.readouterr().err
    assert predict([str(Path(tmp_path)), str(shown)]) == 2
    assert "there is no run.json" in capsys.readouterr().err
    assert RunFolder(run).has_run


def test_a_program_prints_what_the_command_prints(small, tmp_path, capsys):
    def lines() -> list[str]:
        text = re.sub(r"\d+(\.\d+)? (ms|s|min|[kMG]B)\b", "N", capsys.readouterr().out)
        return [line for line in text.splitlines() if not line.startswith("importing PyTorch")]

    small.train(tmp_path / "one", executor="serial")
    by_program = lines()
    config, out = tmp_path / "one" / "run.json", tmp_path / "two"
    words = [str(config), "--executor", "serial", "--out", str(out)]
    assert command(words) == 0
    assert by_program == [line.replace(str(out), str(tmp_path / "one")) for line in lines()]
    assert sum(line.startswith("round ") for line in by_program) == 3
    assert "reading images, partition and models ..." in by_program
