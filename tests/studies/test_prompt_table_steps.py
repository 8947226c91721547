"""The tables of prompt methods: rows take the same local steps, but those that say otherwise."""

from __future__ import annotations

import pytest
from commands import plan_words, study_tree
from test_table_files import FILES, SETS

from fedray.results.design import Place
from fedray.studies.cell import Cell
from fedray.studies.plan import StudyPlan

PROMPTS = [path for path in FILES if path.stem.startswith(("fedmgp_", "dp2fl_"))]
LONGER = ", five times the steps"


@pytest.fixture(autouse=True)
def _data(tmp_path, monkeypatch):
    """Empty folders of the data sets that experiments name."""
    for name in SETS:
        (tmp_path / name).mkdir()
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))


def plans(path) -> list[StudyPlan]:
    return [plan_words("table", str(path), scale=scale) for scale in study_tree(path)["scales"]]


def steps(plan: StudyPlan, row: str) -> tuple[int, int, int]:
    """Rounds, gradient steps for each batch of a round, and the batch."""
    cell = Cell(plan, Place(row, next(iter(plan.columns))))
    run = cell.run_spec(cell.first[0], "report", plan.report.seeds[0]).experiment
    on_a_batch = run.algorithm.tree().get("inner_steps", 1)
    return run.rounds, run.local_epochs * on_a_batch, run.batch_size


@pytest.mark.parametrize("path", PROMPTS, ids=lambda path: path.stem)
def test_rows_take_the_same_local_steps(path):
    for plan in plans(path):
        first = steps(plan, next(iter(plan.rows)))
        for name, row in plan.rows.items():
            if name == "zero_shot":
                continue
            times = 5 if row.label.endswith(LONGER) else 1
            assert steps(plan, name) == (first[0], times * first[1], first[2]), (plan.scale, name)


@pytest.mark.parametrize("path", PROMPTS, ids=lambda path: path.stem)
def test_a_scale_below_the_papers_says_what_it_lacks(path):
    for plan in plans(path):
        assert (plan.scale in ("paper", "printed")) is not bool(plan.left_out)
