"""What every method sends and what its clients keep, in numbers, by the gate's ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from prompting import prompted_model

C, D = 10, 16
HEAD = (D + 1) * C
MLP = 65 * 128 + HEAD
"""Parameters of an `mlp` with 16 features: the small model of distillation."""
FEW = {"algorithm.server_epochs": 1}
TARGETS = {"algorithm.target_steps": 1}
GENERATOR = {**FEW, "algorithm.hidden_dim": 24, "algorithm.noise_dim": 4}
CNN2 = {"model.group": "cnn2"}
CNN3 = {"model.group": "cnn3"}
PROJECTED = {**CNN3, "model.projector": 24}
HALF = {"participation": 0.5}
SHORT = {"algorithm.length": 4}
SHOTS = {
    "data.clients": 3,
    "data.samples": 400,
    "data.partition": {"name": "dominant_class", "shots": 4},
    "batch_size": 4,
}


class Sizes:
    """Sizes that what travels is made of, of a run and of those that take part in a round.

    Attributes:
        all: how many clients there are.
        n: how many take part.
        held: local classes, summed over the participants.
        weights: parameters of the server's model or of its shared part.
        buffers: numbers of its running statistics and counters.
        extra: numbers of what is averaged beside the model.
    """

    def __init__(self, run: Any, result: Any) -> None:
        data, server = run.assembly.data, run.servers[0]
        self.all, self.n = len(data.train), len(result.participants)
        classes = [len(np.unique(data.images.labels[data.train[i]])) for i in result.participants]
        self.held = sum(classes)
        self.run = run
        model = server.get("model", {})
        kinds = Counter({True: 0, False: 0})
        for name, tensor in model.items():
            statistic = "running" in name or name.endswith("num_batches_tracked")
            kinds[statistic] += tensor.numel()
        self.weights, self.buffers = kinds[False], kinds[True]
        self.extra = sum(tensor.numel() for tensor in server.get("extra", {}).values())

    @property
    def pixels(self) -> int:
        """Numbers of all validation images."""
        return sum(map(len, self.run.assembly.data.validation)) * 64

    @property
    def width(self) -> int:
        """The width of the CLIP's features."""
        return prompted_model(self.run.assembly).clip.dim


Expected = Callable[[Sizes], dict[str, int]]


def nothing(s: Sizes) -> dict[str, int]:
    return {}


def model_up(s: Sizes) -> dict[str, int]:
    return {"weights": s.n * (s.weights + s.extra), "statistics": s.n * (s.buffers + 1)}


def model_down(s: Sizes) -> dict[str, int]:
    return {"weights": s.n * (s.weights + s.extra), "statistics": s.n * s.buffers}


def prototypes_up(s: Sizes) -> dict[str, int]:
    return {"prototypes": s.held * D, "statistics": 2 * s.held}  # classes and counts


def prototypes_down(s: Sizes) -> dict[str, int]:
    return {"prototypes": s.n * C * D, "statistics": s.n * C}  # which are present


def head(s: Sizes) -> dict[str, int]:
    return {"weights": s.n * HEAD}


def head_and_number(s: Sizes) -> dict[str, int]:
    return {"weights": s.n * HEAD, "statistics": s.n}  # samples up, lambda_t down


def prompts_up(s: Sizes) -> dict[str, int]:
    return {"prompts": s.n * s.weights, "statistics": s.n}


def prompts_down(s: Sizes) -> dict[str, int]:
    return {"prompts": s.n * s.weights}


def both(*parts: Expected) -> Expected:
    """The sum of what the parts give."""
    return lambda s: sum((Counter(part(s)) for part in parts), Counter())


def counted(**numbers: Callable[[Sizes], int]) -> Expected:
    """Numbers of each kind."""
    return lambda s: {kind: number(s) for kind, number in numbers.items()}


