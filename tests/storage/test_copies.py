"""Results at a URI: copied there whole, and resumed from there."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow
import pytest

from fedray.cli import run
from fedray.errors import RunFailed, UserError
from fedray.run import main
from fedray.runtime.cluster import is_shared
from fedray.storage import copies as remote_results
from fedray.storage.checkpoint import CheckpointStore
from fedray.storage.copies import check_owner, copying, fetch_missing
from fedray.storage.files import results_home, results_uri, store_home
from fedray.storage.run_folder import RunFolder

QUICK = [
    "fedproto_digits",
    "rounds=3",
    "local_epochs=1",
    "data.clients=3",
    "data.samples=300",
    "model.feature_dim=8",
]
SERIAL = ["--executor", "serial", "--no-track"]


@pytest.fixture
def bucket(tmp_path, monkeypatch) -> Path:
    """The folder that FEDRAY_RESULTS names as a URI; the folder of results is in an empty home."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDRAY_RESULTS", f"file://{tmp_path}/bucket")
    return tmp_path / "bucket"


@pytest.fixture
def often(monkeypatch) -> None:
    monkeypatch.setattr(remote_results, "EVERY_SECONDS", 0.01)


def files(folder: Path) -> dict[str, bytes]:
    """The content of a folder, without locks; of an SQLite file what it holds."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: content(path) for name, path in paths.items() if path.name != ".lock"}


def content(path: Path) -> bytes:
    if path.suffix != ".sqlite":
        return path.read_bytes()
    with closing(sqlite3.connect(path)) as file:
        return "\n".join(file.iterdump()).encode()


OVER = '{"ended": "2026-11-25T12:00:00Z"}'
"""The result.json of a run that came to its end."""


def write(folder: Path, **texts: str) -> None:
    """Write files; `result="1"` is result.json."""
    endings = {"config": "yaml", "rounds": "jsonl"}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.{endings.get(name, 'json')}").write_text(text)


def checkpoint(folder: Path, number: int) -> None:
    """Replace the checkpoint of a folder."""
    place = folder / "checkpoints"
    shutil.rmtree(place, ignore_errors=True)
    (place / "states").mkdir(parents=True)
    (place / "states" / f"{number}.safetensors").write_text(f"{number}")
    with closing(sqlite3.connect(place / "states.sqlite")) as file:
        file.execute("CREATE TABLE facts (round)")
        file.execute("INSERT INTO facts VALUES (?)", [number])
        file.commit()


def copy(folder: Path, meanwhile: Callable[[], object] = lambda: None) -> None:
    with copying(folder):
        meanwhile()


def until(what: Callable[[], object]) -> None:
    end = time.monotonic() + 200
    while not what() and time.monotonic() < end:
        time.sleep(0.01)


def test_a_uri_is_where_results_are_copied_and_no_folder(bucket, tmp_path, monkeypatch):
    assert results_uri() == f"file://{bucket}"
    assert results_home() == tmp_path / "home" / "fedray_results"
    assert not is_shared()
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "shared"))
    assert results_uri() is None
    assert results_home() == tmp_path / "shared"
    assert is_shared()


def test_a_run_s_copy_is_the_run(bucket):
    assert main([*QUICK, *SERIAL]) == 0
    [out] = (results_home() / "runs").iterdir()
    assert files(bucket / "runs" / out.name) == files(out)
    assert CheckpointStore(bucket / "runs" / out.name, identity="").latest() == 3


def test_a_run_whose_machine_is_lost_goes_on_from_its_copy(bucket, tmp_path, monkeypatch, capsys):
    undisturbed = tmp_path / "undisturbed"
    assert main([*QUICK, *SERIAL, "--out", str(undisturbed)]) == 0
    out = results_home() / "runs" / "mine"
    keep = run.RoundProgress.__call__

    def stopped(show, done):
        keep(show, done)
        if done.round == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run.RoundProgress, "__call__", stopped)
        assert main([*QUICK, *SERIAL, "--out", str(out)]) == 130
    shutil.rmtree(results_home())
    capsys.readouterr()
    assert main(["--resume", str(out), *SERIAL]) == 0
    assert "begins at round 0" not in capsys.readouterr().out
    rounds, before = RunFolder(out).rounds(), RunFolder(undisturbed).rounds()
    assert [done.metrics for done in rounds] == [done.metrics for done in before]
    assert files(bucket / "runs" / "mine") == files(out)


@pytest.fixture
def written(monkeypatch) -> list[str]:
    """The names of the files that are copied, in their order."""
    names: list[str] = []
    write_there = remote_results._write

    def noted(files, name, content) -> None:
        names.append(name)
        write_there(files, name, content)

    monkeypatch.setattr(remote_results, "_write", noted)
    return names


def test_what_a_checkpoint_needs_comes_before_it_and_goes_after_it(bucket, tmp_path, written):
    out = tmp_path / "run"
    write(out, config="", rounds="1\n")
    checkpoint(out, 1)
    (out / ".12.tmp.result.json").write_text("half")
    copy(out)
    assert written[1:] == [  # the first proves that the URI can be written
        "owner.json",
        "checkpoints/states/1.safetensors",
        "rounds.jsonl",
        "checkpoints/states.sqlite",
        "config.yaml",
    ]
    checkpoint(out, 2)
    copy(out)
    assert files(bucket / "run") == {n: c for n, c in files(out).items() if "tmp" not in n}


def test_a_checkpoint_is_copied_as_of_its_last_transaction(bucket, tmp_path):
    out = tmp_path / "run"
    write(out, config="", rounds="1\n")
    checkpoint(out, 1)
    with closing(sqlite3.connect(out / "checkpoints" / "states.sqlite")) as file:
        file.execute("PRAGMA cache_size = 2")
        file.execute("BEGIN IMMEDIATE")
        file.execute("UPDATE facts SET round = 2")
        copy(out)
        file.execute("COMMIT")
    with closing(sqlite3.connect(bucket / "run" / "checkpoints" / "states.sqlite")) as there:
        assert there.execute("SELECT round FROM facts").fetchall() == [(1,)]
    assert not list(bucket.rglob("*-journal"))


def test_a_checkpoint_that_changes_while_it_is_copied_is_copied_again(
    bucket, tmp_path, monkeypatch
):
    out, copy_database, tries = tmp_path / "run", remote_results._copy_database, []

    def changed(source: Path, target: Path) -> None:
        copy_database(source, target)
        tries.append(source)
        if len(tries) == 1:
            checkpoint(out, 2)

    monkeypatch.setattr(remote_results, "_copy_database", changed)
    write(out, config="")
    checkpoint(out, 1)
    copy(out)
    assert files(bucket / "run") == files(out)
    assert len(tries) == 2


def test_only_what_has_changed_is_copied_again(bucket, tmp_path, written, often):
    out = tmp_path / "run"
    with copying(out):
        write(out, config="", rounds="1\n")
        until(lambda: "config.yaml" in written)
        written.clear()
        write(out, rounds="1\n2\n")
        until(lambda: (bucket / "run" / "rounds.jsonl").read_text() == "1\n2\n")
    assert set(written) == {"rounds.jsonl"}


def test_a_folder_without_a_run_gets_what_arrived_whole(bucket):
    """A job's script makes the folder and writes its log there."""
    there, out = bucket / "mine", results_home() / "mine"
    fetch_missing(out)
    assert not out.exists()
    checkpoint(there, 1)
    write(there, config="rounds: 3", result="{}", partition="{}")
    whole = files(there)
    (there / ".7.tmp.result.json").write_text("half")
    (there / "job.out").write_text("another log")
    out.mkdir(parents=True)
    (out / "job.out").write_text("log")
    fetch_missing(out)
    assert files(out) == whole | {"job.out": b"log"}
    (out / "partition.json").unlink()
    fetch_missing(out)  # a run was begun here
    assert not (out / "partition.json").exists()


