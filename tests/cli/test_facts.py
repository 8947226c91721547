"""Scale `printed` against the papers' texts and the authors' code.

A fact is the set of all values that the runs of a paper's main table have at a key, with the place
that says so. A key of a method is a fact about the paper's own method.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedray.cli.dry_run import check_command, plan_of_command
from fedray.config import Component

pytestmark = pytest.mark.usefixtures("empty_data")
FEDTSP = {
    "lr": ({0.01}, "official code, scripts; open in the paper"),
    "optimizer.name": ({"sgd"}, "official code, scripts; open in the paper"),
    "optimizer.momentum": ({0.0}, "official code, scripts; open in the paper"),
    "rounds": ({300}, "Sec. 4.1"),
    "batch_size": ({100}, "Sec. 4.1"),
    "local_epochs": ({5}, "Sec. 4.1"),
    "data.clients": ({20}, "Sec. 4.1"),
    "participation": ({1.0}, "Sec. 4.1: all clients"),
    "eval_every": ({1}, "Sec. 4.1: accuracy in each round"),
    "data.root": ({"cifar100"}, "Sec. 4"),
    "data.partition.name": ({"fedtsp_dirichlet"}, "Sec. 4.1: Dirichlet"),
    "data.partition.alpha": ({0.5}, "Tables 4, Figs. 3, 4, 6"),
    "data.partition.variant": ({"official"}, "official code, dataset_utils.py"),
    "data.test": ({"local"}, "supplement C.1: images of both splits are merged"),
    "data.test_fraction": ({0.25}, "supplement C.1: 75 % to train, 25 % to test"),
    "data.validation_fraction": ({None}, "supplement C.1: no validation images"),
    "data.augment.name": ({"none"}, "official code; open in the paper"),
    "shuffle": ({False}, "official code: one order of images"),
    "drop_last": ({True}, "official code: the last batch is dropped"),
    "model.group": ({"htfe3"}, "Table 1"),
    "model.feature_dim": ({512, 768}, "Sec. 4.1: d = 512"),
    "finetune_epochs": ({0}, "Sec. 3.5: only in Table 5"),
    "text.encoder.name": ({"openclip", "bert"}, "Sec. 4.1"),
    "text.style.name": ({"fine"}, "Eq. (3)"),
    "algorithm.lambda": ({7.0}, "supplement C.4: cross-silo"),
    "algorithm.server_dir": ({"i2t"}, "official code, servertspv4.py"),
    "algorithm.proto_agg": ({"uniform"}, "official code, proto_aggregation"),
    "algorithm.learn_tau": ({True}, "official code, logit_scale"),
    "algorithm.init_order": ({"code"}, "official code: clients train first"),
    "algorithm.prompt_length": ({10}, "C.4: 1 for 10 classes, 10 for more (null)"),
    "algorithm.server_epochs": ({20}, "C.4: 1 for 10 classes, 20 for more (null)"),
    "seeds": ({(0, 1, 2)}, "supplement C.4: three runs"),
    "select": ({"test"}, "Sec. 4.1: the best round; official code: on the test"),
    "metric": ({"local_accuracy_weighted"}, "official code: correct of all images"),
}
DP2FL = {
    "lr": ({0.035}, "experimental setting"),
    "optimizer.name": ({"sgd"}, "experimental setting"),
    "rounds": ({10}, "experimental setting: R = 10"),
    "batch_size": ({4}, "experimental setting"),
    "local_epochs": ({5}, "experimental setting"),
    "data.clients": ({10}, "experimental setting: K = 10"),
    "participation": ({1.0}, "Algorithm 1"),
    "data.partition.name": ({"dominant_class"}, "data setting"),
    "data.partition.shots": ({16}, "data setting"),
    "data.partition.excluded": ({0.2}, "data setting: 20 % of the classes"),
    "data.partition.kept_share": ({0.25}, "data setting: 25 %, 75 % of one class"),
    "data.test": ({"official"}, "data setting"),
    "data.validation_fraction": ({None}, "Algorithm 1: the partition has validation images"),
    "model.clip.name": ({"openclip"}, "experimental setting"),
    "model.clip.model": ({"ViT-B-16-quickgelu"}, "experimental setting: ViT-B/16"),
    "algorithm.depth": ({1}, "after Eq. (3): prompts are inputs"),
    "algorithm.gamma_mode": ({"literal"}, "Eq. (14)"),
    "algorithm.alpha": ({1.2}, "experimental setting"),
    "algorithm.beta": ({0.2}, "experimental setting"),
    "at": ({"final"}, "after R rounds; no round is chosen"),
}
FEDGLCL = {
    "lr": ({0.1}, "Sec. 5.1"),
    "optimizer.name": ({"sgd"}, "Sec. 5.1"),
    "optimizer.momentum": ({0.9}, "official code, office_fedglcl.py; open in the paper"),
    "optimizer.weight_decay": ({1e-5}, "official code; open in the paper"),
    "rounds": ({100}, "open in the paper; Table 15 has best rounds of 79 to 96"),
    "batch_size": ({64}, "Sec. 5.1"),
    "local_epochs": ({5}, "Sec. 5.1"),
    "eval_every": ({1}, "official code: each round"),
    "participation": ({1.0}, "Sec. 5.1: all clients"),
    "data.root": ({"cifar100"}, "Sec. 5.1"),
    "data.clients": ({10}, "Sec. 5.1"),
    "data.partition.name": ({"fedtsp_dirichlet"}, "appendix C.1: LDA"),
    "data.partition.alpha": ({0.5}, "Tables 3, 4, 9 to 11, 13, 14, 16; Fig. 4"),
    "data.partition.min_samples": ({10}, "MOON's routine; open in the paper"),
    "data.samples": ({None}, "Table 5: all images"),
    "data.test": ({"official"}, "appendix C.1"),
    "data.validation_fraction": ({None}, "appendix C.1: no validation images"),
    "data.imbalance": ({1.0}, "only in Table 14"),
    "model.group": ({"resnet50_small"}, "Sec. 5.1: ResNet-50"),
    "model.projector": ({2048}, "Table 8"),
    "model.feature_dim": ({640}, "Sec. 5.1: V = 640; Table 8"),
    "model.pretrained": ({None}, "Sec. 5.1: from scratch"),
    "text.encoder.name": ({"align"}, "official code; in the paper BERT with V = 640"),
    "text.style.name": ({"plain"}, "Sec. 3.2: a photo of a {class}"),
    "algorithm.tau": ({0.07}, "Sec. 5.1"),
    "algorithm.denominator": ({"all"}, "official code"),
    "algorithm.weights": ({"samples"}, "Eq. (1): n_k / n"),
    "seeds": ({(0,)}, "one run; Table 17 alone has three trials"),
    "select": ({"test"}, "official code: the best round on the test"),
    "at": ({"best"}, "official code; Table 15 has best rounds"),
    "metric": ({"global_accuracy"}, "Sec. 5.1: the global model on the official test images"),
}
OFFICE = {
    "lr": ({1e-4}, "Sec. 5.1; official code: 0.01"),
    "rounds": ({300}, "official code: 299; open in the paper"),
    "batch_size": ({32}, "Sec. 5.1"),
    "data.root": ({"office_caltech10"}, "Table 1"),
    "seeds": ({(0, 1, 2)}, "Table 17: three trials of the methods of Table 1"),
    "data.clients": ({4}, "Sec. 5.1: a domain is a client"),
    "data.partition.name": ({"domains"}, "Sec. 5.1"),
    "data.split": ({"lists"}, "appendix C.1: 8:2; official code's lists"),
    "data.image_size": ({256}, "official code, office_fedglcl.py"),
    "model.group": ({"alexnet"}, "Sec. 5.1"),
    "model.projector": ({4096}, "appendix C.2: two linear layers"),
    "model.feature_dim": ({640}, "appendix C.2: baselines keep all layers"),
    "metric": ({"local_accuracy"}, "Table 1: the mean over domains"),
}
FEDMGP = {
    "lr": ({0.001}, "appendix C.2"),
    "lr_schedule.name": ({"constant"}, "appendix C.2: single step, of factor 1 in the code"),
    "optimizer.name": ({"sgd"}, "appendix C.2"),
    "optimizer.momentum": ({0.9}, "official code: Dassl's default"),
    "optimizer.weight_decay": ({5e-4}, "official code: Dassl's default"),
    "rounds": ({10}, "Sec. 4.1"),
    "batch_size": ({8}, "Sec. 4.1"),
    "local_epochs": ({2}, "Sec. 4.1"),
    "participation": ({1.0}, "Sec. 4.1"),
    "data.source.name": ({"coop"}, "Table 10: CoOp's splits"),
    "data.clients": ({10}, "Sec. 4.1"),
    "data.shots": ({16}, "Sec. 4.1"),
    "data.partition.name": ({"class_chunks"}, "Sec. 4.1: disjoint classes"),
    "data.novel": ({True}, "Sec. 4.1: base and novel halves"),
    "data.test": ({"official"}, "Table 10"),
    "data.validation_fraction": ({None}, "Table 10: no validation images"),
    "data.image_size": ({224}, "appendix C.2"),
    "data.resize": ({"bicubic"}, "appendix C.2"),
    "data.augment.name": ({"resized_crop"}, "appendix C.2: crops and flips"),
    "model.clip.name": ({"openclip"}, "appendix C.2"),
    "model.clip.model": ({"ViT-B-16-quickgelu"}, "appendix C.2: ViT-B/16"),
    "algorithm.groups": ({5}, "appendix C.2: G"),
    "algorithm.text_length": ({2}, "appendix C.2: l"),
    "algorithm.visual_length": ({2}, "appendix C.2: l"),
    "algorithm.selected": ({2}, "appendix C.2: s"),
    "algorithm.tau": ({0.1, 0.5, 0.8, 1.0, 2.0}, "appendix C.2"),
    "algorithm.diversity": ({1.0}, "appendix C.2: lambda"),
    "algorithm.sign": ({"attract"}, "Eq. (4)"),
    "algorithm.measure": ({"l1"}, "Table 16"),
    "algorithm.similarity": ({"sum"}, "Eq. (7)"),
    "algorithm.weights": ({"samples"}, "Eq. (9): n_c"),
    "algorithm.aggregation": ({"similarity"}, "Eq. (8)"),
    "algorithm.inference": ({"logits"}, "Table 15"),
    "algorithm.keep_visual": ({True}, "Algorithm 1"),
    "seeds": ({(0,)}, "open in the paper; the script of its code has SEED=0"),
    "at": ({"final"}, "after T rounds"),
    "metric": ({"accuracy_cm"}, "CM"),
}
TABLES = {
    "fedtsp_table4 --rows full": FEDTSP,
    "dp2fl_table1 --rows dp2fl": DP2FL,
    "fedglcl_table9 --rows plain": FEDGLCL,
    "fedglcl_table1 --rows fedglcl": FEDGLCL | OFFICE,
    "fedmgp_table14": FEDMGP,
}
OF_PLAN = {"seeds", "select", "at", "metric"}


def at(experiment, key):
    """Return the value at a key; the file name of a folder, None where a component lacks it."""
    value = experiment
    for part in key.split("."):
        chosen = value.tree() if isinstance(value, Component) else {}
        value = chosen.get(part) if chosen else getattr(value, part)
    return Path(value).name if key == "data.root" and value is not None else value


@pytest.mark.parametrize("table", TABLES)
def test_a_table_as_printed_has_the_papers_settings(table):
    command = f"python -m fedray.table {table} --scale printed"
    plan, runs = plan_of_command(command), [run.experiment for run in check_command(command)]
    of_plan = {
        "seeds": {tuple(plan.report.seeds)},
        "select": {plan.select},
        "at": {plan.at},
        "metric": {plan.metrics[0]},
    }
    own = [run for run in runs if run.algorithm.name == table.partition("_")[0]]
    wrong = {}
    for key, (values, place) in TABLES[table].items():
        of = own if key.startswith(("algorithm.", "text.")) else runs
        found = of_plan[key] if key in of_plan else {at(run, key) for run in of}
        if found != values:
            wrong[key] = f"{found}, not {values} ({place})"
    assert not wrong
