"""Results at a URI: copied there whole, and gone on with from there."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from fedray.cli import run
from fedray.config import dump_yaml
from fedray.errors import RunFailed, UserError
from fedray.files import results_home, results_uri, tables_runs
from fedray.records import RunFolder
from fedray.runtime import fetching, mirror
from fedray.runtime.cluster import is_shared
from fedray.runtime.fetching import fetch_missing
from fedray.runtime.mirror import Mirror, SharedMirror, mirrored
from fedray.runtime.remote import uri_of
from fedray.runtime.whose import check_free, check_same

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
    """What FEDRAY_RESULTS names as a URI; the folder of results is in an empty home."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDRAY_RESULTS", f"file://{tmp_path}/bucket")
    return tmp_path / "bucket"


def files(folder: Path) -> dict[str, bytes]:
    """The content of a folder, without locks."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if path.name != ".lock"}


def test_a_uri_is_where_results_are_copied_and_no_folder(bucket, tmp_path, monkeypatch):
    assert results_uri() == f"file://{bucket}"
    assert results_home() == tmp_path / "home" / "fedray_results"
    assert not is_shared()
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "shared"))
    assert results_uri() is None
    assert results_home() == tmp_path / "shared"
    assert is_shared()


def test_a_run_s_copy_is_the_run(bucket):
    assert run.main([*QUICK, *SERIAL]) == 0
    [out] = (results_home() / "runs").iterdir()
    assert files(bucket / "runs" / out.name) == files(out)
    assert (bucket / "runs" / out.name / "checkpoints" / "round_00003" / "meta.json").is_file()


def test_a_run_whose_machine_is_lost_goes_on_from_its_copy(bucket, tmp_path, monkeypatch, capsys):
    undisturbed = tmp_path / "undisturbed"
    assert run.main([*QUICK, *SERIAL, "--out", str(undisturbed)]) == 0
    out = results_home() / "runs" / "mine"
    keep = run.RoundProgress.__call__

    def stopped(show, done):
        keep(show, done)
        if done.round == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run.RoundProgress, "__call__", stopped)
        assert run.main([*QUICK, *SERIAL, "--out", str(out)]) == 130
    shutil.rmtree(results_home())
    capsys.readouterr()
    assert run.main(["--resume", str(out), *SERIAL]) == 0
    assert "begins at round 0" not in capsys.readouterr().out
    rounds, before = RunFolder(out).rounds(), RunFolder(undisturbed).rounds()
    assert [done.metrics for done in rounds] == [done.metrics for done in before]
    assert files(bucket / "runs" / "mine") == files(out)


def test_what_a_checkpoint_needs_comes_before_it_and_goes_after_it(bucket, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    copy = Mirror(folder, f"file://{bucket}")
    written: list[str] = []
    write = Mirror._write

    def noted(self, content, name):
        written.append(name)
        write(self, content, name)

    monkeypatch.setattr(Mirror, "_write", noted)
    checkpoint(folder, 1)
    (folder / "rounds.jsonl").write_text("1\n")
    (folder / ".12.tmp.result.json").write_text("half")
    copy.copy()
    assert written == [
        "checkpoints/round_00001/server.safetensors",
        "rounds.jsonl",
        "checkpoints/round_00001/meta.json",
    ]
    written.clear()
    copy.copy()
    assert written == []
    shutil.rmtree(folder / "checkpoints")
    checkpoint(folder, 2)
    copy.copy()
    assert files(bucket) == {n: c for n, c in files(folder).items() if "tmp" not in n}


def checkpoint(folder: Path, number: int) -> None:
    place = folder / "checkpoints" / f"round_{number:05d}"
    place.mkdir(parents=True)
    for name in ("server.safetensors", "meta.json"):
        (place / name).write_text(f"{name} {number}")


def test_a_checkpoint_that_never_came_whole_is_left_there(bucket):
    copied = bucket / "runs" / "mine"
    checkpoint(copied, 1)
    checkpoint(copied, 2)
    (copied / "checkpoints" / "round_00002" / "meta.json").unlink()
    out = results_home() / "runs" / "mine"
    fetch_missing(out)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["round_00001"]
    fetch_missing(results_home() / "runs" / "another")
    assert not (results_home() / "runs" / "another").exists()


def write(folder: Path, **texts: str) -> None:
    """Write files; `result="1"` is result.json."""
    endings = {"config": "yaml", "rounds": "jsonl"}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.{endings.get(name, 'json')}").write_text(text)


def test_a_folder_that_holds_a_run_is_not_fetched(bucket):
    checkpoint(bucket / "mine", 1)
    out = results_home() / "mine"
    write(out, config="rounds: 3")
    fetch_missing(out)
    assert [path.name for path in out.iterdir()] == ["config.yaml"]


def test_a_folder_without_a_run_is_filled(bucket, monkeypatch):
    """A job's script makes it and writes its log there; what makes it a run comes last."""
    there, out = bucket / "mine", results_home() / "mine"
    checkpoint(there, 1)
    checkpoint(there, 2)
    write(there, config="rounds: 3", result="{}", partition="{}")
    (there / ".7.tmp.result.json").write_text("half")
    checkpoint(out, 1)
    (out / "job.out").write_text("log")
    came: list[str] = []
    rename = fetching._rename

    def noted(begun: Path, place: Path) -> None:
        came.append(place.name)
        rename(begun, place)

    monkeypatch.setattr(fetching, "_rename", noted)
    fetch_missing(out)
    assert came == ["round_00002", "partition.json", "result.json", "config.yaml"]
    assert files(out) == {n: c for n, c in files(there).items() if "tmp" not in n} | {
        "job.out": b"log"
    }


