"""The notebook runs from its first cell to its last, and once more, in an empty folder."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

import fedray

FILE = Path(fedray.__file__).parents[1] / "notebooks" / "write_a_method.ipynb"
CLEAN = {"kernelspec", "language_info"}

pytestmark = pytest.mark.skipif(not FILE.exists(), reason="notebooks/ is not part of the wheel")


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    notebook = nbformat.read(FILE, as_version=4)
    stored = deepcopy(notebook.cells)
    notebook.cells += deepcopy(notebook.cells)  # as readers do
    NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert kinds(notebook.cells[: len(stored)]) == kinds(stored)
    assert (tmp_path / "results" / "runs").is_dir()


def kinds(cells: list[NotebookNode]) -> list[set[str]]:
    """The kinds of the outputs of each cell, without what went to stderr."""
    return [
        {output.output_type for output in cell.get("outputs", ()) if output.get("name") != "stderr"}
        for cell in cells
    ]


def test_the_notebook_is_kept_with_outputs():
    """As `jupyter execute --inplace` stores it, without times and without the machine's paths."""
    notebook = nbformat.read(FILE, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count == number for number, cell in enumerate(code, 1))
    assert set(notebook.metadata) == CLEAN
    assert not any(cell.metadata for cell in notebook.cells)
    outputs = str([cell.outputs for cell in code])
    assert "error" not in outputs
    assert not re.search(r"/(?:tmp|root|home|work)/", outputs)
