"""The benchmark of overhead says why one of its processes died."""

from __future__ import annotations

import pytest

from benchmarks.overhead import Side


def test_what_a_process_said_before_it_died_is_shown(tmp_path):
    side = Side("nobody", "loop", tmp_path)
    with pytest.raises(SystemExit, match=r"nobody, loop: .* code 1\n(.*\n)*KeyError: 'nobody'"):
        side.round()
    with pytest.raises(SystemExit, match="KeyError"):
        side.round()