def test_what_is_replaced_while_it_is_fetched_is_looked_at_again(bucket, monkeypatch):
    checkpoint(bucket / "mine", 1)
    whole = fetching._fetch_whole

    def replaced(files, names, place) -> None:
        monkeypatch.setattr(fetching, "_fetch_whole", whole)
        shutil.rmtree(bucket / "mine" / "checkpoints")
        checkpoint(bucket / "mine", 2)
        whole(files, names, place)

    monkeypatch.setattr(fetching, "_fetch_whole", replaced)
    fetch_missing(results_home() / "mine")
    assert files(results_home() / "mine") == files(bucket / "mine")


def test_another_machine_s_runs_of_tables_stay(bucket):
    there = bucket / "tables" / "runs"
    write(there / "aaaa", result="another's")
    write(there / "gone", result="another's")
    write(tables_runs() / "bbbb", result="mine")
    fetch_missing(tables_runs())
    assert files(tables_runs()).keys() == {f"{k}/result.json" for k in ("aaaa", "bbbb", "gone")}
    shutil.rmtree(tables_runs() / "gone")
    with mirrored(tables_runs(), shared=True):
        write(there / "cccc", result="another's, meanwhile")
    assert files(there).keys() == {f"{k}/result.json" for k in ("aaaa", "bbbb", "cccc", "gone")}


def test_of_the_runs_of_tables_what_is_new_here_is_copied(bucket, tmp_path):
    here, there = tmp_path / "runs", bucket / "runs"
    for folder, number in [(here, 1), (there, 5)]:
        checkpoint(folder / "begun", number)
        checkpoint(folder / "left", number)
        write(folder / "begun", result=f"{number}", rounds="")
        write(folder / "left", result=f"{number}", rounds="")
    write(here / "over", result="over")
    write(there / "over", result="1", rounds="")
    left = files(there / "left")
    copy = SharedMirror(here, f"file://{there}")
    checkpoint(here / "begun", 2)
    copy.copy()
    assert files(there / "begun") == files(here / "begun")
    assert files(there / "over") == files(here / "over")
    assert files(there / "left") == left


