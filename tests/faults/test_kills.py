"""A run that is killed again and again, in short: `python -m benchmarks.faults kills`."""

from __future__ import annotations

import os
import shutil

import pytest

from fedray.cli import run
from fedray.files import remove_torn, write_json


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_killed_again_and_again_equals_the_undisturbed_one(inject):
    inject("kills", 12)


def test_torn_files_of_processes_that_are_gone_are_removed(tmp_path):
    gone = os.spawnlp(os.P_NOWAIT, "true", "true")
    os.waitpid(gone, 0)
    for name in (f".result.json.{gone}.tmp", f".{gone}.tmp.result.json"):
        (tmp_path / name).touch()
    mine = tmp_path / f".result.json.{os.getppid()}.tmp"
    mine.touch()
    write_json(tmp_path / "result.json", {})
    remove_torn(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [mine.name, "result.json"]


def test_an_older_checkpoint_that_a_killed_run_left_is_removed(tmp_path):
    words = ["--executor=serial", "--no-track"]
    keys = ["rounds=2", "local_epochs=1", "model.group=mlp", "data.clients=3", "data.samples=240"]
    out = tmp_path / "out"
    assert run.main(["fedavg_digits", *keys, *words, "--out", str(out)]) == 0
    places = out / "checkpoints"
    shutil.copytree(places / "round_00002", places / "round_00001")
    (places / ".round_00002.1.tmp").mkdir()
    assert run.main(["--resume", str(out), *words]) == 0
    assert [path.name for path in places.iterdir()] == ["round_00002"]
