"""The benchmark of damaged files sees other numbers."""

from __future__ import annotations

import shutil

from benchmarks.faults import damage
from benchmarks.faults.harness import difference
from fedray import run

WORDS = (
    *("fedavg_digits", "algorithm=scaffold", "rounds=2", "local_epochs=1", "data.clients=3"),
    *("data.samples=240", "--executor=serial", "--no-track"),
)


def test_the_benchmark_sees_other_numbers(tmp_path):
    mine, other, copy = tmp_path / "0", tmp_path / "1", tmp_path / "copy"
    for out in (mine, other):
        assert run.main([*WORDS, f"seed={out.name}", "--out", str(out)]) == 0
    assert difference(mine, mine) == ""
    assert difference(other, mine).startswith("round 0: ")
    shutil.copytree(mine, copy)
    folders = {damage.RUN: mine, damage.OLDER: mine, damage.STRANGER: other}
    assert damage.judge({**folders, damage.END: mine}, copy) == ("read, same numbers", "")
    _, wrong = damage.judge({**folders, damage.END: other}, copy)
    assert wrong.startswith("round 0: ")
