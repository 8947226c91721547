"""What killed processes left is removed."""

from __future__ import annotations

from fedray import run


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


def test_a_run_killed_in_its_first_round_left_no_run(tmp_path):
    (tmp_path / "states").mkdir()
    (tmp_path / "states" / "000001-0123abcd.safetensors").touch()  # by a worker
    words = ["rounds=1", "model.group=mlp", "data.clients=3", "data.samples=240", "--no-track"]
    assert run.main(["fedavg_digits", *words, "--executor=serial", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "states" / "000001-0123abcd.safetensors").exists()
