"""A run removes and replaces only what has its own names, and only in its own folder."""

from __future__ import annotations

import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest
import torch

from fedray import run
from fedray.core import ClientState
from fedray.errors import UserError
from fedray.storage.checkpoint import CheckpointStore
from fedray.storage.database import DATABASE
from fedray.storage.tensors import LARGE
from fedray.studies.flow import hold
from fedray.trees import Snapshot

WORDS = [
    *("fedproto_digits", "rounds=1", "local_epochs=1", "data.clients=2", "data.samples=200"),
    *("model.feature_dim=8", "--executor", "serial", "--no-track"),
]
LINKS = [
    *(
        "checkpoints",
        "checkpoints/states",
        "checkpoints/states.sqlite-journal",
        "plugins/helpers",
    ),
    *("plugins/helpers", ".lock", "rounds.jsonl", "error.txt"),
]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that was stopped in round 0: its config alone is there."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    assert run.main([*WORDS, "--out", str(out)]) == 0
    for path in out.iterdir():
        if path.name != "config.yaml":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return out


@pytest.fixture
def out(stopped, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(stopped, tmp_path / "run"))


def resume(out: Path) -> int:
    """Go on with the run as a user would; returns the exit code."""
    return run.main(["--resume", str(out), "--executor", "serial", "--no-track"])


def fill(folder: Path) -> None:
    """Write files of somebody else, some under the names that fedray uses."""
    for name in (
        *("notes.txt", "states.sqlite", "round_00009/notes.txt", "best/states.sqlite"),
        *("last/notes.txt", "states/0123abcd-0.safetensors", "0123abcd-1.safetensors"),
        *(".round_00003.99.tmp/notes.txt", "mine/notes.txt"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} is mine")


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder with their content."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", LINKS)
def test_a_link_out_of_the_folder_is_refused_and_nothing_behind_it_changes(
    out, tmp_path, capsys, name
):
    elsewhere = tmp_path / "elsewhere"
    fill(elsewhere)
    before = contents(elsewhere)
    target = elsewhere if "." not in name else elsewhere / "notes.txt"
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).symlink_to(target)
    code, said = resume(out), capsys.readouterr()
    assert contents(elsewhere) == before
    assert code == 2
    assert f"{out / name} is a link to {target}" in said.err
    assert (out / name).is_symlink()


def test_a_link_within_the_folder_is_followed(out):
    (out / "elsewhere").mkdir()
    (out / "checkpoints").symlink_to("elsewhere")
    assert resume(out) == 0
    assert (out / "elsewhere" / "states.sqlite").is_file()


def test_what_a_user_put_beside_checkpoints_and_models_stays(out):
    fill(out / "mine")
    for name in ("checkpoints/backup", "checkpoints/states/backup", "models/backup"):
        fill(out / name)
    (out / "checkpoints" / "round_latest").symlink_to("backup")
    (out / "notes").symlink_to(out.parent)
    before = contents(out)
    assert resume(out) == 0  # from the first round on
    assert resume(out) == 0  # what is finished is tidied up
    after = contents(out)
    assert {name: after.get(name) for name in before} == before
    assert (out / "checkpoints" / "round_latest").is_symlink()


def test_a_copied_checkpoint_stays(out):
    assert resume(out) == 0
    checkpoints = out / "checkpoints"
    (checkpoints / "backup").mkdir()
    shutil.copy(checkpoints / "states.sqlite", checkpoints / "backup")
    fill(checkpoints / "states" / "backup")
    assert resume(out) == 0
    assert (checkpoints / "backup" / "states.sqlite").is_file()
    CheckpointStore(out, "").clear()
    assert {path.name for path in checkpoints.iterdir()} == {"backup", "states", "states.sqlite"}
    assert [path.name for path in (checkpoints / "states").iterdir()] == ["backup"]


@pytest.mark.parametrize("name", ["../../../mine.txt", "mine.txt"])
def test_a_checkpoint_that_names_another_file_is_refused(tmp_path, name):
    store = CheckpointStore(tmp_path / "run", "this experiment")
    store.states.put(0, ClientState({"w": torch.zeros(LARGE)}))
    store.begin(Snapshot(0, {}))
    store.wait()
    (tmp_path / "mine.txt").write_text("mine")
    shutil.copy(tmp_path / "mine.txt", store.states.folder)
    with closing(sqlite3.connect(store.folder / DATABASE)) as file:
        file.execute("UPDATE trees SET file = ? WHERE file IS NOT NULL", [name])
        file.commit()
    with pytest.raises(UserError, match="which is no file of states"):
        CheckpointStore(tmp_path / "run", "this experiment").load()
    assert (tmp_path / "mine.txt").is_file()
    assert (store.states.folder / "mine.txt").is_file()


def test_a_journal_that_names_another_file_is_refused_and_that_file_stays(tmp_path):
    """SQLite would roll it back, and remove the file that the end of the journal names."""
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    store = CheckpointStore(tmp_path / "run", "this experiment")
    store.begin(Snapshot(0, {}))
    store.wait()
    magic, name = bytes.fromhex("d9d505f920a163d7"), str(mine).encode()
    header = magic + struct.pack(">iIIII", 0, 1, 5, 512, 16384).ljust(504, b"\0")
    end = struct.pack(">I", 1073741824 // 16384 + 1) + name
    end += struct.pack(">II", len(name), sum(name)) + magic
    journal = store.folder / f"{DATABASE}-journal"
    journal.write_bytes(header + end)
    with pytest.raises(UserError, match="its journal names another file"):
        CheckpointStore(tmp_path / "run", "this experiment").load()
    assert mine.is_file()
    with closing(sqlite3.connect(store.folder / DATABASE)) as file:
        file.execute("SELECT * FROM snapshots").fetchall()
    assert not mine.is_file(), "SQLite no longer does this: the check can go"


def test_the_folder_of_a_sweep_may_not_lead_elsewhere(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "optuna.log").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(UserError, match=r"optuna\.log is a link to"), hold(tmp_path / "sweep"):
        pass
