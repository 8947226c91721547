"""What is run at both commits: methods, experiments, studies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Settings = Mapping[str, Any]


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


# --- methods -------------------------------------------------------------------------------------

PIXELS = words_of(
    """
    alignfed fedavg fedbabu fedbn fedconcat feddistill fedetf fedfa_anchors fedfa_augmentation
    fedgen fedgh fedkd fedlc fedmrl fednova fedpac fedpcl fedprox fedproto fedproto_global
    fedtgp fml lg_fedavg local moon pfedme scaffold
    """
)
PUBLIC = ("feddf", "fedmd")
TEXT = ("fedglcl", "fedglcl_fedprox", "fedglcl_l", "fedglcl_moon", "fedtsp", "fedtsp_global")
PROMPTS = words_of(
    """
    cocoop dp2fl dp_fpl fedclip fedmgp fedotp fedpgp fedpha fedtpg flexlora ivlp kgcoop
    local_prompts lora maple_fedavg maple_fedprox maple_local maple_pfedme pfedmma pfedmoap
    promptfl promptfl_fedprox promptfl_pfedme promptfolio vpt zero_shot
    """
)
METHODS = (*PIXELS, *PUBLIC, *TEXT, *PROMPTS)
NETWORKS = ("cnn2", "cnn3")
"""Networks without and with batch norm; prompts are around the small CLIP instead."""
STACKED = 2

SMALL: Settings = {
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 16,
    "lr": 0.05,
    "participation": 0.7,
    "report.select": "test",
    "keep.models": "last",
    "data.source": "digits",
    "data.clients": 4,
    "data.samples": 160,
    "data.partition": {"name": "dirichlet", "alpha": 0.5},
    "data.validation_fraction": 0.2,
}
"""Of each method: four clients, three a round."""
CHEAP: Settings = {
    "server_epochs": 1,
    "public_epochs": 1,
    "private_epochs": 1,
    "target_steps": 2,
    "inner_steps": 2,
    "length": 2,
    "cluster_rounds": 1,
    "blocks": 1,
}
"""Cheap values of hyper-parameters, for methods that have them."""
CHEAP_STACKED: Settings = {**CHEAP, "blocks": 0}
"""The blocks of MiniLM cannot be stacked."""


def method_settings(method: str, network: str) -> Settings:
    """Return the keys of a small experiment for a method."""
    keys: dict[str, Any] = {"name": method, "algorithm": method, **SMALL}
    if method in PROMPTS:
        return {**keys, "model.clip": "small", "data.image_size": 32, "data.samples": 80}
    keys |= {"model.group": network, "model.feature_dim": 16}
    if method in PUBLIC:
        keys["data.public"] = {"name": "share", "fraction": 0.2}
    if method in TEXT:
        keys |= {"model.feature_dim": 384, "text.encoder": "minilm", "text.descriptions": "digits"}
        keys["text.style"] = "plain"
    return keys


# --- experiments ---------------------------------------------------------------------------------

TINY: Settings = {
    "rounds": 2,
    "local_epochs": 1,
    "eval_every": 1,
    "workers": 2,
    "gpus": 0,
    "server_gpus": 0,
    "keep.models": "best",
}
"""Of every shipped experiment."""
FEW: Settings = {"data.samples": 300}
IMAGES: Settings = {
    **FEW,
    "data.source": "digits",
    "data.image_size": 16,
    "data.channels": 3,
    "data.split": None,
    "data.test": "local",
    "data.test_samples": None,
    "data.clients": 4,
    "batch_size": 16,
    "lr": 0.01,
}
"""In place of a paper's images: digits."""
ROOTS = ("cifar10", "cifar100", "caltech-101")
"""Folders that the papers' experiments name; they are there, and empty."""
SMALL_NETWORK: Settings = {"model.group": "cnn2", "model.feature_dim": 32, "model.projector": None}
TWO_NETWORKS: Settings = {**SMALL_NETWORK, "model.group": "digits"}
WORDS: Settings = {
    "model.feature_dim": 384,
    "model.projector": None,
    "text.encoder": "minilm",
    "text.descriptions": "digits",
    "text.names": None,
}
CLIP: Settings = {"model.clip": "small", "data.image_size": 32}

