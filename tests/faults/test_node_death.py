"""A node that dies under a sweep whose nodes share no folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_A_SHARED_FOLDER = """
import sys
from pathlib import Path
from benchmarks.faults.nodes import SPARE, Stage

with Stage(Path(sys.argv[1]), shared=False) as stage:
    print(stage.sweep(SPARE, 1, "0")[0])
"""


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_sweep_on_nodes_that_share_no_folder_goes_on_without_one_of_them(tmp_path, cache):
    """Its results are on the driver's node, where its trials' servers are."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_SHARED_FOLDER, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("identical\n")
