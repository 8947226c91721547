"""The number of processors is what the process may use, on every system."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedray import processors
from fedray.processors import allowed_cpus

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


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine(8, own, files)`: eight CPUs, and a process in the cgroups that `own` lists."""

    def build(cpus: int, own: str = "", files: dict[str, str] | None = None) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(cpus), raising=False)
        monkeypatch.setattr(processors, "CGROUPS", tmp_path)
        monkeypatch.setattr(processors, "OWN", tmp_path / "own")
        (tmp_path / "own").write_text(own)
        for name, content in (files or {}).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)

    return build


@pytest.mark.parametrize(
    ("own", "files", "cpus"),
    [
        ("", {}, 8),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "300000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "1600000 100000\n"}, 8),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "250000 100000\n"}, 2),
        (
            "3:cpuset:/\n2:cpu,cpuacct:/job\n0::/\n",
            {"cpu/job/cpu.cfs_quota_us": "400000\n", "cpu/job/cpu.cfs_period_us": "100000\n"},
            4,
        ),
        (
            "1:cpu:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            8,
        ),
        ("nonsense\n", {"cpu.max": "nonsense\n"}, 8),
    ],
)
def test_the_quota_of_a_container_counts(machine, own, files, cpus):
    machine(8, own, files)
    assert allowed_cpus() == cpus


def test_a_system_without_an_affinity_counts_its_processors(machine, monkeypatch):
    machine(8)
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
