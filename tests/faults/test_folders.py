"""The benchmark of damaged, linked and exchanged folders sees what is wrong."""

from __future__ import annotations

import pytest

from benchmarks.faults import folders
from benchmarks.faults.harness import difference
from fedray import run

WORDS = (
    *("fedavg_digits", "algorithm=scaffold", "rounds=2", "local_epochs=1", "data.clients=3"),
    *("data.samples=240", "--executor=serial", "--no-track"),
)


@pytest.mark.parametrize("defect", ["published", "written", "another answer", ""])
def test_the_benchmark_sees_what_is_wrong(tmp_path, monkeypatch, defect):
    for name in ("out", "results"):
        (tmp_path / name).mkdir()
    (tmp_path / "private").write_text(folders.PRIVATE if defect != "written" else "changed")
    if defect == "published":
        (tmp_path / "out" / "partition.png").write_text(folders.PRIVATE)
    text = "93 %" if defect == "another answer" else "92 %"
    monkeypatch.setattr(folders, "call", lambda *_: (text, ""))
    _, wrong = folders.judge(tmp_path, "study", "report", "rounds.jsonl", "92 %")
    assert bool(wrong) == bool(defect)


def test_the_benchmark_sees_other_numbers(tmp_path):
    mine, other = tmp_path / "0", tmp_path / "1"
    for out in (mine, other):
        assert run.main([*WORDS, f"seed={out.name}", "--out", str(out)]) == 0
    assert difference(mine, mine) == ""
    assert difference(other, mine).startswith("round 0: ")
