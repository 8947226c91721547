"""The tables in tune/tables/: every scale resolves, has its command, and spends alike on all rows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedray.tables.agenda import Cell
from fedray.tables.spec import SCALES, plan_table

TABLES = Path(__file__).parents[2] / "tune" / "tables"
FILES = sorted(TABLES.glob("*.yaml"))
EXPECTED = {
    "digits",
    "fedtsp_table1",
    "fedtsp_table2",
    "fedtsp_table4",
    "fedtsp_lambda",
    "fedtsp_prompt_length",
    "fedglcl_table1",
    "fedglcl_table2",
    "fedglcl_table2_cifar100",
    "fedglcl_table3",
    "fedglcl_table9",
    "fedglcl_table10",
    "fedglcl_table14",
    "fedglcl_tau",
}
SETS = ("cifar10", "cifar100", "caltech101", "dtd10", "fashion_mnist", "office_caltech10")


@pytest.fixture(autouse=True)
def _data(tmp_path, monkeypatch):
    """Empty folders of the data sets that experiments name."""
    for name in SETS:
        (tmp_path / name).mkdir()
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))


def test_the_tables_are_there():
    assert {path.stem for path in FILES} >= EXPECTED


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_cell_of_every_scale_resolves(path):
    for scale in SCALES:
        try:
            plan = plan_table(str(path), scale=scale)
        except Exception as error:
            if "has no" in str(error):
                continue
            raise
        for place in plan.places:
            cell = Cell(plan, place)
            for config in cell.first:
                cell.wanted(config, "tuning", plan.tuning.seeds[0])
            cell.wanted(cell.first[0], "report", plan.report.seeds[0])
