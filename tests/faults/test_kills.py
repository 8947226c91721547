"""A run that is killed again and again, in short: `python -m benchmarks.faults kills`."""

from __future__ import annotations

import os

import pytest

from fedray.files import remove_torn, write_json


@pytest.mark.slow
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