class Row(NamedTuple):
    """What a method sends.

    Attributes:
        method: the method.
        up: numbers that the participants of a round upload, by kind.
        down: numbers that they download.
        changes: to the small experiment.
        first_up: what is uploaded before the first round.
        first_down: what is downloaded before the first round.
        keeps: names in the memory of a client that has trained.
    """

    method: str
    up: Expected
    down: Expected
    changes: dict[str, Any]
    first_up: Expected = nothing
    first_down: Expected = nothing
    keeps: tuple[str, ...] = ()


CLIP_ADAPTER = counted(weights=lambda s: s.n * 2 * (s.width**2 + s.width))
CONTEXT = counted(prompts=lambda s: s.n * 4 * 16)
ROWS = [
    Row("local", nothing, nothing, {}),
    Row("local_prompts", nothing, nothing, SHORT),
    Row("maple_local", nothing, nothing, {}),
    Row("zero_shot", nothing, nothing, {}),
    *(
        Row(method, prototypes_up, prototypes_down, changes)
        for method, changes in (("fedproto", HALF), ("fedtgp", FEW))
    ),
    Row(
        "fedpcl", prototypes_up,
        counted(prototypes=lambda s: s.n * (s.all + 1) * C * D, statistics=lambda s: s.n * C),
        HALF, keeps=("vectors", "present"),
    ),
    Row(
        "fedtsp", prototypes_up,
        counted(prototypes=lambda s: s.n * C * D, statistics=lambda s: s.n),  # tau
        {}, first_up=prototypes_up,
    ),
    Row(
        "alignfed", head_and_number, head_and_number, {**TARGETS, **HALF},
        first_down=counted(prototypes=lambda s: s.all * C * D), keeps=("targets",),
    ),
    Row("lg_fedavg", head_and_number, head, CNN3),
    Row(
        "fedgh", counted(prototypes=lambda s: s.held * D, statistics=lambda s: s.held), head,
        {**FEW, **HALF},
    ),
    Row(
        "fedgen", head_and_number,
        both(head, counted(
            weights=lambda s: s.n * ((4 + C) * 24 + 24 + 2 * 24 + 24 * D + D),
            statistics=lambda s: s.n * C,
        )),
        GENERATOR, first_up=counted(statistics=lambda s: s.all * C),  # images of each class
    ),
    Row(
        "feddistill", counted(logits=lambda s: s.held * C, statistics=lambda s: s.held),
        counted(logits=lambda s: s.n * C * C, statistics=lambda s: s.n * C),  # present
        {"participation": 0.25, "rounds": 3},
    ),
    *(
        Row(method, counted(weights=lambda s: s.n * MLP, statistics=lambda s: s.n),
            counted(weights=lambda s: s.n * MLP), changes)
        for method, changes in (
            ("fml", HALF), ("fedkd", {"algorithm.compress": False}),
        )
    ),
    Row("fedavg", model_up, model_down, CNN3),
    Row("fedprox", model_up, model_down, CNN2),
    Row("pfedme", model_up, model_down, {**CNN2, "algorithm.lambda": 1, "algorithm.eta": 0.5}),
    Row("fedlc", model_up, model_down, {**CNN2, "rounds": 3}),
    Row("moon", model_up, model_down, {**CNN3, **HALF}, keeps=("previous",)),
    Row("fedbn", model_up, model_down, CNN3),
    Row(
        "fedbabu", model_up, model_down, CNN3, first_down=counted(weights=lambda s: s.all * HEAD),
        keeps=("head",),
    ),
    Row(
        "scaffold", both(model_up, counted(weights=lambda s: s.n * s.weights)),
        counted(weights=lambda s: s.n * 2 * s.weights), {**CNN2, **HALF}, keeps=("control",),
    ),
    Row(
        "fedetf", model_up, model_down, {**CNN2, **HALF},
        first_down=counted(prototypes=lambda s: s.all * C * C), keeps=("simplex",),
    ),
    *(
        Row(
            method, model_up, model_down, {**PROJECTED, **HALF, **more},
            first_down=counted(text_embeddings=lambda s: s.all * C * D), keeps=("text",),
        )
        for method, more in (("fedglcl", {}), ("fedglcl_l", {"algorithm.blocks": 0}))
    ),
    Row(
        "fedfa_anchors", both(model_up, counted(prototypes=lambda s: s.n * C * D)),
        both(model_down, counted(prototypes=lambda s: s.n * C * D)), CNN2,
    ),
    Row(
        "fedfa_augmentation", model_up, model_down, {**CNN2, "algorithm.probability": 0},
        keeps=("running",),
    ),
    Row(
        "fedfa_augmentation",
        both(model_up, counted(statistics=lambda s: s.n * 2 * (16 + 32))), model_down,
        {**CNN2, "algorithm.probability": 1, "rounds": 1}, keeps=("running",),
    ),
    Row(
        "fedproto_global", both(model_up, prototypes_up), both(model_down, prototypes_down), CNN2
    ),
    Row(
        "fedtsp_global", both(model_up, prototypes_up),
        both(model_down, counted(prototypes=lambda s: s.n * C * D, statistics=lambda s: s.n)),
        {**CNN3, "algorithm.lambda": 1, "algorithm.tau": 0.1, "algorithm.init_order": "code"},
    ),
    Row(
        "fedpac",
        both(  # prototypes and h; classes and counts; n and V
            model_up, prototypes_up, head,
            counted(prototypes=lambda s: s.n * C * D, statistics=lambda s: s.n),
        ),
        both(model_down, head, prototypes_down), CNN3,
    ),
    *(
        Row("promptfl" + more, both(CONTEXT, counted(statistics=lambda s: s.n)), CONTEXT,
            {**SHORT, **changes})
        for more, changes in (
            ("", {}), ("_fedprox", {}), ("_pfedme", {"algorithm.lambda": 2, "algorithm.eta": 0.2})
        )
    ),
    Row("kgcoop", both(CONTEXT, counted(statistics=lambda s: s.n)), CONTEXT, {}),
    Row(
        "cocoop",  # a context, 24 -> 1 and 1 -> 16
        counted(prompts=lambda s: s.n * (4 * 16 + 25 + 32), statistics=lambda s: s.n),
        counted(prompts=lambda s: s.n * (4 * 16 + 25 + 32)), {},
    ),
    Row("fedotp", prompts_up, prompts_down, SHORT),
    Row("promptfolio", prompts_up, prompts_down, SHORT),
    Row("dp_fpl", prompts_up, prompts_down, SHORT),
    Row("fedpha", prompts_up, prompts_down, {**SHORT, "algorithm.local_lengths": [2, 8]}),
    Row("fedpgp", prompts_up, prompts_down, {**SHORT, **HALF, "algorithm.rank": 2}),
    Row("fedtpg", model_up, model_down, {}),
    Row("lora", model_up, model_down, {}),
    Row("flexlora", model_up, model_down, {"algorithm.ranks": [2]}),
    Row("vpt", prompts_up, prompts_down, SHORT),
    Row("ivlp", prompts_up, prompts_down, {}),
    Row("pfedmma", model_up, model_down, {}),
    Row("fedclip", both(CLIP_ADAPTER, counted(statistics=lambda s: s.n)), CLIP_ADAPTER, {}),
    Row(
        "maple_fedavg",
        counted(prompts=lambda s: s.n * (2 * 16 + (16 + 1) * 32), statistics=lambda s: s.n),
        counted(prompts=lambda s: s.n * (2 * 16 + (16 + 1) * 32)), {},
    ),
    Row(
        "dp2fl",
        counted(prompts=lambda s: s.n * (2 * 16 + (16 + 1) * 32),
                statistics=lambda s: s.n * (s.all + 1)),
        counted(prompts=lambda s: s.n * (2 * 16 + (16 + 1) * 32)), SHOTS,
        first_up=counted(images=lambda s: s.pixels, statistics=lambda s: s.pixels // 64),
        first_down=counted(images=lambda s: 3 * s.pixels, statistics=lambda s: 3 * s.pixels // 64),
        keeps=("validation",),
    ),
]  # fmt: skip


def non_zero(numbers: dict[str, int]) -> dict[str, int]:
    """The kinds of which there are some."""
    return {kind: number for kind, number in numbers.items() if number}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.method} {row.changes}")
def test_numbers_up_and_down_and_what_clients_keep(run, row):
    done = run(row.method, row.changes)
    first, everyone = done.results[0], Sizes(done, done.results[0])
    everyone.held = sum(done.assembly.data.train_histogram().astype(bool).sum(1))
    expected = [(first.up, row.first_up(everyone)), (first.down, row.first_down(everyone))]
    for result in done.results[1:]:
        sizes = Sizes(done, result)
        expected += [(result.up, row.up(sizes)), (result.down, row.down(sizes))]
    for found, numbers in expected:
        assert non_zero(found.params) == non_zero(numbers)
        for kind in numbers.keys() - {"statistics"}:
            assert found.bytes.get(kind, 0) == numbers[kind] * (1 if kind == "images" else 4)
    called = {client for result in done.results[1:] for client in result.participants}
    for client in called & done.memories.keys():
        assert set(done.memories[client]) == set(row.keeps)
    assert not row.keeps or called <= done.memories.keys()


GLOBAL = ("fedavg", "fedlc", "fedfa_anchors", "fedproto_global", "fedtsp_global")


@pytest.mark.parametrize("method", [*GLOBAL, "fedbn", "fedpac"])
def test_a_global_model_is_measured_and_leaves_nothing_with_the_clients(run, method):
    done = run(method, {**CNN3, "rounds": 1})
    assert ("global_accuracy" in done.results[-1].metrics) == (method in GLOBAL)
    assert any(done.models.values()) != (method in GLOBAL)


@pytest.mark.parametrize(
    ("method", "shared", "own"),
    [
        ("fedotp", {"shared_context"}, {"local_context"}),
        ("promptfolio", {"shared_context"}, {"local_context"}),
        ("dp_fpl", {"shared_context"}, {"local_context"}),
        ("fedpha", {"shared_context"}, {"local_context"}),
        ("fedpgp", {"sigma"}, {"u", "v"}),
        ("local_prompts", set(), {"context"}),
        ("maple_local", set(), {"task.0", "data.0.weight", "data.0.bias"}),
    ],
)
def test_shared_prompts_move_and_own_ones_differ_between_clients(run, method, shared, own):
    done = run(method, {} if method == "maple_local" else SHORT)
    first, last = (done.servers[i].get("model", {}) for i in (0, -1))
    assert set(last) == shared
    assert not any(torch.equal(first[name], last[name]) for name in shared)
    assert all(set(model) == own for model in done.models.values())
    for one, other in combinations(done.models.values(), 2):
        assert not any(torch.equal(one[name], other[name]) for name in own)


@pytest.mark.parametrize("method", ["fedbabu", "fedpac", "fedglcl", "fedpcl", "fml"])
def test_heads_and_small_models_are_where_they_belong(run, method):
    done = run(method, {**PROJECTED, "rounds": 1} if method == "fedglcl" else CNN3)
    if method in ("fedpcl", "fml"):
        first = done.models[done.results[1].participants[0]]
        assert not any(name.startswith(("head", "auxiliary.")[method == "fml"]) for name in first)
    else:
        assert not any(name.startswith("head") for name in done.servers[-1]["model"])


def test_quantised_uploads_are_smaller_and_counted_as_such(run):
    exact, coarse = run("fedproto"), run("fedproto", {"wire.up_bits": 4})
    classes = Sizes(exact, exact.results[1]).held
    assert exact.results[1].up.bytes["prototypes"] == classes * D * 4
    assert coarse.results[1].up.params == exact.results[1].up.params
    low = coarse.results[1].up.bytes["prototypes"]
    assert low == classes * (D * 4 // 8 + 4)  # half a byte a number, one scale a vector
    assert coarse.results[1].down.bytes == exact.results[1].down.bytes
