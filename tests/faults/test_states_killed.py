"""A process that commits states is killed at any time (`tests/faults/kill_states.py`)."""

from __future__ import annotations

import pytest
from kill_states import kill


@pytest.mark.slow
@pytest.mark.parametrize("kills", [20, pytest.param(400, marks=pytest.mark.long)])
def test_killed_at_any_time(tmp_path, kills):
    assert kill(tmp_path / "states", kills, most=0.3) > 0
