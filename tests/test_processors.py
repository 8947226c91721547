"""The number of processors is what the process may use, on every system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedray.base import processors
from fedray.base.processors import allowed_cpus

LACKING = (
    "sched_getaffinity",
    "sched_setaffinity",
    "posix_fallocate",
    "posix_fadvise",
    "memfd_create",
    "pidfd_open",
    "eventfd",
    "copy_file_range",
    "splice",
    "getrandom",
    "O_TMPFILE",
    "O_DIRECT",
)
"""Names of `os` that macOS, and so Windows, does not have."""


def test_the_affinity_counts_where_there_is_one(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8), raising=False)
    assert allowed_cpus() == 8
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert allowed_cpus() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert allowed_cpus() == 1


@pytest.mark.slow
def test_the_first_round_of_the_demo_on_a_system_that_lacks_functions_of_linux(tmp_path):
    program = f"""
import os, sys
for name in {LACKING!r}:
    if hasattr(os, name):
        delattr(os, name)
from fedray.run import main
words = "fedtsp_digits rounds=1 data.samples=300 --executor serial --no-track"
sys.exit(main(words.split()))
"""
    environment = os.environ | {
        "FEDRAY_RESULTS": str(tmp_path / "results"),
        "FEDRAY_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": str(Path(processors.__file__).parents[1]),
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "results").glob("runs/*/rounds.jsonl"))
