"""`fedray check` says of each law whether it holds, and how a method breaks it on Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OFFENDERS = Path(__file__).with_name("offenders.py")
LAWS = 10


def checked(*words: str) -> tuple[int, dict[str, dict[str, str]]]:
    """Run `fedray check`; return its exit code, and the difference of each law by method."""
    done = subprocess.run(
        [sys.executable, "-m", "fedray", "check", *words], capture_output=True, text=True
    )
    found: dict[str, dict[str, str]] = {}
    for line in done.stdout.splitlines():
        if line[:1].isalpha() and not line.endswith("..."):
            method = line
            found[method] = {}
        elif line.startswith(("  holds ", "  BROKEN ")):
            law = line[10:22].strip()
            found[method][law] = "BROKEN" if "BROKEN" in line else ""
        elif line.startswith(" " * 10):
            found[method][law] += f" {line.strip()}"
    assert found, done.stderr
    return done.returncode, found


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_method_that_breaks_a_law_on_ray_is_found():
    code, found = checked("fedavg", "own_process", "--plugin", str(OFFENDERS))
    assert len(found["fedavg"]) == LAWS
    assert not any(found["fedavg"].values())
    assert "round 1: server/model/" in found["own_process"]["workers"]
    assert code == 1