def test_what_is_replaced_while_it_is_fetched_is_looked_at_again(bucket, monkeypatch):
    checkpoint(bucket / "mine", 1)
    names_in = remote_results._names_in

    def replaced(files):
        monkeypatch.setattr(remote_results, "_names_in", names_in)
        names = names_in(files)
        checkpoint(bucket / "mine", 2)
        return names

    monkeypatch.setattr(remote_results, "_names_in", replaced)
    fetch_missing(results_home() / "mine")
    assert files(results_home() / "mine") == files(bucket / "mine")


# --- the runs of tables ---------------------------------------------------------------------------


def test_another_machine_s_runs_of_tables_stay(bucket):
    there = bucket / "store"
    write(there / "aaaa", config="", result="another's")
    write(there / "gone", config="", result="another's")
    write(store_home() / "bbbb", config="", result="mine")
    fetch_missing(store_home())
    assert {path.name for path in store_home().iterdir()} == {"aaaa", "bbbb", "gone"}
    shutil.rmtree(store_home() / "gone")
    before = files(there / "aaaa")
    with copying(store_home(), by_entry=True):
        write(there / "cccc", config="", result="another's, meanwhile")
    assert {path.name for path in there.iterdir()} == {"aaaa", "bbbb", "cccc", "gone"}
    assert files(there / "aaaa") == before
    assert files(there / "bbbb") == files(store_home() / "bbbb")


