"""The tables in tune/tables/: every scale resolves, and no two of its cells run the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import plan_words, study_tree

from fedray.results.design import Place
from fedray.studies.cell import Cell, check_metrics

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "tune" / "tables"
FILES = sorted(TABLES.glob("*.yaml"))
EXPECTED = {
    "digits",
    "fedtsp_table1",
    "fedtsp_table2",
    "fedtsp_table3",
    "fedtsp_table4",
    "fedtsp_table5",
    "fedtsp_lambda",
    "fedtsp_prompt_length",
    "fedtsp_prompt_kinds",
    "fedtsp_prompt_number",
    "fedtsp_server_epochs",
    "fedtsp_local_epochs",
    "fedtsp_generalisation",
    "fedtsp_l2",
    "fedtsp_quantised",
    "fedtsp_evolving",
    "fedtsp_joining",
    "fedtsp_retrieval",
    "fedglcl_table1",
    "fedglcl_table1_domainnet",
    "fedglcl_table2",
    "fedglcl_table2_cifar100",
    "fedglcl_table3",
    "fedglcl_table4",
    "fedglcl_table9",
    "fedglcl_table10",
    "fedglcl_table11",
    "fedglcl_table12",
    "fedglcl_table13",
    "fedglcl_table14",
    "fedglcl_table16",
    "fedglcl_table18",
    "fedglcl_table19",
    "fedglcl_plus",
    "fedglcl_centralised",
    "fedglcl_centralised_office",
    "fedglcl_domains",
    "fedglcl_tau",
    "fedmgp_table1",
    "fedmgp_table2",
    "fedmgp_table5",
    "fedmgp_table7",
    "fedmgp_table8",
    "fedmgp_table9",
    "fedmgp_table11",
    "fedmgp_table12",
    "fedmgp_table17",
    "fedmgp_table4",
    "fedmgp_table6",
    "fedmgp_table14",
    "fedmgp_table15",
    "fedmgp_table16",
    "dp2fl_table1",
    "dp2fl_table2",
    "dp2fl_table3",
    "dp2fl_table4",
}
SETS = (
    *("cifar10", "cifar100", "caltech101", "dtd10", "fashion_mnist", "office_caltech10"),
    *("tiny_imagenet", "domainnet", "prostate_mri"),
    *("caltech-101", "dtd", "eurosat", "fgvc_aircraft", "food-101", "oxford_flowers"),
    *("oxford_pets", "stanford_cars", "sun397", "ucf101"),
)


@pytest.fixture(autouse=True)
def _data(tmp_path, monkeypatch):
    """Empty folders of the data sets that experiments name."""
    for name in SETS:
        (tmp_path / name).mkdir()
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))


def test_the_tables_are_there():
    assert {path.stem for path in FILES} >= EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_cell_of_every_scale_resolves(path):
    scales = list(study_tree(path).get("scales", {"laptop": {}}))
    for scale in dict.fromkeys([*scales, *(["printed"] if "paper" in scales else [])]):
        plan = plan_words("table", str(path), scale=scale)
        assert bool(plan.parsed_claims()) == (scale != "printed")
        keys = set()
        for place in plan.places:
            cell = Cell(plan, place)
            cell.run_spec(cell.first[-1], "tuning", plan.report.seeds[0])
            run = cell.run_spec(cell.first[0], "report", plan.report.seeds[0])
            check_metrics(plan, place.row, run.experiment)
            keys.add(run.key)
        assert len(keys) == len(plan.places), f"{scale}: cells that run the same"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_header_has_a_command_and_what_is_left_out_is_said(path):
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any(re.search(rf"python -m fedray\.table {path.stem}\b", line) for line in header)
    for scale, tree in study_tree(path).get("scales", {}).items():
        assert scale in ("paper", "printed") or tree.get("left_out"), scale


@pytest.mark.parametrize("number", [1, 2, 9, 11, 12])
def test_fedpgp_has_two_prompts_where_fedmgp_is_compared(number):
    plan = plan_words("table", str(TABLES / f"fedmgp_table{number}.yaml"), scale="paper")
    place = next(place for place in plan.places if place.row == "fedpgp")
    cell = Cell(plan, place)
    run = cell.run_spec(cell.first[0], "report", plan.report.seeds[0])
    assert run.experiment.algorithm.tree()["copies"] == 2


def test_both_sets_of_fedglcls_table_2_are_divided_by_one_routine():
    found = []
    for name in ("fedglcl_table2", "fedglcl_table2_cifar100"):
        plan = plan_words("table", str(TABLES / f"{name}.yaml"), scale="paper")
        cell = Cell(plan, Place("fedavg", "Dir(0.5)"))
        run = cell.run_spec(cell.first[0], "report", plan.report.seeds[0])
        found.append(run.experiment.data.partition)
    assert found[0] == found[1]


def test_vggs_baselines_have_its_whole_head():
    plan = plan_words("table", str(TABLES / "fedglcl_table12.yaml"), scale="paper")
    widths = {}
    for place in plan.places:
        cell = Cell(plan, place)
        run = cell.run_spec(cell.first[0], "report", plan.report.seeds[0])
        widths[place.row] = run.experiment.model.feature_dim
    ours = {"fedglcl": widths.pop("fedglcl"), "orthogonal": widths.pop("orthogonal")}
    assert ours == {"fedglcl": 640, "orthogonal": 640}
    assert widths == dict.fromkeys(widths, 4096)
    assert len(widths) == 8


@pytest.mark.parametrize("path", TABLES.glob("fedtsp_*.yaml"), ids=lambda path: path.stem)
def test_fedtsps_numbers_say_of_which_mean_they_are(path):
    paper = study_tree(path).get("paper")
    assert paper is None or "images" in paper["source"]


def test_the_tables_of_the_documentation_can_be_run(tmp_path):
    page = (ROOT / "docs" / "tables.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        path = tmp_path / f"block_{number}.yaml"
        path.write_text(block, encoding="utf-8")
        plan = plan_words("table", str(path))
        for place in plan.places:
            plan.experiment_of(place, {}, "report", 0)
