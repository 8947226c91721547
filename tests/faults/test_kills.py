"""What killed processes left is removed."""

from __future__ import annotations

from fedray import run
from fedray.storage.files import remove_torn, write_json


def test_what_killed_processes_had_begun_to_write_is_removed(tmp_path):
    for name in (".result.json.71.tmp", ".71.tmp.result.json"):
        (tmp_path / name).touch()
    (tmp_path / ".round_00003.71.tmp").mkdir()
    (tmp_path / ".lock").touch()
    write_json(tmp_path / "result.json", {})
    remove_torn(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "result.json"]


def test_states_that_a_killed_run_left_are_removed(tmp_path):
    words = ["--executor=serial", "--no-track"]
    keys = ["rounds=2", "local_epochs=1", "model.group=mlp", "data.clients=3", "data.samples=240"]
    out = tmp_path / "out"
    assert run.main(["fedavg_digits", *keys, *words, "--out", str(out)]) == 0
    before = {*(out / "states").iterdir()}
    for name in ("000001-0123abcd.safetensors", "999999-0123abcd.safetensors"):
        (out / "states" / name).touch()
    assert run.main(["--resume", str(out), *words]) == 0
    assert {*(out / "states").iterdir()} == before