def test_of_the_runs_of_tables_what_changes_here_is_copied(bucket):
    here, there = store_home(), bucket / "store"
    for name in ("goes on", "left"):
        for store, number in [(here, 1), (there, 5)]:
            checkpoint(store / name, number)
            write(store / name, config="", result=f"{number}", rounds="")
    write(here / "over", config="", result=OVER, rounds="")
    write(there / "over", config="", result="1", rounds="")
    left = files(there / "left")
    with copying(here, by_entry=True):
        checkpoint(here / "goes on", 2)
        write(here / "goes on", result="2")
    assert files(there / "goes on") == files(here / "goes on")
    assert files(there / "over") == files(here / "over")
    assert files(there / "left") == left


def test_a_run_of_a_table_that_is_whole_there_is_not_replaced(bucket):
    there = bucket / "store" / "aaaa"
    with copying(store_home(), by_entry=True):
        write(there, config="", result=OVER)
        write(store_home() / "aaaa", config="", result="mine", rounds="1")
    assert files(there) == {"config.yaml": b"", "result.json": OVER.encode()}


def test_of_two_machines_the_one_that_went_on_last_copies_a_run(bucket, often):
    here, there = store_home() / "aaaa", bucket / "store" / "aaaa"
    with copying(store_home(), by_entry=True):
        write(here, config="", result="mine", rounds="1")
        until(lambda: (there / "config.yaml").exists())
        write(there, owner="another", result="another's")
        time.sleep(0.1)
        write(here, result="mine, later")
    assert (there / "result.json").read_text() == "another's"


def test_a_run_that_is_taken_over_leaves_no_checkpoint_without_its_states(bucket, monkeypatch):
    """Another machine's checkpoint goes before the rounds that it needs."""
    here, there = store_home() / "aaaa", bucket / "store" / "aaaa"
    for folder, number in [(here, 3), (there, 7)]:
        checkpoint(folder, number)
        write(folder / "models" / "best", meta="{}")
    monkeypatch.setattr(remote_results._Copy, "update", lambda copy: None)
    with copying(store_home(), by_entry=True):
        write(here, config="", result="mine", rounds="1")
    assert not (there / "checkpoints" / "states.sqlite").exists()
    assert (there / "checkpoints" / "states" / "7.safetensors").exists()
    assert (there / "models" / "best" / "meta.json").exists()


# --- whose copy it is -----------------------------------------------------------------------------


def test_a_run_of_another_folder_with_the_same_name_is_refused(bucket, tmp_path, capsys):
    first, second = tmp_path / "a" / "exp1", tmp_path / "b" / "exp1"
    assert main([*QUICK, *SERIAL, "--out", str(first)]) == 0
    before = files(bucket / "exp1")
    second.mkdir(parents=True)
    capsys.readouterr()
    assert main([*QUICK, "seed=7", *SERIAL, "--out", str(second)]) == 2
    assert capsys.readouterr().err == (
        f"error: FEDRAY_RESULTS: file://{bucket}/exp1 already holds other results than {second}; "
        f"go on with --resume {second}, or give the folder another name, or FEDRAY_RESULTS another "
        "URI\n"
    )
    assert list(second.iterdir()) == []
    assert main(["--resume", str(second), *SERIAL]) == 0  # the script of a job makes it anew
    assert RunFolder(second).read().rounds == RunFolder(first).read().rounds
    assert files(bucket / "exp1").keys() == before.keys()


@pytest.mark.parametrize(
    ("here", "there", "is_same"),
    [
        ({"config": "1", "owner": "1"}, {}, True),
        ({"config": "1"}, {"notes": "a stranger's"}, True),
        ({"config": "1", "owner": "1"}, {"config": "2", "owner": "1"}, True),
        ({"config": "1", "owner": "1"}, {"config": "1", "owner": "2"}, False),
        ({"config": "1"}, {"config": "1", "owner": "2"}, False),
        ({"config": "1"}, {"config": "1"}, True),  # an earlier version wrote it
        ({"config": "1"}, {"config": "2"}, False),
        ({"config": "1"}, {"sweep": "1"}, False),
        ({}, {"plan": "1"}, False),
    ],
)
def test_what_goes_on_is_what_its_copy_is_of(bucket, here, there, is_same):
    out = results_home() / "mine"
    write(out, **here)
    write(bucket / "mine", **there)
    before = files(bucket / "mine")
    if is_same:
        check_owner(out)
        return
    with pytest.raises(UserError, match="already holds other results than"):
        check_owner(out)
    with pytest.raises(UserError, match="already holds other results than"):
        copy(out)
    assert files(bucket / "mine") == before


