"""In short, what `python -m benchmarks.faults tracker --count 1000` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faults import tracker


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_and_nothing_twice(tmp_path: Path) -> None:
    tally = tracker.run(12, 0, tmp_path)
    assert tally.wrong == []
    assert tally.count >= 12
