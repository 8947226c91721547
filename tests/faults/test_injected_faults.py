"""In short, what `python -m benchmarks.faults` injects: no fault gives another number."""

from __future__ import annotations

import pytest

FAULTS = {
    "disk": (3, 9),
    "kills": (5, 20),
}
"""By kind: how many are injected, and how many by `make long`."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("is_long", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", FAULTS)
def test_no_fault_gives_another_number(inject, kind, is_long):
    few, many = FAULTS[kind]
    inject(kind, many if is_long else few)


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("kind", "count", "seed"), [("nodes", 1, 0), ("workers", 3, 1)])
def test_processes_and_nodes_on_ray_that_die_are_replaced(inject, kind, count, seed):
    inject(kind, count, seed)
