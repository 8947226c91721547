"""Commands read, write and upload only what lies in the folder that they are given."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest
from rounds import serial

import fedray
from fedray.__main__ import main
from fedray.errors import UserError
from fedray.runtime.resolve import resolve
from fedray.storage.json_files import sealed
from fedray.storage.run_folder import RunFolder, find_run_folders, write_run_list
from fedray.studies.study import Study
from fedray.trained.loading import open_models

QUICK = ["rounds=2", "local_epochs=1", "data.clients=3", "data.samples=300", "model.group=mlp"]
RESUME = ["run", "--resume", "{run}", "--executor", "serial", "--no-track"]
READERS = {
    "report": ["report", "{run}"],
    "diff": ["diff", "{run}", "{whole}"],
    "verify": ["verify", "{run}"],
    "upload": ["upload", "{run}", "--uri", "{uri}"],
    "predict": ["predict", "{run}", "{image}", "--client", "0"],
    "retest": ["analyse", "retest", "{run}", "--with", "batch_size=10"],
    "resume": RESUME,
}
ENTRIES = ["result.json", "rounds.jsonl", "partition.json", "tracking.json",
           "checkpoints/states.sqlite", "config.yaml", "error.txt", "partition.png"]  # fmt: skip
Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a finished run with its models and an entry in MLflow."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    keys = ["algorithm=fedprox", *QUICK, "report.select=test", "keep.models=best"]
    experiment = resolve("fedavg_digits", keys)
    list(serial(experiment, out).rounds())
    (out / "error.txt").write_text("")
    (out / "tracking.json").write_text('{"key": "k"}')
    return out


@pytest.fixture
def run(finished, tmp_path, monkeypatch) -> Path:
    """A copy of it, in a folder of the results."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    return Path(shutil.copytree(finished, tmp_path / "run"))


def call(words: list[str], run: Path, finished: Path) -> int:
    names = {
        "run": run,
        "whole": finished,
        "image": Path(__file__),
        "uri": f"sqlite:///{run.parent / 'mlflow.db'}",
    }
    return main([word.format(**names) for word in words])


def replace(path: Path, make: Damage) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    make(path)


def link_out(path: Path) -> None:
    private = Path.cwd() / "private"
    private.mkdir(exist_ok=True)
    path.symlink_to(private)


