"""The benchmark of sweeps: what it computes, and in a long test that it runs."""

from __future__ import annotations

import json

import pytest

from benchmarks.sweep import Efficiency, main


def test_efficiency_is_training_over_processor_time():
    found = Efficiency("x", 3, 2, alone=30.0, wall=20.0, startups=[4.0, 5.0, 0.5])
    assert found.efficiency == 0.75
    assert "30.0 s" in found.table()
    assert "0.50 s" in found.table()
    assert "5.0 s" in found.table()


@pytest.mark.long
@pytest.mark.ray
def test_it_measures_a_small_sweep(tmp_path, capfd):
    words = ["fedproto_lambda", "rounds=1", "--num-samples", "2", "--alone", "1"]
    assert main([*words, "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert 0 < found["efficiency"] < 1
    assert found["trials"] == len(found["startups"]) == 2
    assert "efficiency" in capfd.readouterr().out
