"""The number of processors is what the process may use, on every system."""

from __future__ import annotations

import os

from fedray.base.processors import allowed_cpus


def test_the_affinity_counts_where_there_is_one(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8), raising=False)
    assert allowed_cpus() == 8
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert allowed_cpus() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert allowed_cpus() == 1