def bind(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the address of a socket may have 107 bytes
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(path.name)
    os.chdir(here)


KINDS: dict[str, Damage] = {
    "a link out": link_out,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a pipe": os.mkfifo,
    "a socket": bind,
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize(
    ("number", "entry", "kind"),
    [(number, *pair) for number, pair in enumerate(product(ENTRIES, KINDS))],
)
def test_an_entry_of_another_kind_is_one_sentence(run, finished, capsys, number, entry, kind):
    """Every entry in every form, each before another reader."""
    reader = ("report", "upload", "resume", "predict")[(number + number // len(KINDS)) % 4]
    if kind == "a folder" and not Path(entry).suffix:
        kind = "a pipe"
    replace(run / entry, KINDS[kind])
    assert call(READERS[reader], run, finished) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    # a search does not find links that lead nowhere
    assert str(run / entry) in message or "no result.json" in message


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_refuses_it(run, finished, capsys, reader):
    replace(run / "rounds.jsonl", link_out)
    assert call(READERS[reader], run, finished) == 2
    assert str(run / "rounds.jsonl") in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("entry", ENTRIES[:10])
def test_the_python_api_refuses_links_out(run, entry):
    replace(run / entry, link_out)
    with pytest.raises(UserError, match="is a link to"):
        fedray.load(run)
    with pytest.raises(UserError, match="is a link to"):
        open_models(run)


def test_links_within_the_folder_and_a_linked_folder_are_read(run, finished, capsys):
    (run / "rounds.jsonl").rename(run / "elsewhere")
    (run / "rounds.jsonl").symlink_to("elsewhere")
    (run.parent / "other").symlink_to(run)
    assert call(READERS["diff"], run.parent / "other", finished) == 0


def test_a_file_of_somebody_else_in_the_folder_may_be_anything(run, finished):
    (run / "notes").symlink_to("/")
    os.mkfifo(run / "pipe")
    assert call(READERS["diff"], run, finished) == 0


@pytest.mark.parametrize(
    "name", ["rounds.jsonl", "error.txt", ".lock", "checkpoints/states.sqlite"]
)
def test_a_hard_link_is_read_but_not_written_through(run, finished, name):
    head = json.loads((run / "result.json").read_text())
    (run / "snapshot").mkdir()
    copy = run / "snapshot" / Path(name).name
    if name == ".lock":
        (run / name).write_text("mine")
    os.link(run / name, copy)
    before = copy.read_bytes()
    assert call(READERS["diff"], run, finished) == 0
    fedray.load(run)
    assert head["done"] == 2
    assert call([*RESUME, "rounds=2"], run, finished) == 0
    assert copy.read_bytes() == before
    assert os.stat(run / name).st_ino != os.stat(copy).st_ino


@pytest.mark.slow
def test_upload_does_not_empty_a_file_that_is_called_lock(run, finished):
    (run / ".lock").write_text("mine")
    assert call(READERS["upload"], run, finished) == 0
    assert (run / ".lock").read_text() == "mine"


# --- records with paths ---------------------------------------------------------------------------


def listing(folder: Path, *names: object) -> Path:
    folder.mkdir(parents=True)
    (folder / "runs.json").write_text(json.dumps(sealed({"runs": list(names)})))
    return folder


@pytest.mark.parametrize("name", ["../run", "{run}", "x/../../run", "../results/runs/mine"])
def test_a_list_of_runs_names_none_outside(run, tmp_path, name):
    shutil.copytree(run, tmp_path / "results" / "runs" / "mine")
    folder = listing(tmp_path / "received", name.format(run=run))
    (folder / "x").mkdir()
    with pytest.raises(UserError, match=r"runs\.json lists .*which is neither in the folder nor"):
        find_run_folders([folder])


def test_a_list_of_runs_names_those_of_the_store_and_its_own(run, tmp_path):
    store, table = tmp_path / "results" / "store", tmp_path / "results" / "tables" / "t" / "1"
    shutil.copytree(run, store / "0a")
    shutil.copytree(run, table / "mine")
    write_run_list(table, [store / "0a", table / "mine"])
    assert find_run_folders([table]) == [store / "0a", table / "mine"]
    (tmp_path / "results").rename(tmp_path / "moved")
    moved = tmp_path / "moved"
    assert find_run_folders([moved / "tables/t/1"]) == [
        moved / "store/0a",
        moved / "tables/t/1/mine",
    ]


@pytest.mark.parametrize("runs", [3, None, {"a": 1}, "../run"])
def test_a_list_that_is_none_is_one_sentence(tmp_path, runs):
    tmp_path.joinpath("runs.json").write_text(json.dumps(sealed({"runs": runs})))
    with pytest.raises(UserError, match="it has no runs"):
        find_run_folders([tmp_path])


# --- kept models, rounds and partition ------------------------------------------------------------


@pytest.mark.parametrize("which", ["of another round", "of another run", "cut", "lost"])
def test_predict_uses_no_other_models(run, finished, capsys, which):
    database = run / "checkpoints" / "states.sqlite"
    if which == "lost":
        database.unlink()
    elif which == "cut":
        with database.open("r+b") as file:
            file.truncate(16384)
    else:
        key = {"of another round": "round", "of another run": "identity"}[which]
        edit_facts(database, lambda facts: facts["models"].update({key: 0}))
    assert call(READERS["predict"], run, finished) == 2
    assert (f"{run} has no models" if which == "lost" else f"{database}") in capsys.readouterr().err


def edit_facts(path: Path, edit: Callable[[dict], object]) -> None:
    with closing(sqlite3.connect(path)) as file:
        query = "SELECT json FROM snapshots WHERE name = 'best'"
        ((text,),) = file.execute(query).fetchall()
        facts = json.loads(text)
        facts.pop("checksum")
        edit(facts)
        query = "UPDATE snapshots SET json = ? WHERE name = 'best'"
        file.execute(query, [json.dumps(sealed(facts))])
        file.commit()


@pytest.fixture
def killed(run) -> Path:
    """The run as a kill after its last round leaves it: result.json is that of its start."""
    folder = RunFolder(run)
    head = folder.read_head()
    start = dataclasses.replace(
        head, best=None, final=None, ended=None, done=-1, rounds_checksum=head.identity
    )
    folder.write_head(start)
    return run


CUTS: dict[str, Callable[[bytes], bytes | None]] = {
    "the last round": lambda old: b"".join(old.splitlines(keepends=True)[:-1]),
    "half of the last round": lambda old: old[:-9],
    "all rounds": lambda old: b"",
    "the file": lambda old: None,
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("reader", ["report", "diff", "verify", "upload", "resume", "predict"])
def test_rounds_that_only_the_checkpoint_knows_are_missed(killed, finished, capsys, reader, cut):
    path = killed / "rounds.jsonl"
    new = CUTS[cut](path.read_bytes())
    path.unlink()
    if new is not None:
        path.write_bytes(new)
    assert call(READERS[reader], killed, finished) == 2
    assert "rounds" in capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(UserError, match=r"rounds\.jsonl lacks round 2"):
        _ = fedray.load(killed).run


def test_a_killed_run_is_read(killed, finished):
    assert RunFolder(killed).read().done == 2
    shutil.rmtree(killed / "checkpoints")
    assert RunFolder(killed).read().done == 2


@pytest.mark.parametrize("damage", ["cut", "of another run", "missing", "without names"])
def test_a_damaged_partition_of_a_finished_run_is_said(run, finished, capsys, damage):
    path = run / "partition.json"
    tree = json.loads(path.read_text())
    if damage == "cut":
        path.write_text(path.read_text()[:-40])
    elif damage == "of another run":
        tree.pop("checksum")
        path.write_text(json.dumps(sealed({**tree, "sha256": "0"})))
    elif damage == "without names":
        path.write_text(json.dumps(sealed({"sha256": tree["sha256"]})))
        with pytest.raises(UserError, match="has no class_names"):
            RunFolder(run).class_names()
        return
    else:
        path.unlink()
    assert call(RESUME, run, finished) == 2
    assert str(path) in capsys.readouterr().err


# --- studies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ["plan.json", "runs.json", "table.json", "table.md"])
@pytest.mark.parametrize("kind", ["a link out", "a pipe", "a socket"])
def test_an_entry_of_a_study_that_is_no_file_is_one_sentence(tmp_path, monkeypatch, entry, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study").mkdir()
    KINDS[kind](tmp_path / "study" / entry)
    with pytest.raises(UserError, match=entry):
        Study.read(tmp_path / "study")
