"""The command that injects faults, in short."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def inject(cache):
    """`inject("kills", 12)` injects so many faults; none may end as it must not."""

    def inject(kind: str, count: int, seed: int = 0) -> str:
        words = ["-m", "benchmarks.faults", kind, "--count", str(count), "--seed", str(seed)]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert ", 0 wrong" in done.stdout
        return done.stdout

    return inject
