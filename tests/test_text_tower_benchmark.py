"""The benchmark of the text tower says what its child processes died of."""

from __future__ import annotations

import pytest

from benchmarks.text_tower import Child

NUMBERS = [10, 1, 1]


def test_a_child_that_dies_is_quoted(tmp_path):
    (tmp_path / "fedray").mkdir()
    (tmp_path / "fedray" / "__init__.py").write_text("raise RuntimeError('half a checkout')")
    with pytest.raises(SystemExit, match=r"(?s)a child process died:.*half a checkout"):
        Child("fedray", tmp_path, NUMBERS, tmp_path)


def test_a_folder_without_fedray_is_not_measured_as_the_installed_one(tmp_path):
    with pytest.raises(SystemExit, match=f"{tmp_path} is no checkout of fedray|No module named"):
        Child("older", tmp_path, NUMBERS, tmp_path)
