"""Every file of a run, damaged in every way: each command says one sentence and exits with 2."""

from __future__ import annotations

import shutil
from itertools import product

import pytest
from commands import report, run, upload
from rounds import serial

from fedray.base.errors import UserError
from fedray.runtime.resolve import resolve
from fedray.storage.run_folder import RunFolder

KEYS = ["rounds=2", "local_epochs=1", "data.clients=3", "data.samples=240", "model.group=mlp"]
FILES = ["run.json", "rounds.jsonl", "head.json"]
DEEP = b'{"a":' * 100_000
CONTENTS = {
    "empty": b"",
    "mapping": b"{}",
    "list": b"[]",
    "bytes": b"\x93\xff\x00\xfe",
    "number": b"7",
    "NaN": b'{"rounds": [NaN]}',
    "deep": DEEP,
    "lines": b"[]\n{}\n",
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The folder of a run that was killed after round 1."""

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("FEDRAY_CACHE", str(tmp_path_factory.mktemp("cache")))
        home = tmp_path_factory.mktemp("killed")
        experiment = resolve("fedavg_digits", KEYS)
        session = serial(experiment, home / "run")
        for done in session.rounds():
            if done.round == 1:
                session._states.wait()
                shutil.copytree(home / "run", home / "killed")
        return home / "killed"


def go_on(folder) -> int:
    return run(["--resume", str(folder), "--executor", "serial", "--no-track"])


def damaged(killed, tmp_path, file, content):
    folder = tmp_path / "run"
    shutil.copytree(killed, folder)
    path = folder / file
    if file == "head.json":
        path = folder / "states" / file
    if content == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.write_bytes(CONTENTS[content])
    return folder


def one_sentence(capsys) -> str:
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content"),
    [*product(FILES, [*CONTENTS, "cut"])],
)
def test_going_on(killed, tmp_path, capsys, file, content):
    folder = damaged(killed, tmp_path, file, content)
    assert go_on(folder) == 2
    assert file in one_sentence(capsys)


@pytest.mark.parametrize("content", [*CONTENTS, "cut"])
def test_reading_what_the_report_and_the_upload_read(killed, tmp_path, content):
    folder = damaged(killed, tmp_path / "run", "run.json", content)
    with pytest.raises(UserError, match=r"cannot be read|is not the run") as raised:
        RunFolder(folder).read()
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("content", [b"", b'{"3": {"text": [[1.0, ', b"\0" * 20])
def test_torn_analyses(tmp_path, content):
    (tmp_path / "matrices.json").write_bytes(content)
    with pytest.raises(UserError, match=r"matrices\.json cannot be read"):
        RunFolder(tmp_path).read_matrices()


@pytest.mark.parametrize(("file", "content"), [("run.json", "cut"), ("rounds.jsonl", "lines")])
def test_the_commands_that_read_it(killed, tmp_path, capsys, file, content):
    folder = damaged(killed, tmp_path, file, content)
    assert report([str(folder)]) == 2
    assert file in one_sentence(capsys)
    assert upload([str(folder), "--uri", f"sqlite:///{tmp_path}/m.db"]) == 2
    assert file in one_sentence(capsys)


def test_a_round_that_was_cut_is_the_next_to_be_run(killed, tmp_path):
    folder = damaged(killed, tmp_path, "rounds.jsonl", "cut")
    assert [done.round for done in RunFolder(folder).rounds()] == [0]