PLAIN = words_of(
    """
    fedavg_digits fedbn_digits feddf_digits fedfa_augmentation_digits fedglcl_digits fedmd_digits
    fedproto_digits fedtsp_digits fedtsp_global_digits local_digits
    """
)
PRIVATE = ("fedavg_digits_central_dp", "fedavg_digits_local_dp")
PROMPTED = words_of(
    """
    cocoop_clip dp_fpl_clip fedmgp_clip fedpha_clip flexlora_clip ivlp_clip kgcoop_clip
    lora_clip pfedmma_clip pfedmoap_clip promptfl_clip vpt_clip
    """
)
EXPERIMENTS: Mapping[str, Settings] = {
    **{name: {} for name in PLAIN},
    **{name: {"data.samples": 60} for name in ("fedavg_shapes", "fedglcl_shapes")},
    **{name: {"data.clients": 30} for name in PRIVATE},
    **{name: {"data.samples": 120, "data.clients": 3} for name in PROMPTED},
    "dp2fl_clip": {},
    "alignfed_cifar10_paper": {**IMAGES, **TWO_NETWORKS},
    "fedavg_personal_cifar100_paper": {**IMAGES, **SMALL_NETWORK},
    "fedconcat_cifar100_paper": {**IMAGES, **SMALL_NETWORK, "algorithm.cluster_rounds": 1},
    "fedgen_cifar10_paper": {**IMAGES, **TWO_NETWORKS},
    "fedglcl_cifar100_longtail_paper": {**IMAGES, **WORDS, "model.group": "cnn2"},
    "fedkd_cifar10_paper": {**IMAGES, **TWO_NETWORKS},
    "fedmrl_cifar10_paper": {**IMAGES, **TWO_NETWORKS, "algorithm.small_dim": 16},
    "fedpcl_cifar100_paper": {**IMAGES, **TWO_NETWORKS},
    "fedtgp_cifar10_paper": {**IMAGES, **TWO_NETWORKS},
    "fedtsp_cifar100_crossdevice_paper": {**IMAGES, **WORDS, "model.group": "digits"},
    "moon_cifar100_paper": {**IMAGES, **SMALL_NETWORK},
    "fedotp_paper": {**IMAGES, **CLIP},
    "maple_pfedme_caltech101_paper": {**IMAGES, **CLIP, "data.samples": None},
}
"""Forty shipped experiments, with what makes them small or stands for data that are not here."""
ON_RAY = [
    "fedavg_digits",
    "fedbn_digits",
    "feddf_digits",
    "fedglcl_digits",
    "fedproto_digits",
    "fedtsp_digits",
    "fedavg_shapes",
    "fedavg_digits_central_dp",
    "dp2fl_clip",
    "fedmgp_clip",
    "fedgen_cifar10_paper",
    "moon_cifar100_paper",
]
"""Experiments that also run on Ray with two workers, are killed after a round, and resumed."""

# --- studies -------------------------------------------------------------------------------------

BASE = """\
name: tiny
algorithm: fedproto
rounds: 3
local_epochs: 1
batch_size: 16
lr: 0.05
workers: 1
data: {clients: 3, samples: 240, partition: {name: dirichlet, alpha: 1.0}}
model: {group: mlp, feature_dim: 16}
"""
STUDIES: Mapping[str, str] = {
    "sweep seeds": """\
answers: nothing
space: {lr: {grid: [0.01, 0.1, 0.5]}, algorithm.lambda: {grid: [0, 10]}}
report: {seeds: [0, 1, 2, 3]}
scales: {laptop: {experiment: tiny.yaml}}
""",
    "sweep random": """\
answers: nothing
space: {algorithm.lambda: {loguniform: [0.1, 10]}, lr: {uniform: [0.01, 0.5]}}
tuning: {search: random, configurations: 5}
scales: {laptop: {experiment: tiny.yaml}}
""",
    "sweep optuna": """\
answers: nothing
space: {algorithm.lambda: {loguniform: [0.1, 10]}, lr: {uniform: [0.01, 0.5]}}
tuning: {search: optuna, configurations: 12}
scales: {laptop: {experiment: tiny.yaml, max_concurrent: 1}}
""",
    "table tuned": """\
answers: nothing
experiment: tiny.yaml
rows:
  fedproto: {space: {algorithm.lambda: {grid: [0.1, 1]}}}
  fedavg: {algorithm: fedavg}
  wild: {algorithm: fedavg, label: wild, set: {lr: 1000000.0}, space: {lr: null}}
baselines: [local]
columns:
  Dir(0.1): {data.partition.alpha: 0.1}
  Dir(5): {data.partition.alpha: 5.0}
space: {lr: {grid: [0.01, 0.1]}}
tuning: {configurations: 4}
report: {seeds: [0, 1, 2]}
claims:
  - {claim: fedproto > local, on: each}
  - fedavg > local + 1
  - fedavg @ Dir(5) > fedavg @ Dir(0.1)
scales: {laptop: {}}
""",
}
"""Kind and name of a study -> its file. The row `wild` diverges."""
