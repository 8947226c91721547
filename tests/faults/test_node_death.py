"""Nodes that die under a run: `python -m benchmarks.faults nodes`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_node_that_dies_is_replaced_by_a_spare_one(inject):
    inject("nodes", 1)


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_sweep_on_nodes_that_share_no_folder_goes_on_without_one_of_them(tmp_path, cache):
    """Its results are on the driver's node, where its trials' servers are."""
    words = ["--nodes", "1", "--workers", "0", "--only", "sweep", "--apart"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.nodes", *words, "--json", str(tmp_path / "found.json")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 kills, 0 not identical" in done.stdout
