"""The sweeps in tune/: each is valid, says how to run it, and every configuration resolves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedray.cli.papers import read_papers
from fedray.config import Experiment, parse_assignments
from fedray.studies.agenda import Cell
from fedray.studies.file import plan_words
from fedray.studies.space import check_configurations, grid, plan_sweep, read_sweep

TUNE = Path(__file__).parents[2] / "tune"
FILES = sorted(TUNE.glob("*.yaml"))
WEIGHTED = "local_accuracy_weighted"
EXPECTED = {
    "fedtsp_lambda",
    "fedtsp_tau",
    "fedtsp_prompt_length",
    "fedtsp_server_epochs",
    "fedtsp_local_epochs",
    "fedtsp_joint",
    "fedtsp_table1",
    "fedtsp_table2",
    "fedtsp_table3",
    "fedtsp_ablation",
    "fedtsp_table5",
    "fedtsp_heatmaps",
    "fedtsp_curves",
    "fedtsp_generalisation",
    "fedtsp_prompt_kinds",
    "fedtsp_prompt_number",
    "fedtsp_l2",
    "fedtsp_quantised",
    "fedtsp_evolving",
    "fedtsp_joining",
    "fedtsp_descriptions",
    "fedtsp_retrieval",
    "fedproto_lambda",
    "fedtgp_lambda",
    "fedglcl_tau",
    "fedglcl_backbone",
    "fedglcl_encoder",
    "fedglcl_centralised",
    "fedglcl_office",
    "fedglcl_domainnet",
    "fedglcl_cifar100",
    "fedglcl_fashion",
    "fedglcl_trained_text",
    "fedglcl_prompts",
    "fedglcl_controls",
    "fedglcl_vgg_labels",
    "fedglcl_vgg_domains",
    "fedglcl_longtail",
    "fedglcl_tiny_imagenet",
    "fedglcl_pretrained",
    "fedglcl_segmentation",
    "fedprox_mu",
    "moon_mu_tau",
    "dp2fl_alpha",
    "dp2fl_beta",
    "dp2fl_gamma",
    "dp2fl_alpha_beta_gamma",
    "dp2fl_newcomer",
    "fedmgp_groups",
    "fedmgp_prompt_length",
    "fedmgp_top_s",
    "fedmgp_tau",
    "fedmgp_lambda",
    "fedmgp_diversity",
    "fedmgp_aggregation",
    "fedmgp_shots",
    "fedmgp_methods",
    "fedmgp_label_skew",
    "fedmgp_modalities",
    "fedmgp_office",
    "fedmgp_domainnet",
    "dp2fl_methods",
    "dp2fl_tuning",
    "scalability",
    "fedotp",
    "fedpgp",
    "promptfolio",
}


@pytest.fixture(autouse=True)
def _data(tmp_path, monkeypatch):
    """Empty folders of the data sets that the paper's experiments name."""
    sets = ["cifar10", "cifar100", "tiny_imagenet", "caltech101", "office_caltech10"]
    sets += ["caltech-101", "oxford_flowers", "oxford_pets", "dtd", "food-101"]
    sets += ["ucf101", "stanford_cars", "fgvc_aircraft", "sun397", "eurosat"]
    sets += ["fashion_mnist", "domainnet", "prostate_mri"]
    for name in sets:
        (tmp_path / name).mkdir()
    monkeypatch.setenv("FEDRAY_DATA", str(tmp_path))


