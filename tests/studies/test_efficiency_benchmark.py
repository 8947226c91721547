"""The benchmark of sweeps: what it computes, and in a long test that it runs."""

from __future__ import annotations

import re

import pytest

from benchmarks.sweep import Efficiency, main


def test_efficiency_is_training_over_processor_time():
    found = Efficiency(
        "x", 3, 2, alone=30.0, alone_cpu=29.0, wall=20.0, cpu=38.0, startups=[4.0, 5.0, 0.5]
    )
    assert found.efficiency == 0.75
    assert "30.0 s" in found.table()
    assert "0.50 s" in found.table()
    assert "5.0 s" in found.table()


@pytest.mark.long
@pytest.mark.ray
def test_it_measures_a_small_sweep(capfd):
    words = ["fedproto_lambda", "rounds=1", "tuning.configurations=2", "--alone", "1"]
    assert main(words) == 0
    out = capfd.readouterr().out
    assert 0 < float(re.search(r"^efficiency +(\S+)$", out, re.MULTILINE)[1]) < 1
    assert re.search(r"^trials +2$", out, re.MULTILINE)