def test_of_two_runs_that_begin_at_once_one_is_copied(bucket, tmp_path):
    out = tmp_path / "mine"

    def both_begin() -> None:
        write(out, config="mine")
        write(bucket / "mine", owner="another", config="another's")

    with pytest.raises(RunFailed, match=r"belongs to another run.*local folder is complete"):
        copy(out, both_begin)
    assert (bucket / "mine" / "config.yaml").read_text() == "another's"


def test_what_a_stranger_left_there_stays(bucket, tmp_path):
    out = tmp_path / "mine"
    write(bucket / "mine", notes="not ours")
    write(out, config="1", rounds="1")
    copy(out)
    write(bucket / "mine", more="not ours")
    (out / "rounds.jsonl").unlink()
    copy(out)
    there = {"notes.json", "more.json", "config.yaml", "owner.json"}
    assert files(bucket / "mine").keys() == there


def test_each_folder_has_a_place_of_its_own(bucket, tmp_path, monkeypatch):
    for folder in ("exp1", "exp1/seed_0", "exp2/seed_0"):
        write(tmp_path / folder, config="")
        copy(tmp_path / folder)
    copies = {str(path.parent.relative_to(bucket)) for path in bucket.rglob("config.yaml")}
    assert copies == {"exp1", "exp1/seed_0", "exp2/seed_0"}
    monkeypatch.setenv("FEDRAY_RESULTS", "s3://bucket/results/?scheme=http")
    place = remote_results._uri_of(tmp_path / "exp1")
    assert place == "s3://bucket/results/exp1?scheme=http"


# --- what fails -----------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["nowhere://bucket", "file://relative/x"])
def test_a_uri_that_cannot_be_used_is_one_sentence(tmp_path, monkeypatch, uri):
    monkeypatch.setenv("FEDRAY_RESULTS", uri)
    with pytest.raises(UserError, match=r"FEDRAY_RESULTS: .* cannot be used .*give a folder"):
        copy(tmp_path)


def test_a_uri_that_cannot_be_written_is_refused_at_the_beginning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDRAY_RESULTS", f"file://{tmp_path}/file/below")
    with pytest.raises(UserError, match="cannot be written"):
        copy(tmp_path / "run")


def test_a_copy_that_fails_is_said_once_without_secrets(bucket, monkeypatch, caplog, often):
    out = results_home() / "mine"

    def disk_is_full() -> None:
        monkeypatch.setattr(remote_results, "_write", full)
        write(out, config="")
        until(lambda: caplog.messages)
        time.sleep(0.1)

    with pytest.raises(
        RunFailed, match=r"not be copied to file://.*local folder is complete"
    ) as end:
        copy(out, disk_is_full)
    monkeypatch.setenv("FEDRAY_RESULTS", "nowhere://AKIAKEY:secret@bucket/results")
    with pytest.raises(UserError) as refused:
        copy(out)
    [warned] = caplog.messages
    assert "retrying" in warned
    for said in (warned, str(end.value), str(refused.value)):
        assert "://AKIAKEY:***@bucket" in said


@pytest.mark.parametrize("kind", ["ArrowInvalid", "ArrowNotImplementedError", "ArrowKeyError"])
def test_an_error_of_the_store_does_not_end_the_copying(bucket, monkeypatch, caplog, often, kind):
    """Errors of pyarrow that are no OSError."""
    out, write_file = results_home() / "mine", remote_results._write

    def broken(files, name, content) -> None:
        raise getattr(pyarrow, kind)("no such thing")

    def recovers() -> None:
        monkeypatch.setattr(remote_results, "_write", broken)
        write(out, config="")
        until(lambda: caplog.messages)
        monkeypatch.setattr(remote_results, "_write", write_file)
        until(lambda: list(bucket.rglob("config.yaml")))
        assert list(bucket.rglob("config.yaml")), "copied before the end"

    copy(out, recovers)
    [warned] = caplog.messages
    assert "retrying" in warned


def full(files, name, content) -> None:
    raise OSError("no space left at s3://AKIAKEY:secret@bucket")


def test_what_goes_while_it_is_copied_is_looked_at_again(bucket, tmp_path, monkeypatch):
    out, link, tries = tmp_path / "run", remote_results._link, []

    def replaced(source: Path, target: Path) -> None:
        tries.append(source)
        if len(tries) == 1:
            checkpoint(out, 2)
        link(source, target)

    monkeypatch.setattr(remote_results, "_link", replaced)
    write(out, config="")
    checkpoint(out, 1)
    copy(out)
    assert files(bucket / "run") == files(out)


def test_what_stops_a_run_is_more_important_than_its_copy(bucket, monkeypatch):
    out = results_home() / "mine"
    write(out, config="")

    def stopped() -> None:
        monkeypatch.setattr(remote_results, "_write", full)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(out, stopped)
