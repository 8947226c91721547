"""The tests of `on_pretended_device.py`, which need a process without any backward pass before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).with_name("on_pretended_device.py")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pretended_accelerator():
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FILE)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=FILE.parents[1])
    assert done.returncode == 0, done.stdout[-20_000:]
    assert " passed" in done.stdout
