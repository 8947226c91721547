"""Scale `printed` of every item of the papers, against what the papers say.

`FACTS` is written from the papers' text and the authors' code, not from the YAML. A fact is the set
of all values that the runs of an item have at a key, with its place. `SETTINGS` of a paper hold for
all its items; an item states what differs. To add a paper, add its settings, items and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest
from printed import Fact, Facts, assert_as_printed, assert_numbers, of_run

from fedray.cli.dry_run import check_command
from fedray.cli.papers import read_papers

pytestmark = pytest.mark.usefixtures("empty_data")
TSP, DP2FL = ("fedtsp", "fedtsp_global"), ("dp2fl",)
BASELINES = {
    *("fedproto", "fedtgp", "alignfed", "lg_fedavg", "fedgh", "fedgen", "feddistill"),
    *("fml", "fedkd", "fedmrl"),
}
CLIP, BERT = "openclip", "bert"


def _fedtsp(**changes: Fact) -> Facts:
    """Return FedTSP's settings with an item's own ones; `__` stands for a dot."""
    return {**FEDTSP, **{key.replace("__", "."): fact for key, fact in changes.items()}}


def _dp2fl(**changes: Fact) -> Facts:
    return {**DP2FL_SETTINGS, **{key.replace("__", "."): fact for key, fact in changes.items()}}


tsp = partial(Fact, methods=TSP)
FEDTSP: Facts = {
    "lr": Fact({0.01}, "official code, scripts; open in the paper"),
    "optimizer.name": Fact({"sgd"}, "official code, scripts; open in the paper"),
    "optimizer.momentum": Fact({0.0}, "official code, scripts; open in the paper"),
    "rounds": Fact({300}, "Sec. 4.1"),
    "batch_size": Fact({100}, "Sec. 4.1"),
    "local_epochs": Fact({5}, "Sec. 4.1"),
    "data.clients": Fact({20}, "Sec. 4.1"),
    "participation": Fact({1.0}, "Sec. 4.1: all clients"),
    "eval_every": Fact({1}, "Sec. 4.1: accuracy in each round"),
    "data.root": Fact({"cifar100"}, "Sec. 4"),
    "data.partition.name": Fact({"fedtsp_dirichlet"}, "Sec. 4.1: Dirichlet"),
    "data.partition.alpha": Fact({0.5}, "Tables 4, Figs. 3, 4, 6"),
    "data.partition.variant": Fact({"official"}, "official code, dataset_utils.py"),
    "data.test": Fact({"local"}, "supplement C.1: images of both splits are merged"),
    "data.test_fraction": Fact({0.25}, "supplement C.1: 75 % to train, 25 % to test"),
    "data.validation_fraction": Fact({None}, "supplement C.1: no validation images"),
    "data.augment.name": Fact({"none"}, "official code; open in the paper"),
    "shuffle": Fact({False}, "official code: one order of images"),
    "drop_last": Fact({True}, "official code: the last batch is dropped"),
    "model.group": Fact({"htfe9"}, "Table 1"),
    "model.feature_dim": Fact({512}, "Sec. 4.1: d = 512"),
    "finetune_epochs": Fact({0}, "Sec. 3.5: only in Table 5"),
    "text.encoder.name": tsp({CLIP}, "Sec. 4.1"),
    "text.style.name": tsp({"fine"}, "Eq. (3)"),
    "algorithm.lambda": tsp({7.0}, "supplement C.4: cross-silo"),
    "algorithm.server_dir": tsp({"i2t"}, "official code, servertspv4.py"),
    "algorithm.proto_agg": tsp({"uniform"}, "official code, proto_aggregation"),
    "algorithm.learn_tau": tsp({True}, "official code, logit_scale"),
    "algorithm.init_order": tsp({"code"}, "official code: clients train first"),
    "algorithm.prompt_length": tsp({None}, "C.4: 1 for 10 classes, 10 for more (null)"),
    "algorithm.server_epochs": tsp({None}, "C.4: 1 for 10 classes, 20 for more (null)"),
    "seeds": Fact({(0, 1, 2)}, "supplement C.4: three runs"),
    "select": Fact({"test"}, "Sec. 4.1: the best round; official code: on the test"),
    "metric": Fact({"local_accuracy_weighted"}, "official code: correct of all images"),
}
ALPHAS = Fact({0.1, 0.5, 1.0}, "Table 1")
SMALL = Fact({0.1}, "Tables 2 and 3, Fig. 5")
THREE_SETS = Fact({"cifar10", "cifar100", "tiny_imagenet"}, "Sec. 4.1")
TWO_SETS = Fact({"cifar10", "cifar100"}, "Figs. 3, 6; supplement F")
BOTH = tsp({CLIP, BERT}, "Sec. 4.1: two towers")
WIDE = Fact({512, 768}, "official code: 768 with BERT")
TEN = {"algorithm__prompt_length": tsp({10}, "C.4"), "algorithm__server_epochs": tsp({20}, "C.4")}
HTFE3 = Fact({"htfe3"}, "Table 4; Figs. 4, 6")
OWN = Fact({"local_accuracy"}, "the figure's own metric stands beside it")
CURVES = Fact({"fedtsp", "local", *BASELINES}, "Figs. 3, 4 and 6")
MOST = Fact({"fedtsp", "fedproto", "fedtgp", "alignfed", "local"}, "supplement H")

DP2FL_SETTINGS: Facts = {
    "lr": Fact({0.035}, "experimental setting"),
    "optimizer.name": Fact({"sgd"}, "experimental setting"),
    "rounds": Fact({10}, "experimental setting: R = 10"),
    "batch_size": Fact({4}, "experimental setting"),
    "local_epochs": Fact({5}, "experimental setting"),
    "data.clients": Fact({10}, "experimental setting: K = 10"),
    "participation": Fact({1.0}, "Algorithm 1"),
    "data.root": Fact(
        {
            *("caltech-101", "dtd", "eurosat", "fgvc_aircraft", "food-101", "oxford_flowers"),
            *("oxford_pets", "ucf101"),
        },
        "Table 1",
    ),
    "data.partition.name": Fact({"dominant_class"}, "data setting"),
    "data.partition.shots": Fact({16}, "data setting"),
    "data.partition.excluded": Fact({0.2}, "data setting: 20 % of the classes"),
    "data.partition.kept_share": Fact({0.25}, "data setting: 25 %, 75 % of one class"),
    "data.test": Fact({"official"}, "data setting"),
    "data.validation_fraction": Fact({None}, "Algorithm 1: the partition has validation images"),
    "model.clip.name": Fact({CLIP}, "experimental setting"),
    "model.clip.model": Fact({"ViT-B-16-quickgelu"}, "experimental setting: ViT-B/16"),
    "algorithm.depth": Fact({1}, "after Eq. (3): prompts are inputs"),
    "algorithm.gamma_mode": Fact({"literal"}, "Eq. (14)", DP2FL),
    "algorithm.alpha": Fact({1.2}, "experimental setting", DP2FL),
    "algorithm.beta": Fact({0.2}, "experimental setting", DP2FL),
    "at": Fact({"final"}, "after R rounds; no round is chosen"),
    "methods": Fact({"dp2fl"}, "Tables 2 to 4"),
}
JOINS = {
    "join__clients": Fact({1}, "Table 3: an eleventh client"),
    "join__round": Fact({11}, "Table 3: after R = 10"),
    "data__clients": Fact({11}, "Table 3"),
    "algorithm__newcomer": Fact({"init", "init_global", "global"}, "Table 3"),
}

FACTS: Mapping[tuple[str, str], Facts] = {
    ("fedtsp", "Table 1"): _fedtsp(
        data__root=THREE_SETS,
        data__partition__alpha=ALPHAS,
        text__encoder__name=BOTH,
        model__feature_dim=WIDE,
        methods=Fact({"fedtsp", *BASELINES}, "Table 1"),
    ),
    ("fedtsp", "Table 2"): _fedtsp(
        data__root=THREE_SETS,
        data__partition__alpha=SMALL,
        model__group=Fact({"htfe2", "htfe3", "htfe4"}, "Table 2"),
        text__encoder__name=BOTH,
        model__feature_dim=WIDE,
        methods=Fact({"fedtsp", *BASELINES}, "Table 2"),
    ),
    ("fedtsp", "Table 3"): _fedtsp(
        data__clients=Fact({50, 100, 200}, "Table 3"),
        participation=Fact({0.2}, "Table 3"),
        batch_size=Fact({10}, "supplement C.4: cross-device"),
        local_epochs=Fact({1}, "supplement C.4: cross-device"),
        algorithm__lambda=tsp({1.0}, "supplement C.4: cross-device"),
        data__partition__alpha=SMALL,
        text__encoder__name=BOTH,
        model__feature_dim=WIDE,
        methods=Fact({"fedtsp", *BASELINES} - {"fedmrl"}, "Table 3"),
    ),
    ("fedtsp", "Table 4"): _fedtsp(
        algorithm__prompt_length=tsp({0, 10}, "Table 4: frozen, trained"),
        algorithm__server_epochs=tsp({None, 20}, "C.4; frozen text takes no steps"),
        model__group=HTFE3,
        text__style__name=tsp({"fine", "handcrafted"}, "Table 4"),
        text__encoder__name=BOTH,
        model__feature_dim=WIDE,
        methods=Fact({"fedtsp", "local"}, "Table 4"),
    ),
    ("fedtsp", "Table 5"): _fedtsp(
        **TEN,
        lr=Fact({0.1}, "official code of FedCAC, whose setting Sec. 3.5 takes"),
        optimizer__momentum=Fact({0.9}, "official code of FedCAC"),
        rounds=Fact({500}, "supplement C.4"),
        data__clients=Fact({40}, "supplement C.4"),
        data__partition__alpha=ALPHAS,
        data__partition__variant=Fact({"exact"}, "FedCAC: clients have equally many images"),
        data__test_fraction=Fact({0.1666}, "FedCAC: 500 images to train, 100 to test"),
        shuffle=Fact({True}, "open in the paper"),
        drop_last=Fact({False}, "open in the paper"),
        model__group=Fact({"resnet10"}, "official code of FedCAC"),
        text__encoder__name=BOTH,
        model__feature_dim=WIDE,
        finetune_epochs=Fact({0, 20}, "supplement C.4: 20 rounds for the -FT rows"),
        metric=Fact({"local_accuracy"}, "all clients have equally many images"),
        row_metrics=Fact({"local_accuracy", "finetuned_accuracy_best"}, "C.4: the best of 20"),
        methods=Fact(
            {
                *("fedtsp_global", "fedavg", "fedbabu", "fedetf", "fedfa_anchors", "fedpcl"),
                "fedpac",
            },
            "Table 5",
        ),
    ),
    ("fedtsp", "Fig. 1"): _fedtsp(
        data__root=Fact({"cifar10"}, "Fig. 1"),
        data__partition__alpha=SMALL,
        metric=OWN,
        methods=Fact({"fedtsp", "fedproto", "fedtgp", "alignfed"}, "Fig. 1"),
    ),
    ("fedtsp", "Fig. 3"): _fedtsp(
        data__root=TWO_SETS,
        model__group=Fact({"htfe9", "htfe3"}, "Fig. 3: HtFE9; Fig. 4: HtFE3, in the same table"),
        evaluation__global_test=Fact({True}, "Fig. 3: the test images of all clients"),
        metric=Fact({"global_test_accuracy"}, "Fig. 3"),
        methods=CURVES,
    ),
    ("fedtsp", "Fig. 4"): _fedtsp(
        data__root=TWO_SETS,
        model__group=Fact({"htfe9", "htfe3"}, "Fig. 3: HtFE9; Fig. 4: HtFE3, in the same table"),
        evaluation__top_k=Fact({5}, "Fig. 4"),
        metric=Fact({"global_test_accuracy", "local_accuracy"}, "top-5 stands beside them"),
        methods=CURVES,
    ),
    ("fedtsp", "Fig. 5 left"): _fedtsp(
        **TEN,
        model__group=HTFE3,
        text__style__name=tsp({"fine", "long", "short", "handcrafted"}, "Fig. 5 left"),
        text__encoder__name=BOTH,
        model__feature_dim=WIDE,
        methods=Fact({"fedtsp"}, "Fig. 5 left"),
    ),
    ("fedtsp", "Fig. 5 right"): _fedtsp(
        **TEN,
        local_epochs=Fact({1, 5, 10, 20}, "Fig. 5 right"),
        data__partition__alpha=SMALL,
        methods=Fact({"fedtsp", *BASELINES}, "Fig. 5 right"),
    ),
    ("fedtsp", "Fig. 6"): _fedtsp(
        data__root=TWO_SETS, model__group=HTFE3, metric=OWN, methods=CURVES
    ),
    ("fedtsp", "Fig. 7"): _fedtsp(
        algorithm__lambda=tsp(set(map(float, range(11))), "Fig. 7: 1 to 10; 0 is Local"),
        text__encoder__name=BOTH,
        model__feature_dim=WIDE,
        methods=Fact({"fedtsp"}, "Fig. 7"),
    ),
    ("fedtsp", "Fig. 8"): _fedtsp(
        algorithm__prompt_length=tsp({0, 1, 5, 10, 20, 30}, "Fig. 8 left; 0 is frozen text"),
        algorithm__server_epochs=tsp({0, 1, 5, 10, 20, 30, 40}, "Fig. 8 right; 0 is ours"),
        text__encoder__name=BOTH,
        model__feature_dim=WIDE,
        methods=Fact({"fedtsp"}, "Fig. 8"),
    ),
    ("fedtsp", "Supplement F"): _fedtsp(
        data__root=TWO_SETS,
        data__partition__alpha=ALPHAS,
        algorithm__align=tsp({"cosine", "l2"}, "supplement F"),
        methods=Fact({"fedtsp"}, "supplement F, Table 3"),
    ),
    ("fedtsp", "Supplement G"): _fedtsp(
        **TEN,
        data__partition__alpha=ALPHAS,
        wire__up_bits=Fact({32, 16, 8, 4, 2}, "supplement G, Table 4"),
        methods=Fact({"fedtsp"}, "supplement G"),
    ),
    ("fedtsp", "Supplement H.1"): _fedtsp(
        **TEN,
        rounds=Fact({200}, "supplement H.1: 100 and 100"),
        data__partition__alpha=Fact({0.1, 0.5}, "supplement H.1"),
        metric=OWN,
        methods=MOST,
    ),
    ("fedtsp", "Supplement H.2"): _fedtsp(
        **TEN,
        rounds=Fact({150}, "supplement H.2: 50 and 100"),
        data__partition__name=Fact({"class_groups"}, "supplement H.2: 80 and 20 classes"),
        data__partition__alpha=Fact({None}, "not stated; within groups"),
        data__partition__variant=Fact({None}, "within groups"),
        join__clients=Fact({4}, "supplement H.2"),
        join__round=Fact({51}, "supplement H.2"),
        metric=Fact({"new_accuracy"}, "supplement H.2"),
        methods=MOST,
    ),
    ("fedtsp", "Supplement I.1"): _fedtsp(
        metric=OWN, methods=Fact({"fedtsp"}, "supplement I.1: CIFAR-100, Dir(0.5), HtFE9")
    ),
    ("fedtsp", "Supplement I.2"): _fedtsp(
        **TEN,
        rounds=Fact({200}, "official code"),
        algorithm__tau=tsp({0.0498}, "official code: logit_scale 3.0"),
        algorithm__learn_tau=tsp({False}, "official code: logit_scale is fixed here"),
        data__partition__alpha=Fact({1.0}, "supplement I.2"),
        text__encoder__name=BOTH,
        model__feature_dim=WIDE,
        metric=Fact({"retrieval_top1"}, "supplement I.2"),
        methods=Fact({"fedtsp"}, "supplement I.2"),
    ),
    ("fedtsp", "Supplement K"): _fedtsp(metric=OWN, methods=Fact({"fedtsp"}, "supplement K")),
    ("dp2fl", "Table 1"): _dp2fl(
        local_epochs=Fact({5, 1}, "experimental setting; pFedMe: one epoch of five steps a batch"),
        methods=Fact({"dp2fl", "maple_local", "maple_fedprox", "maple_pfedme"}, "Table 1"),
    ),
    ("dp2fl", "Table 2"): _dp2fl(),
    ("dp2fl", "Table 3"): _dp2fl(**JOINS),
    ("dp2fl", "Table 4"): _dp2fl(**JOINS, rounds=Fact({11}, "Table 4: one more round")),
}
"""By paper and item."""
NO_RUN = {("fedtsp", "Cost")}
"""Items without a run at scale printed."""

NUMBERS: Mapping[tuple[str, str], Mapping[str, Mapping[str, float]]] = {
    ("table", "fedtsp_table1"): {
        "fedtsp": {
            "CIFAR-10, Dir(0.1)": 87.34,
            "CIFAR-10, Dir(0.5)": 64.76,
            "CIFAR-10, Dir(1.0)": 58.62,
            "CIFAR-100, Dir(0.1)": 45.61,
            "CIFAR-100, Dir(0.5)": 26.92,
            "CIFAR-100, Dir(1.0)": 20.91,
            "Tiny-ImageNet, Dir(0.1)": 34.82,
        },
        **{
            row: {f"{name}, Dir(0.1)": number for name, number in zip(names, numbers, strict=True)}
            for names in [("CIFAR-10", "CIFAR-100", "Tiny-ImageNet")]
            for row, numbers in {
                "fedtsp_bert": (87.52, 46.08, 33.47),
                "fedproto": (85.81, 41.07, 31.52),
                "fedtgp": (85.73, 41.37, 31.16),
                "lg_fedavg": (84.53, 42.56, 32.30),
            }.items()
        },
    },
    ("table", "fedtsp_table3"): {"fedtsp": {"50": 43.13, "100": 40.94, "200": 35.82}},
    ("table", "fedtsp_table4"): {
        "local": {"CLIP": 23.47, "BERT": 23.47},
        "handcrafted_frozen": {"CLIP": 26.41, "BERT": 24.63},
        "llm_frozen": {"CLIP": 26.99, "BERT": 25.76},
        "handcrafted_trained": {"CLIP": 26.54, "BERT": 26.53},
        "full": {"CLIP": 27.34, "BERT": 27.01},
    },
    ("table", "fedtsp_table5"): {
        "fedtsp_global": {"Dir(0.1)": 37.98, "Dir(0.5)": 34.10, "Dir(1.0)": 34.38},
        "fedtsp_ft": {"Dir(0.1)": 62.30, "Dir(0.5)": 42.05, "Dir(1.0)": 38.30},
    },
    ("table", "fedtsp_l2"): {
        "l2": {
            "CIFAR-10, Dir(0.1)": 86.42,
            "CIFAR-10, Dir(0.5)": 62.60,
            "CIFAR-10, Dir(1.0)": 55.80,
            "CIFAR-100, Dir(0.1)": 44.60,
            "CIFAR-100, Dir(0.5)": 24.90,
            "CIFAR-100, Dir(1.0)": 18.98,
        },
        "fedtsp": {"CIFAR-10, Dir(0.1)": 87.34, "CIFAR-100, Dir(1.0)": 20.91},
    },
    ("table", "fedtsp_quantised"): {
        "fedtsp": {
            "2 bits, Dir(0.1)": 45.50,
            "2 bits, Dir(0.5)": 26.64,
            "2 bits, Dir(1.0)": 20.39,
            "32 bits, Dir(0.1)": 45.76,
            "32 bits, Dir(0.5)": 27.15,
            "32 bits, Dir(1.0)": 20.85,
        }
    },
    ("table", "dp2fl_table1"): {
        "maple_local": {"mean": 80.22},
        "maple_fedprox": {"mean": 81.90},
        "maple_pfedme": {"mean": 81.55},
        "dp2fl": {"mean": 82.13},
    },
    ("table", "dp2fl_table2"): {"dp2fl": {"mean": 81.80}},
    ("table", "dp2fl_table3"): {
        "init": {"mean": 64.72},
        "init_global": {"mean": 79.38},
        "global": {"mean": 81.34},
    },
    ("table", "dp2fl_table4"): {
        "init": {"mean": 81.42},
        "init_global": {"mean": 81.39},
        "global": {"mean": 82.02},
    },
}
"""Numbers that the papers print, by study, row and column."""


@pytest.mark.parametrize(("paper", "item"), FACTS, ids=" ".join)
def test_an_item_as_printed_has_the_papers_settings(paper, item):
    assert_as_printed(paper, item, FACTS[paper, item])


@pytest.mark.parametrize("paper", dict.fromkeys(paper for paper, _ in FACTS))
def test_every_item_of_a_paper_has_facts(paper):
    items = {(paper, item.item) for item in read_papers()[paper].items}
    assert items == {key for key in {*FACTS, *NO_RUN} if key[0] == paper}


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=" ".join)
def test_a_printed_number_stands_in_the_studys_file(kind, name):
    assert_numbers(kind, name, NUMBERS[kind, name])


@pytest.mark.parametrize(
    ("command", "key", "value"),
    [
        ("fedtsp_table1 --rows fedtsp algorithm.preset=paper", "algorithm.server_dir", "t2i"),
        ("fedtsp_table4 --rows full algorithm.preset=paper", "algorithm.init_order", "paper"),
        ("dp2fl_table1 algorithm.depth=9", "algorithm.depth", 9),
        (
            "dp2fl_table1 --rows dp2fl algorithm.gamma_mode=bounded",
            "algorithm.gamma_mode",
            "bounded",
        ),
    ],
)
def test_the_other_choice_is_one_command_away(command, key, value):
    asked = check_command(f"python -m fedray.table {command} --scale printed")
    assert {of_run(run.experiment, key) for run in asked} == {value}


def test_a_follow_up_asks_for_a_metric_that_the_runs_have():
    for name, paper in read_papers().items():
        for item in paper.items:
            for scale in ("laptop", "desktop", "paper", "printed"):
                commands = getattr(item, scale)
                asked = [text.rpartition("--metric ")[2] for text in commands if "--metric" in text]
                for metric in (metric for metric in asked if "_top" in metric):
                    [study] = [text for text in commands if "--out" in text]
                    runs = check_command(study)
                    measured = {
                        f"local_accuracy_top{run.experiment.evaluation.top_k}" for run in runs
                    }
                    assert measured == {metric}, (name, item.item, scale)
