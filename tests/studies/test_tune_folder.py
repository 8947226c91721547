"""The sweeps and tables in tune/: each says how to run it, and every configuration resolves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import plan_words, study_tree

from fedray.config import Experiment, parse_assignments
from fedray.results.design import Place
from fedray.studies.cell import check_cells, check_metrics
from fedray.studies.plan import StudyPlan
from fedray.studies.space import Config, corners

pytestmark = pytest.mark.usefixtures("empty_data")
TUNE = Path(__file__).parents[2] / "tune"
FILES = sorted(TUNE.glob("*.yaml"))
TABLES = sorted((TUNE / "tables").glob("*.yaml"))


def planned(name: str | Path, words: Sequence[str] = (), scale: str | None = None) -> StudyPlan:
    """Return the plan of a sweep."""
    return plan_words("sweep", str(name), words, scale)


def configurations(plan: StudyPlan, row: str) -> list[Config]:
    """Return the configurations of a row; of one that is not a grid the ends of its ranges."""
    return plan.configurations(row) or corners(plan.axes_of(row))


def every_experiment(plan: StudyPlan, place: Place) -> list[Experiment]:
    seed = plan.report.seeds[0]
    configs = configurations(plan, place.row)
    return [plan.run(place, config, "report", seed).experiment for config in configs]


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_configuration_of_every_scale_resolves(path):
    scales = study_tree(path)["scales"]
    assert "laptop" in scales
    for scale in scales:
        plan = planned(path, scale=scale)
        [experiment] = check_cells(plan)
        assert len(configurations(plan, "all")) >= 4
        assert experiment.scale == ("paper" if scale == "printed" else scale)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_overrides_in_a_header_work(path):
    overrides = re.findall(r"^#\s+python -m fedray\.sweep (.+)$", path.read_text(), re.MULTILINE)
    assert overrides
    for name, *words in map(str.split, overrides):
        assert name == path.stem
        assert parse_assignments(words)
        check_cells(planned(path, words))


def test_a_laptop_trial_asks_for_one_core():
    for path in FILES:
        plan = planned(path)
        assert plan.scale == "laptop"
        for experiment in every_experiment(plan, plan.places[0]):
            assert (experiment.workers, experiment.gpus) == (1, 0)


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_cell_of_every_scale_resolves(path):
    scales = list(study_tree(path).get("scales", {"laptop": {}}))
    for scale in dict.fromkeys([*scales, *(["printed"] if "paper" in scales else [])]):
        plan = plan_words("table", str(path), scale=scale)
        assert bool(plan.parsed_claims()) == (scale != "printed")
        keys = set()
        for place in plan.places:
            configs, seed = plan.configurations(place.row), plan.report.seeds[0]
            plan.run(place, configs[-1], "tuning", seed)
            run = plan.run(place, configs[0], "report", seed)
            check_metrics(plan, place.row, run.experiment)
            keys.add(run.key)
        assert len(keys) == len(plan.places), f"{scale}: cells that run the same"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_what_a_scale_leaves_out_is_said(path):
    for scale, tree in study_tree(path).get("scales", {}).items():
        assert scale in ("paper", "printed") or tree.get("left_out"), scale


def test_the_tables_of_the_documentation_can_be_run(tmp_path):
    page = (TUNE.parent / "docs" / "tables.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        path = tmp_path / f"block_{number}.yaml"
        path.write_text(block, encoding="utf-8")
        plan = plan_words("table", str(path))
        for place in plan.places:
            plan.experiment_of(place, {}, "report", 0)


PROMPTS = [path for path in TABLES if path.stem.startswith(("fedmgp_", "dp2fl_"))]
LONGER = ", five times the steps"


def steps(plan: StudyPlan, row: str) -> tuple[int, int, int]:
    """Rounds, gradient steps for each batch of a round, and the batch."""
    place, config = Place(row, next(iter(plan.columns))), plan.first_config(row)
    run = plan.run(place, config, "report", plan.report.seeds[0]).experiment
    on_a_batch = run.algorithm.tree().get("inner_steps", 1)
    return run.rounds, run.local_epochs * on_a_batch, run.batch_size


@pytest.mark.parametrize("path", PROMPTS, ids=lambda path: path.stem)
def test_rows_of_prompt_methods_take_the_same_local_steps_but_those_that_say_otherwise(path):
    for scale in study_tree(path)["scales"]:
        plan = plan_words("table", str(path), scale=scale)
        first = steps(plan, next(iter(plan.rows)))
        for name, row in plan.rows.items():
            if name == "zero_shot":
                continue
            times = 5 if row.label.endswith(LONGER) else 1
            assert steps(plan, name) == (first[0], times * first[1], first[2]), (plan.scale, name)