def test_a_run_of_a_table_that_is_whole_there_is_not_replaced(bucket, tmp_path):
    assert run.main([*QUICK, *SERIAL, "--out", str(tmp_path / "whole")]) == 0
    there = bucket / "store" / "aaaa"
    shutil.copytree(tmp_path / "whole", there)
    before = files(there)
    copy = SharedMirror(tmp_path / "store", f"file://{bucket}/store")
    write(tmp_path / "store" / "aaaa", result="{}", rounds="1")
    copy.copy()
    assert files(there) == before
    shutil.rmtree(there)
    other = SharedMirror(tmp_path / "store", f"file://{bucket}/store")
    other.copy()
    assert files(there) == files(tmp_path / "store" / "aaaa")
    shutil.rmtree(there)
    shutil.copytree(tmp_path / "whole", there)  # another machine's, meanwhile
    write(tmp_path / "store" / "aaaa", rounds="2")
    other.copy()
    assert files(there) == before


def test_a_run_of_another_folder_with_the_same_name_is_refused(bucket, tmp_path, capsys):
    first, second = tmp_path / "a" / "exp1", tmp_path / "b" / "exp1"
    assert run.main([*QUICK, *SERIAL, "--out", str(first)]) == 0
    before = files(bucket / "exp1")
    second.mkdir(parents=True)
    capsys.readouterr()
    assert run.main([*QUICK, "seed=7", *SERIAL, "--out", str(second)]) == 2
    assert capsys.readouterr().err == (
        f"error: FEDRAY_RESULTS: file://{bucket}/exp1 already holds a run; go on with --resume "
        f"{second}, or name a folder that is called otherwise\n"
    )
    assert list(second.iterdir()) == []
    assert run.main(["--resume", str(second), *SERIAL]) == 0  # the script of a job makes it anew
    assert RunFolder(second).read().rounds == RunFolder(first).read().rounds
    assert files(bucket / "exp1").keys() == before.keys()


@pytest.mark.parametrize(
    ("here", "there", "same"),
    [
        ({"result": '{"identity": "1"}'}, {"result": '{"identity": "1", "rounds": []}'}, True),
        ({"result": '{"identity": "1"}'}, {"result": '{"identity": "2"}'}, False),
        ({"result": '{"identity": "1"}'}, {"result": "damaged"}, False),
        ({"sweep": '{"sweep": "a", "began": 1}'}, {"sweep": '{"sweep": "a", "began": 2}'}, False),
        ({"plan": '{"table": "a", "began": 1}'}, {"plan": '{"table": "a", "began": 1}'}, True),
        ({"plan": '{"table": "a", "began": 1}'}, {"config": ""}, False),
        ({"config": "damaged"}, {"config": "damaged"}, True),
        ({"config": "damaged"}, {"config": "another"}, False),
        ({"config": "damaged"}, {"partition": "{}"}, True),
    ],
)
def test_what_goes_on_is_what_its_copy_is_of(bucket, here, there, same):
    out = results_home() / "mine"
    write(out, **here)
    write(bucket / "mine", **there)
    before = files(bucket / "mine")
    if same:
        check_same(out)
        return
    with pytest.raises(UserError, match="holds another experiment than"):
        check_same(out)
    with pytest.raises(UserError, match="holds another experiment than"), mirrored(out):
        pass
    assert files(bucket / "mine") == before


def test_a_run_that_died_before_its_result_is_known_by_its_experiment(bucket):
    out, tree = results_home() / "mine", {"algorithm": "fedavg", "rounds": 3}
    write(out, config=dump_yaml(tree))
    write(bucket / "mine", config=dump_yaml({**tree, "workers": 2}))
    check_same(out)
    write(bucket / "mine", config=dump_yaml({**tree, "seed": 7}))
    with pytest.raises(UserError, match="holds another experiment than"):
        check_same(out)


def test_what_a_stranger_left_there_stays(bucket, tmp_path):
    write(bucket / "mine", notes="not ours")
    check_free(tmp_path / "mine")
    write(tmp_path / "mine", result="1")
    with mirrored(tmp_path / "mine"):
        pass
    assert files(bucket / "mine").keys() == {"notes.json", "result.json"}


def test_seeds_of_different_experiments_have_their_own_copies(bucket, tmp_path):
    assert uri_of(tmp_path / "exp1" / "seed_0") == f"file://{bucket}/exp1/seed_0"
    assert uri_of(tmp_path / "exp1") == f"file://{bucket}/exp1"


