"""The papers' page has the settings that the papers give for their figures and tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from printed import every_command, of_run

from fedray.cli.dry_run import check_command
from fedray.cli.papers import read_papers
from fedray.studies.file import plan_study

pytestmark = pytest.mark.usefixtures("empty_data")
ROOT = Path(__file__).parents[2]
COMMANDS = every_command(read_papers())
CLIP_AND_BERT = {"text.encoder.name": {"openclip", "bert"}}
CIFAR = {"data.root": {"cifar10", "cifar100"}}
FACTS = {
    "Fig. 4": {"data.partition.alpha": {0.5}, "model.group": {"htfe3"}},
    "Fig. 6": {**CIFAR, "data.partition.alpha": {0.5}, "model.group": {"htfe3"}},
    "Fig. 7": {**CLIP_AND_BERT, "data.root": {"cifar100"}},
    "Fig. 8": CLIP_AND_BERT,
    "Supplement I.2": {**CLIP_AND_BERT, "data.partition.alpha": {1.0}},
}
"""FedTSP: every value that the experiments of an item have, by key."""


def experiments(item, paper="fedtsp"):
    """Return what the item's commands would run at paper scale; of tables where nothing else is."""
    wanted = [text for *of, scale, text in COMMANDS if [*of, scale] == [paper, item, "paper"]]
    runs = [text for text in wanted if "fedray.table" not in text] or wanted
    return [asked.experiment for command in runs for asked in check_command(command)]


@pytest.mark.parametrize("item", FACTS)
def test_a_figure_has_the_papers_setting(item):
    for key, expected in FACTS[item].items():
        found = {of_run(each, key) for each in experiments(item)}
        assert found - {"orthogonal", "random"} == expected, key


def test_the_table_of_figs_3_and_4_has_their_groups_of_models():
    plan = plan_study("table", str(ROOT / "tune/tables/fedtsp_generalisation.yaml"), scale="paper")
    asked = check_command("python -m fedray.table fedtsp_generalisation --scale paper")
    assert {each.experiment.model.group for each in asked} == {"htfe9", "htfe3"}
    assert {of_run(each.experiment, "data.partition.alpha") for each in asked} == {0.5}
    assert set(plan.columns) == {"HtFE9", "HtFE3"}


def test_fig_5_right_and_fig_8_vary_what_the_paper_does():
    right, eight = experiments("Fig. 5 right"), experiments("Fig. 8")
    assert len({each.local_epochs for each in right}) > 1
    assert {of_run(each, "text.style.name") for each in right} == {
        of_run(right[0], "text.style.name")
    }
    assert {each.local_epochs for each in eight} == {5}
    assert 40 in {of_run(each, "algorithm.server_epochs") for each in eight}
    assert len({of_run(each, "algorithm.prompt_length") for each in eight}) > 1


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("fedtsp_lambda", {"text.encoder.name": {"openclip", "bert", "orthogonal"}}),
        ("fedtsp_prompt_length", CLIP_AND_BERT),
        (
            "fedtsp_server_epochs",
            {**CLIP_AND_BERT, "algorithm.server_epochs": {0, 1, 5, 10, 20, 30, 40}},
        ),
        ("fedtsp_retrieval", {"data.partition.alpha": {1.0}, "model.feature_dim": {512, 768}}),
    ],
)
def test_a_table_at_paper_scale_has_the_papers_setting(name, keys):
    asked = check_command(f"python -m fedray.table {name} --scale paper")
    for key, expected in keys.items():
        assert {of_run(each.experiment, key) for each in asked} == expected, key


@pytest.mark.parametrize(("table", "domains"), [("Table 11", 6), ("Table 12", 4)])
def test_fedmgps_table_11_is_domainnet_and_12_office(table, domains):
    roots = {6: "domainnet", 4: "office_caltech10"}
    number = table.removeprefix("Table ")
    runs = experiments(table, "fedmgp")
    assert {of_run(each, "data.root") for each in runs} == {roots[domains]}
    assert {each.data.clients for each in runs} == {5 * domains}
    command = f"python -m fedray.table fedmgp_table{number} --scale paper"
    assert ("fedmgp", table, "paper", command) in COMMANDS
    assert {of_run(each.experiment, "data.root") for each in check_command(command)} == {
        roots[domains]
    }


COMPARISON = {
    "fedtsp": {
        "proto_agg": "uniform",
        "server_dir": "i2t",
        "learn_tau": True,
        "init_order": "code",
    },
    "fedproto": {"proto_agg": "uniform"},
    "fedtgp": {"stale": True},
    "alignfed": {"softmax": "batch"},
    "fedgen": {"untrained": True},
    "fml": {"kl": "entries", "teacher_gradients": True, "clip_norm": 10.0},
    "fedkd": {"kl": "entries", "teacher_gradients": True, "clip_norm": 10.0, "compress": False},
    "fedmrl": {"official_bug": True, "clip_norm": 10.0},
}
"""What FedTSP's repository does otherwise than the methods' papers, by method."""


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        (f"fedtsp_{name}", scale)
        for name in ("table1", "table2", "table3", "generalisation")
        for scale in ("paper", "printed")
    ],
)
def test_fedtsps_comparison_is_its_repositorys(name, scale):
    asked = check_command(f"python -m fedray.table {name} --scale {scale}")
    methods = set()
    for each in asked:
        experiment, algorithm = each.experiment, each.experiment.algorithm
        methods.add(algorithm.name)
        expected = COMPARISON.get(algorithm.name, {})
        assert {key: algorithm.tree()[key] for key in expected} == expected, each.label
        assert (experiment.shuffle, experiment.drop_last) == (False, True), each.label
        encoder = experiment.text.encoder
        if algorithm.name == "fedtsp" and encoder.name == "bert":
            assert encoder.tree()["bert_compat"] is True
    assert methods >= set(COMPARISON) - ({"fedmrl"} if name == "fedtsp_table3" else set())
    assert "FedTSP's repository" in (ROOT / "tune" / "tables" / f"{name}.yaml").read_text()
