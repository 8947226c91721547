"""Scale `printed` of FedGLCL's and FedMGP's items, against what the papers say.

`FACTS` is written from the papers' text and the authors' code, not from the YAML; see
test_printed_facts.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest
from printed import (
    Fact,
    Facts,
    assert_as_printed,
    assert_commands,
    assert_numbers,
    of_run,
)

from fedray.cli.dry_run import check_command
from fedray.cli.papers import read_papers

pytestmark = pytest.mark.usefixtures("empty_data")
GLCL = ("fedglcl", "fedglcl_fedprox", "fedglcl_moon", "fedglcl_l")
ALIGN = "align"


def _with(settings: Facts, changes: Mapping[str, Fact]) -> Facts:
    """Return a paper's settings with an item's own ones; `__` stands for a dot."""
    return {**settings, **{key.replace("__", "."): fact for key, fact in changes.items()}}


def _methods(*names: str, place: str) -> dict[str, Fact]:
    return {"methods": Fact(set(names), place)}


glcl = partial(Fact, methods=GLCL)
CIFAR: Facts = {
    "lr": Fact({0.1}, "Sec. 5.1"),
    "optimizer.name": Fact({"sgd"}, "Sec. 5.1"),
    "optimizer.momentum": Fact({0.9}, "official code, office_fedglcl.py; open in the paper"),
    "optimizer.weight_decay": Fact({1e-5}, "official code; open in the paper"),
    "rounds": Fact({100}, "open in the paper; Table 15 has best rounds of 79 to 96"),
    "batch_size": Fact({64}, "Sec. 5.1"),
    "local_epochs": Fact({5}, "Sec. 5.1"),
    "eval_every": Fact({1}, "official code: each round"),
    "participation": Fact({1.0}, "Sec. 5.1: all clients"),
    "data.root": Fact({"cifar100"}, "Sec. 5.1"),
    "data.clients": Fact({10}, "Sec. 5.1"),
    "data.partition.name": Fact({"fedtsp_dirichlet"}, "appendix C.1: LDA"),
    "data.partition.alpha": Fact({0.5}, "Tables 3, 4, 9 to 11, 13, 14, 16; Fig. 4"),
    "data.partition.min_samples": Fact({10}, "MOON's routine; open in the paper"),
    "data.samples": Fact({None}, "Table 5: all images"),
    "data.test": Fact({"official"}, "appendix C.1"),
    "data.validation_fraction": Fact({None}, "appendix C.1: no validation images"),
    "data.imbalance": Fact({1.0}, "only in Table 14"),
    "model.group": Fact({"resnet50_small"}, "Sec. 5.1: ResNet-50"),
    "model.projector": Fact({2048}, "Table 8"),
    "model.feature_dim": Fact({640}, "Sec. 5.1: V = 640; Table 8"),
    "model.pretrained": Fact({None}, "Sec. 5.1: from scratch"),
    "text.encoder.name": glcl({ALIGN}, "official code; in the paper BERT with V = 640"),
    "text.style.name": glcl({"plain"}, "Sec. 3.2: a photo of a {class}"),
    "algorithm.tau": glcl({0.07}, "Sec. 5.1"),
    "algorithm.denominator": glcl({"all"}, "official code"),
    "algorithm.weights": glcl({"samples"}, "Eq. (1): n_k / n"),
    "seeds": Fact({(0, 1, 2)}, "Sec. 5.1: three trials"),
    "select": Fact({"test"}, "official code: the best round on the test"),
    "at": Fact({"best"}, "official code; Table 15 has best rounds"),
    "metric": Fact({"global_accuracy"}, "Sec. 5.1: the global model on the official test images"),
}
WITHIN = ("data.partition.alpha", "data.partition.min_samples")
"""Keys of a split inside a domain, which has one client."""
OFFICE: Facts = {
    **{key: fact for key, fact in CIFAR.items() if key not in WITHIN},
    "lr": Fact({1e-4}, "Sec. 5.1; official code: 0.01"),
    "rounds": Fact({300}, "official code: 299; open in the paper"),
    "batch_size": Fact({32}, "Sec. 5.1"),
    "data.root": Fact({"office_caltech10"}, "Table 1"),
    "data.clients": Fact({4}, "Sec. 5.1: a domain is a client"),
    "data.partition.name": Fact({"domains"}, "Sec. 5.1"),
    "data.split": Fact({"lists"}, "appendix C.1: 8:2; official code's lists"),
    "data.image_size": Fact({256}, "official code, office_fedglcl.py"),
    "model.group": Fact({"alexnet"}, "Sec. 5.1"),
    "model.projector": Fact({4096}, "appendix C.2: two linear layers"),
    "model.feature_dim": Fact({640, 4096}, "appendix C.2: baselines keep all layers"),
    "metric": Fact({"local_accuracy"}, "Table 1: the mean over domains"),
}
FASHION: Facts = {
    **CIFAR,
    "batch_size": Fact({256}, "Sec. 5.1"),
    "data.root": Fact({"fashion_mnist"}, "Sec. 5.1"),
    "model.group": Fact({"alexnet"}, "Sec. 5.1"),
    "model.projector": Fact({4096}, "appendix C.2"),
    "model.feature_dim": Fact({640, 4096}, "appendix C.2"),
    "data.partition.name": Fact({"fedtsp_dirichlet", "classes"}, "appendix C.1: LDA, sharding"),
    "data.partition.alpha": Fact({None, 0.3, 0.5, 1.0}, "Table 2"),
    "data.partition.min_samples": Fact({None, 10}, "MOON's routine"),
    "data.partition.classes_per_client": Fact({None, 2, 3}, "Table 2: C = 2, 3"),
    "data.partition.equal_sizes": Fact({None, True}, "appendix C.1: equal sizes"),
}
COMMON = ("fedglcl", "fedavg", "fedprox", "fednova", "scaffold", "moon", "fedproto_global")
SKEW = _methods(*COMMON, "fedlc", "fedconcat", place="baselines of label skew")
DOMAINS = _methods(*COMMON, "fedbn", "fedfa_augmentation", place="baselines of feature skew")
TWO = Fact({100, 1050}, "FedConcat: 50 and 1,000 rounds (C.2)")
ALPHAS = Fact({0.1, 0.5, 1.0}, "Table 2")


def _union(*settings: Facts) -> Facts:
    """Return the values of several data sets; facts that only some have are left out."""
    keys = set.intersection(*(set(facts) for facts in settings))
    return {
        key: settings[0][key]._replace(
            values=set().union(*(facts[key].values for facts in settings))
        )
        for key in settings[0]
        if key in keys
    }


DOMAINNET = _with(
    OFFICE,
    {
        "data__root": Fact({"domainnet"}, "Table 1"),
        "data__clients": Fact({6}, "Sec. 5.1: a domain is a client"),
    },
)
EVERYWHERE = _union(CIFAR, OFFICE, DOMAINNET)
PLUS = _methods("fedglcl_fedprox", "fedglcl_moon", place="Table 2, last rows")["methods"].values
NARROW = Fact({640}, "FedGLCL ends in V = 640; so do all on CIFAR-100 (Table 8)")

FEDGLCL: Mapping[str, Facts] = {
    "Fig. 1a": _with(
        _union(CIFAR, OFFICE),
        {
            "data__clients": Fact({1, 10, 4}, "Fig. 1a: centralised, two federated scenarios"),
            "data__partition__name": Fact({"fedtsp_dirichlet", "domains", "iid"}, "Fig. 1a"),
            "metric": Fact(
                {"global_accuracy", "local_accuracy_weighted"}, "Fig. 1a: all test images"
            ),
            **_methods("fedglcl", "fedavg", place="Fig. 1a"),
        },
    ),
    "Fig. 1b": _with(CIFAR, _methods("fedglcl", "fedavg", place="Fig. 1b")),
    "Fig. 1c": _with(CIFAR, _methods("fedglcl", "fedavg", place="Fig. 1c")),
    "Table 1, Office-Caltech-10": _with(OFFICE, DOMAINS),
    "Table 1, DomainNet": _with(DOMAINNET, DOMAINS),
    "Table 2, CIFAR-100": _with(CIFAR, {"data__partition__alpha": ALPHAS, "rounds": TWO, **SKEW}),
    "Table 2, Fashion-MNIST": _with(
        FASHION,
        {"rounds": TWO, "methods": Fact(SKEW["methods"].values | PLUS, "Table 2")},
    ),
    "+ FedProx, + MOON": _with(
        _union(CIFAR, FASHION),
        {
            "rounds": TWO,
            "data__partition__alpha": Fact({None, 0.1, 0.3, 0.5, 1.0}, "Table 2"),
            "methods": Fact(SKEW["methods"].values | PLUS, "Table 2"),
        },
    ),
    "Table 3": _with(
        CIFAR,
        {
            "data__clients": Fact({10, 20, 30, 100}, "Table 3"),
            "participation": Fact({1.0, 0.5, 0.1}, "Table 3"),
            "rounds": TWO,
            **SKEW,
        },
    ),
    "Section 5.4, Fig. 3": _with(
        EVERYWHERE,
        {
            "rounds": Fact({100, 300, 1050}, "Fig. 3"),
            "data__partition__alpha": Fact({0.1, 0.5, 1.0}, "Table 2"),
            "methods": Fact(SKEW["methods"].values | DOMAINS["methods"].values, "Fig. 3"),
        },
    ),
    "Fig. 4": _with(
        CIFAR,
        {
            "algorithm__tau": glcl({0.01, 0.07, 0.1, 0.5, 1.0}, "Fig. 4"),
            **_methods("fedglcl", place="Fig. 4"),
        },
    ),
    "Table 11": _with(CIFAR, {"model__group": Fact({"vgg11"}, "Table 11"), "rounds": TWO, **SKEW}),
    "Table 12": _with(OFFICE, {"model__group": Fact({"vgg11"}, "Table 12"), **DOMAINS}),
    "Table 14": _with(
        CIFAR, {"data__imbalance": Fact({10}, "appendix D.5"), "rounds": TWO, **SKEW}
    ),
    "Table 15": _with(CIFAR, {"data__partition__alpha": ALPHAS, "rounds": TWO, **SKEW}),
    "Table 16": _with(
        CIFAR, {"data__root": Fact({"tiny_imagenet"}, "Table 16"), "rounds": TWO, **SKEW}
    ),
    "Table 18": _with(
        OFFICE,
        {
            "model__pretrained": Fact({None, "AlexNet_Weights.IMAGENET1K_V1"}, "Table 18, Table 1"),
            "methods": Fact(DOMAINS["methods"].values | {"fedpcl"}, "Table 18"),
        },
    ),
    "Table 19": _with(
        OFFICE,
        {
            "lr": Fact({0.01}, "open in the paper; official code for Office"),
            "rounds": Fact({200}, "Table 19"),
            "local_epochs": Fact({1}, "Table 19"),
            "batch_size": Fact({8}, "open in the paper"),
            "data__root": Fact({"prostate_mri"}, "Table 19"),
            "data__clients": Fact({6}, "Table 19: a site is a client"),
            "data__split": Fact({None}, "8:2 by patient"),
            "model__group": Fact({"unet"}, "Table 19"),
            "model__projector": Fact({None}, "Table 19: pixels"),
            "model__feature_dim": NARROW,
            "text__style__name": glcl({"name"}, "Table 19: foreground, background"),
            "metric": Fact({"dice"}, "Table 19: the values look like Dice"),
            **_methods("fedglcl", "fedavg", "fedbn", place="Table 19"),
        },
    ),
}
FEDGLCL = {**FEDGLCL, "Table 17": FEDGLCL["Section 5.4, Fig. 3"]}
FEATURE_SKEW = _with(
    _union(OFFICE, DOMAINNET),
    {"model__feature_dim": NARROW, **_methods("fedglcl", place="Table 9")},
)
WIDTHS = Fact({640, 768, 1024, 512, 300}, "V is the encoder's width")
ENCODERS = {
    "model__feature_dim": WIDTHS,
    "text__encoder__name": glcl({ALIGN, "bert", "openclip", "vectors"}, "Table 13"),
    "text__style__name": glcl({"plain", "name"}, "Table 13: GloVe has words"),
}
VECTORS = {"text__encoder__name": glcl({ALIGN, "orthogonal", "random"}, "Table 10")}
STYLES = {"text__style__name": glcl({"plain", "name", "ensemble"}, "Table 9")}
TRAINED = {"algorithm__blocks": Fact({"all"}, "Sec. 5.5: the encoder learns", ("fedglcl_l",))}
WITH_FEDAVG = _methods("fedglcl", "fedavg", place="beside FedAvg of Table 2")
ONE = "fedray table fedglcl_{} --scale printed"
DOMAIN_ROWS = "fedray table fedglcl_domains --scale printed --rows {}"
TEXTS: Mapping[str, Mapping[str, Facts]] = {
    "Table 4": {
        ONE.format("table4"): _with(
            CIFAR, {**TRAINED, **_methods("fedglcl", "fedavg", "fedglcl_l", place="Table 4")}
        ),
        DOMAIN_ROWS.format("fedglcl,trained"): _with(
            FEATURE_SKEW, {**TRAINED, **_methods("fedglcl", "fedglcl_l", place="Table 4")}
        ),
    },
    "Table 9": {
        ONE.format("table9"): _with(CIFAR, {**STYLES, **WITH_FEDAVG}),
        DOMAIN_ROWS.format("fedglcl,name,ensemble"): _with(FEATURE_SKEW, STYLES),
    },
    "Table 10": {
        ONE.format("table10"): _with(
            CIFAR,
            {**VECTORS, "text__names": glcl({None, "imagenet100"}, "Table 10"), **WITH_FEDAVG},
        ),
        DOMAIN_ROWS.format(
            "fedglcl,names_of_domainnet,names_of_office,orthogonal,normal,uniform"
        ): (
            _with(
                FEATURE_SKEW,
                {
                    **VECTORS,
                    "text__names": Fact({None, "domainnet10", "office_caltech10"}, "swapped"),
                },
            )
        ),
    },
    "Table 13": {
        ONE.format("table13"): _with(CIFAR, {**ENCODERS, **WITH_FEDAVG}),
        DOMAIN_ROWS.format("fedglcl,bert,clip_resnet,clip_vit,glove"): _with(
            FEATURE_SKEW, ENCODERS
        ),
    },
}
"""Items whose domains stand in one table, by command."""

MGP = ("fedmgp",)
mgp = partial(Fact, methods=MGP)
PROMPTS = ("fedmgp", "promptfl", "fedotp", "fedtpg", "fedpgp", "promptfolio")
THREE = Fact({"caltech-101", "oxford_flowers", "dtd"}, "ablations: Caltech101, Flowers102, DTD")
NINE = {*THREE.values, "oxford_pets", "food-101", "ucf101", "stanford_cars", "fgvc_aircraft"}
BASE_TO_NOVEL: Facts = {
    "lr": Fact({0.001}, "appendix C.2"),
    "lr_schedule.name": Fact({"constant"}, "appendix C.2: single step, of factor 1 in the code"),
    "optimizer.name": Fact({"sgd"}, "appendix C.2"),
    "optimizer.momentum": Fact({0.9}, "official code: Dassl's default"),
    "optimizer.weight_decay": Fact({5e-4}, "official code: Dassl's default"),
    "rounds": Fact({10}, "Sec. 4.1"),
    "batch_size": Fact({8}, "Sec. 4.1"),
    "local_epochs": Fact({2}, "Sec. 4.1"),
    "participation": Fact({1.0}, "Sec. 4.1"),
    "data.root": THREE,
    "data.source.name": Fact({"coop"}, "Table 10: CoOp's splits"),
    "data.clients": Fact({10}, "Sec. 4.1"),
    "data.shots": Fact({16}, "Sec. 4.1"),
    "data.partition.name": Fact({"class_chunks"}, "Sec. 4.1: disjoint classes"),
    "data.novel": Fact({True}, "Sec. 4.1: base and novel halves"),
    "data.test": Fact({"official"}, "Table 10"),
    "data.validation_fraction": Fact({None}, "Table 10: no validation images"),
    "data.image_size": Fact({224}, "appendix C.2"),
    "data.resize": Fact({"bicubic"}, "appendix C.2"),
    "data.augment.name": Fact({"resized_crop"}, "appendix C.2: crops and flips"),
    "model.clip.name": Fact({"openclip"}, "appendix C.2"),
    "model.clip.model": Fact({"ViT-B-16-quickgelu"}, "appendix C.2: ViT-B/16"),
    "algorithm.groups": mgp({5}, "appendix C.2: G"),
    "algorithm.text_length": mgp({2}, "appendix C.2: l"),
    "algorithm.visual_length": mgp({2}, "appendix C.2: l"),
    "algorithm.selected": mgp({2}, "appendix C.2: s"),
    "algorithm.tau": mgp({1.0}, "appendix C.2"),
    "algorithm.diversity": mgp({1.0}, "appendix C.2: lambda"),
    "algorithm.sign": mgp({"attract"}, "Eq. (4)"),
    "algorithm.measure": mgp({"l1"}, "Table 16"),
    "algorithm.similarity": mgp({"sum"}, "Eq. (7)"),
    "algorithm.weights": mgp({"samples"}, "Eq. (9): n_c"),
    "algorithm.aggregation": mgp({"similarity"}, "Eq. (8)"),
    "algorithm.inference": mgp({"logits"}, "Table 15"),
    "algorithm.keep_visual": mgp({True}, "Algorithm 1"),
    "seeds": Fact({(0, 1, 2)}, "Sec. 4.1: three runs"),
    "at": Fact({"final"}, "after T rounds"),
    "metric": Fact({"accuracy_cm"}, "CM"),
    **_methods("fedmgp", place="ablations"),
}
SIX = {
    "algorithm.classes": Fact({"all"}, "Table 1: FedTPG as in its comparison", ("fedtpg",)),
    "algorithm.copies": Fact({2}, "Table 3: 24.8k parameters", ("fedpgp",)),
    "algorithm.length": Fact(
        {16}, "Table 3: 8.2k parameters", ("promptfl", "fedotp", "fedpgp", "promptfolio")
    ),
    **_methods(*PROMPTS, place="Table 1"),
}
SKEWED: Facts = _with(
    BASE_TO_NOVEL,
    {
        "rounds": Fact({100}, "appendix C.2"),
        "participation": Fact({0.1}, "appendix C.2"),
        "batch_size": Fact({32}, "appendix C.2"),
        "data__root": Fact({"cifar10", "cifar100"}, "Table 2"),
        "data__source__name": Fact({"parquet"}, "the files' layout; the images are the same"),
        "data__clients": Fact({100}, "appendix C.2"),
        "data__shots": Fact({None}, "Table 10: all images"),
        "data__novel": Fact({False}, "Table 2"),
        "data__partition__name": Fact({"fedtsp_dirichlet"}, "Table 2: Dirichlet"),
        "data__partition__alpha": Fact({0.5}, "appendix C.2"),
        "metric": Fact({"local_accuracy"}, "Table 2: every client's own test images"),
        **SIX,
    },
)
WITH_DOMAINS: Facts = _with(
    SKEWED,
    {
        "rounds": Fact({25}, "appendix C.2"),
        "participation": Fact({0.25}, "appendix C.2"),
        "local_epochs": Fact({1}, "appendix C.2"),
        "data__root": Fact({"office_caltech10"}, "Table 12"),
        "data__source__name": Fact({"domain_folder"}, "official code: FedBN's copy"),
        "data__split": Fact({"lists"}, "Table 10: 2,025 and 508 images, FedBN's lists"),
        "data__clients": Fact({20}, "appendix C.2: five a domain"),
        "data__partition__name": Fact({"domains"}, "appendix C.2"),
        "data__partition__alpha": Fact({0.3}, "appendix C.2"),
        "metric": Fact({"client_accuracy_domains"}, "Tables 11, 12: mean over a domain's clients"),
    },
)


def _ablation(**changes: Fact) -> Facts:
    return _with(BASE_TO_NOVEL, changes)


FEDMGP: Mapping[str, Facts] = {
    "Table 1": _ablation(data__root=Fact({*NINE, "sun397"}, "Table 1"), **SIX),
    "Table 2": SKEWED,
    "Table 4": _ablation(
        algorithm__text_length=Fact({2, 4, 8, 16}, "Table 4"),
        algorithm__visual_length=Fact({2, 4, 8, 16}, "Table 4"),
    ),
    "Table 5": _ablation(
        algorithm__groups=Fact({1, 2, 3, 4, 5}, "Table 5"),
        algorithm__selected=Fact({1, 2}, "Table 5: at most G"),
    ),
    "Table 6": _ablation(algorithm__selected=Fact({1, 2, 3, 4}, "Table 6")),
    "Table 7": _ablation(
        algorithm__text_length=Fact({0, 2}, "Table 7"),
        algorithm__visual_length=Fact({0, 2}, "Table 7"),
    ),
    "Table 8": _ablation(algorithm__diversity=Fact({0.0, 1.0, 2.0, 5.0, 10.0}, "Table 8")),
    "Fig. 2, Table 9": _ablation(data__shots=Fact({1, 2, 4, 8, 16}, "Table 9"), **SIX),
    "Table 11": _with(
        WITH_DOMAINS,
        {
            "data__root": Fact({"domainnet"}, "Table 11"),
            "data__clients": Fact({30}, "appendix C.2: five a domain"),
        },
    ),
    "Table 12": WITH_DOMAINS,
    "Table 13, Figs. 3, 4": _ablation(
        data__root=Fact({"oxford_pets", "caltech-101"}, "Table 13 (D.3); Figs. 3, 4")
    ),
    "Table 14": _ablation(algorithm__tau=Fact({0.1, 0.5, 0.8, 1.0, 2.0}, "Table 14")),
    "Table 15": _ablation(
        algorithm__inference=Fact({"logits", "max_logits", "features", "group"}, "Table 15"),
        algorithm__group=Fact({0, 1, 2, 3, 4}, "Table 15: single groups"),
    ),
    "Table 16": _ablation(algorithm__measure=Fact({"l1", "l2", "cos"}, "Table 16")),
    "Table 17": _ablation(
        algorithm__aggregation=Fact({"similarity", "first", "all"}, "Table 17"),
        data__root=Fact({*THREE.values, "oxford_pets", "food-101"}, "Table 17"),
    ),
    "App. F": _ablation(
        data__root=Fact({"caltech-101"}, "Figs. 3, 4"),
        algorithm__aggregation=Fact({"similarity", "random"}, "App. F: against chance"),
    ),
}
FACTS = {
    **{("fedglcl", item): facts for item, facts in FEDGLCL.items()},
    **{("fedmgp", item): facts for item, facts in FEDMGP.items()},
}
COUNTED = {("fedmgp", "Table 3"), ("fedmgp", "Table 10")}
"""Items that count parameters, and classes and images."""

NUMBERS: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "fedglcl_plus": {"fedglcl_fedprox": {"Dir(0.1)": 68.95, "Dir(0.5)": 74.02, "Dir(1.0)": 75.15}},
    "fedglcl_table2": {
        "fedavg": dict(
            zip(
                ("two classes", "three classes", "Dir(0.3)", "Dir(0.5)", "Dir(1.0)"),
                (42.69, 74.50, 89.46, 92.35, 92.65),
                strict=True,
            )
        ),
        "fedglcl": dict(
            zip(
                ("two classes", "three classes", "Dir(0.3)", "Dir(0.5)", "Dir(1.0)"),
                (56.63, 84.47, 93.04, 93.82, 93.98),
                strict=True,
            )
        ),
    },
    "fedglcl_table10": {
        row: {"CIFAR-100": number}
        for row, number in {"proxy": 72.80, "orthogonal": 67.58, "uniform": 38.99}.items()
    },
    "fedglcl_table16": {
        row: {"Tiny-ImageNet": number}
        for row, number in {
            "fedglcl": 51.05,
            "fedavg": 47.54,
            "fedprox": 46.61,
            "moon": 48.97,
        }.items()
    },
    "fedglcl_table18": {"fedpcl": {"pre-trained": 72.46}},
    "fedglcl_domains": {"fedglcl": {"Office-Caltech-10": 77.35, "DomainNet": 76.54}},
    "fedmgp_table17": {"dam": {"mean": 88.34}, "fam": {"mean": 87.73}, "cam": {"mean": 85.43}},
    "fedmgp_table8": {"l0": {"mean": 83.63}},
}
"""Numbers that the papers print, by table, row and column."""


@pytest.mark.parametrize(("paper", "item"), FACTS)
def test_an_item_as_printed_has_the_papers_settings(paper, item):
    assert_as_printed(paper, item, FACTS[paper, item])


@pytest.mark.parametrize(
    ("item", "command"), [(item, command) for item, facts in TEXTS.items() for command in facts]
)
def test_a_command_as_printed_has_the_papers_settings(item, command):
    assert_commands([command], TEXTS[item][command])
    [found] = [one for one in read_papers()["fedglcl"].items if one.item == item]
    assert f"python -m fedray.{command.removeprefix('fedray ')}" in found.printed


def test_every_item_of_both_papers_has_facts():
    items = {
        (name, one.item) for name in ("fedglcl", "fedmgp") for one in read_papers()[name].items
    }
    assert items == {*FACTS, *COUNTED, *(("fedglcl", item) for item in TEXTS)}


def test_one_trained_model_is_tested_with_each_group():
    [found] = [one for one in read_papers()["fedmgp"].items if one.item == "Table 15"]
    [retest] = [command for command in found.printed if "retest" in command]
    for group in range(5):
        assert f"algorithm.inference=group algorithm.group={group}" in retest


@pytest.mark.parametrize("name", NUMBERS)
def test_a_printed_number_stands_in_the_tables_file(name):
    assert_numbers("table", name, NUMBERS[name])


@pytest.mark.parametrize(
    ("command", "key", "value"),
    [
        (
            "fedglcl_table1 --rows fedglcl algorithm.denominator=negatives",
            "denominator",
            "negatives",
        ),
        ("fedglcl_table1 --rows fedglcl algorithm.weights=uniform", "weights", "uniform"),
        ("fedmgp_table1 --rows fedmgp algorithm.preset=paper", "inference", "prob"),
        ("fedmgp_table1 --rows fedmgp algorithm.preset=official", "keep_visual", False),
        ("fedmgp_table1 --rows fedmgp algorithm.sign=repel", "sign", "repel"),
    ],
)
def test_the_other_choice_is_one_command_away(command, key, value):
    asked = check_command(f"python -m fedray.table {command} --scale printed")
    assert {of_run(run.experiment, f"algorithm.{key}") for run in asked} == {value}