@pytest.mark.parametrize("uri", ["nowhere://bucket", "file://relative/x"])
def test_a_uri_that_cannot_be_used_is_one_sentence(tmp_path, monkeypatch, uri):
    monkeypatch.setenv("FEDRAY_RESULTS", uri)
    with pytest.raises(UserError, match=r"FEDRAY_RESULTS: .* cannot be used .*give a folder"):
        Mirror(tmp_path, uri)


def test_a_uri_that_cannot_be_written_is_refused_at_the_beginning(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        Mirror(tmp_path, f"file://{tmp_path}/file/below")


def test_no_secret_is_said(bucket, monkeypatch, caplog):
    with pytest.raises(UserError) as refused:
        Mirror(bucket, "nowhere://AKIAKEY:secret@bucket/results")
    assert "nowhere://AKIAKEY:***@bucket/results" in str(refused.value)
    monkeypatch.setattr(mirror, "EVERY_SECONDS", 0.01)
    with pytest.raises(RunFailed) as failed:
        cannot_copy(results_home() / "mine", monkeypatch, caplog)
    for said in (str(refused.value), str(failed.value), *caplog.messages):
        assert ":secret@" not in said


def test_a_copy_that_fails_is_said_and_the_results_are_here(bucket, monkeypatch, caplog):
    monkeypatch.setattr(mirror, "EVERY_SECONDS", 0.01)
    out = results_home() / "mine"
    with pytest.raises(RunFailed, match=r"could not be copied to file://.*it is whole here"):
        cannot_copy(out, monkeypatch, caplog)
    assert len(caplog.messages) == 1
    assert "trying on" in caplog.messages[0]


def test_a_copy_that_never_came_whole_is_a_failure(bucket, tmp_path, monkeypatch):
    folder = tmp_path / "changing"
    folder.mkdir()
    copy = Mirror(folder, f"file://{bucket}/changing")
    monkeypatch.setattr(copy, "_hold", lambda held: None)
    with pytest.raises(OSError, match="changed again and again while it was copied"):
        copy.copy()


def test_a_target_that_went_is_said(bucket, tmp_path, monkeypatch):
    """What goes here while it is copied is looked at again; what goes there is a failure."""
    checkpoint(tmp_path / "run", 1)
    copy = Mirror(tmp_path / "run", f"file://{bucket}")
    tries: list[Path] = []
    link = mirror._link

    def went(source: Path, target: Path) -> None:
        tries.append(source)
        if len(tries) == 1:
            raise FileNotFoundError(source)
        link(source, target)

    monkeypatch.setattr(mirror, "_link", went)
    copy.copy()
    assert len(tries) == 3
    assert files(bucket) == files(tmp_path / "run")

    def gone(self, content: BinaryIO, name: str) -> None:
        raise FileNotFoundError(name)

    checkpoint(tmp_path / "run", 2)
    monkeypatch.setattr(Mirror, "_write", gone)
    with pytest.raises(FileNotFoundError):
        copy.copy()


def test_what_stops_a_run_is_more_important_than_its_copy(bucket, monkeypatch):
    out = results_home() / "mine"
    checkpoint(out, 1)
    with pytest.raises(KeyboardInterrupt):
        stopped_without_room(out, monkeypatch)


def stopped_without_room(out: Path, monkeypatch) -> None:
    with mirrored(out):
        monkeypatch.setattr(Mirror, "_write", full)
        raise KeyboardInterrupt


def cannot_copy(out: Path, monkeypatch, caplog) -> None:
    with mirrored(out):
        monkeypatch.setattr(Mirror, "_write", full)
        checkpoint(out, 1)
        until_said(caplog)


def full(self, content: BinaryIO, name: str) -> None:
    raise OSError("no space left at s3://AKIAKEY:secret@bucket")


def until_said(caplog) -> None:
    until = time.monotonic() + 30
    while not caplog.messages and time.monotonic() < until:
        time.sleep(0.01)
