"""Workers, server and driver on Ray that die: `python -m benchmarks.faults workers`."""

from __future__ import annotations

import pytest


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_processes_of_a_living_run_that_die(inject):
    inject("workers", 3, seed=1)
