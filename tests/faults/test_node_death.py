"""Nodes that die under a run: `python -m benchmarks.faults nodes`."""

from __future__ import annotations

import pytest


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_node_that_dies_is_replaced_by_a_spare_one(inject):
    inject("nodes", 1)