def test_the_folder_holds_what_it_should_and_no_python():
    assert {path.stem for path in FILES} >= EXPECTED
    assert not list(TUNE.glob("**/*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_configuration_of_every_scale_resolves(path):
    sweep = read_sweep(path)
    assert "laptop" in sweep.scales
    for scale in sweep.scales:
        plan = plan_sweep(str(path), scale=scale)
        configs = check_configurations(plan)
        assert len(configs) >= 4
        experiment = plan.experiment_of(configs[0], plan.seeds[0])
        assert experiment.scale == scale


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_header_has_a_command_and_an_override_that_work(path):
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    commands = [
        found.group(1).split()
        for line in header
        if (found := re.fullmatch(r"#\s+python -m fedray\.sweep (.+)", line))
    ]
    assert [path.stem] in commands
    overrides = [command for command in commands if len(command) > 1]
    assert overrides
    for name, *words in overrides:
        assert name == path.stem
        keys = [word for word in words if "=" in word]
        assert parse_assignments(keys)
        check_configurations(plan_sweep(str(path), keys))


def test_a_laptop_trial_asks_for_one_core():
    for path in FILES:
        plan = plan_sweep(str(path))
        for config in check_configurations(plan):
            experiment = plan.experiment_of(config, plan.seeds[0])
            assert (experiment.workers, experiment.gpus) == (1, 0)


def test_the_demo_has_eight_trials():
    assert len(check_configurations(plan_sweep(str(TUNE / "fedtsp_lambda.yaml")))) >= 8


def at_paper_scale(path: Path) -> Iterator[Experiment]:
    """Every experiment of a sweep's grid."""
    if "paper" in read_sweep(path).scales:
        plan = plan_sweep(str(path), scale="paper")
        yield from (plan.experiment_of(config, plan.seeds[0]) for config in grid(plan.axes))


def methods_of(name: str) -> set[str]:
    return {each.algorithm.name for each in at_paper_scale(TUNE / f"{name}.yaml")}


def test_sweeps_rank_by_the_mean_that_the_papers_page_promises():
    items = [each for each in read_papers()["fedtsp"].items if each.measure.startswith(WEIGHTED)]
    assert len(items) == 7
    for command in (words for each in items for words in (*each.laptop, *each.paper)):
        if "fedray.sweep" in command:
            plan = plan_sweep(command.split()[3], scale="paper" if "paper" in command else "laptop")
            assert (plan.metric, plan.columns) == (WEIGHTED, ["local_accuracy"]), command


@pytest.mark.parametrize(
    "name",
    [f"fedtsp_{figure}" for figure in ("lambda", "prompt_kinds", "prompt_length", "prompt_number")]
    + ["fedtsp_server_epochs", "fedtsp_local_epochs", "fedtsp_ablation"],
)
def test_a_figures_sweep_and_table_have_the_same_clients_at_paper_scale(name):
    swept = plan_sweep(name, scale="paper").some_experiment()
    table = plan_words("table", name.replace("ablation", "table4"), scale="paper")
    cell = Cell(table, table.places[0])
    tabled = cell.wanted(cell.first[0], "report", table.report.seeds[0]).experiment
    assert swept.data.partition == tabled.data.partition
    assert swept.model.group == tabled.model.group


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rows_of_a_comparison_are_the_papers_at_paper_scale(path):
    """What a plain name would not be: FedPGP, FedGen and FedConcat as they were compared."""
    for each in at_paper_scale(path):
        params = each.algorithm.params
        match each.algorithm.name:
            case "fedpgp" if path.stem.startswith("fedmgp"):
                assert params["copies"] == 2
            case "fedgen":
                assert params["untrained"]
            case "fedconcat":
                assert (params["cluster_rounds"], each.rounds) == (50, 1050)


def test_fashion_mnist_is_divided_as_cifar100_is():
    routines = {
        name: {
            (found.name, found.params["variant"], found.params["min_samples"])
            for found in (each.data.partition for each in at_paper_scale(TUNE / f"{name}.yaml"))
            if "dirichlet" in found.name
        }
        for name in ("fedglcl_fashion", "fedglcl_cifar100")
    }
    assert routines["fedglcl_fashion"] == {("fedtsp_dirichlet", "official", 10)}
    assert routines["fedglcl_fashion"] == routines["fedglcl_cifar100"]


@pytest.mark.parametrize("name", ["fedglcl_office", "fedglcl_vgg_domains", "fedglcl_pretrained"])
def test_methods_with_a_classifier_have_the_networks_whole_head(name):
    for each in at_paper_scale(TUNE / f"{name}.yaml"):
        width = 640 if each.algorithm.name.startswith("fedglcl") else 4096
        assert each.model.feature_dim == width


def test_domains_are_columns_and_stand_ins_have_their_own():
    office = {"accuracy_amazon", "accuracy_caltech", "accuracy_dslr", "accuracy_webcam"}
    assert set(plan_sweep("fedglcl_office", scale="paper").columns) == office
    assert set(plan_sweep("fedglcl_domainnet").columns) == office
    domains = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    columns = plan_sweep("fedglcl_domainnet", scale="paper").columns
    assert set(columns) == {f"accuracy_{domain}" for domain in domains}
    columns = plan_sweep("fedmgp_domainnet", scale="paper").columns
    assert {f"client_accuracy_{domain}" for domain in domains} <= set(columns)
    assert "local_accuracy_std" in plan_sweep("fedmgp_domainnet").columns


def test_local_epochs_are_those_of_all_methods():
    assert methods_of("fedtsp_local_epochs") == methods_of("fedtsp_table1")
    assert len(methods_of("fedtsp_local_epochs")) == 11


def test_generalisation_is_that_of_the_best_models_on_their_own_images():
    for scale, own in (("laptop", "local_accuracy_top3"), ("paper", "local_accuracy_top5")):
        plan = plan_sweep("fedtsp_generalisation", scale=scale)
        assert (plan.metric, plan.columns) == ("local_accuracy", ["global_test_accuracy", own])
        assert plan.some_experiment().evaluation.top_k == int(own[-1])
