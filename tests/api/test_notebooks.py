"""The notebooks run from their first cell to their last, and once more, in an empty folder."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import fedray

FOLDER = Path(fedray.__file__).parents[1] / "notebooks"
NAMES = ["compare_two_methods", "write_a_method"]

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="notebooks/ is not part of the wheel")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    notebook.cells += deepcopy(notebook.cells)  # as readers do
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert (tmp_path / "results" / "runs").is_dir()


def test_notebooks_are_kept_without_outputs():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == NAMES
    for name in NAMES:
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        nbformat.validate(notebook)
        assert not any(cell.get("outputs") for cell in notebook.cells)
