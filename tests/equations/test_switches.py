"""A method without its own term is the method that it builds on; with the term it is another."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

PARTIAL = {"participation": 0.5, "rounds": 3}
THREE_ROUNDS = {"rounds": 3}
CNN2 = {"model.group": "cnn2"}
CNN3 = {"model.group": "cnn3"}
ALONE = {"data.clients": 1}
SHORT = {"length": 4}
SMALL_GENERATOR = {"server_epochs": 5, "hidden_dim": 24, "noise_dim": 4}
EXTRA = {"model.projector": 24, **CNN3}
ANCHORS_OFF = {"lambda": 0, "calibration_lr": 0}
MOMENTUM = {
    "batch_size": 8,
    "local_epochs": 2,
    "optimizer.momentum": 0.9,
    "drop_last": True,
}
ONE_CLUSTER = {"clusters": 1, "cluster_rounds": 3}


NOTHING: dict[str, Any] = {}
ROUNDED: dict[str, Any] = {"atol": 2e-5, "same_scores": False}
"""Equal but for the order of sums."""


class Switch(NamedTuple):
    """A method, and when it is another one.

    Attributes:
        method: the method.
        off: its hyper-parameters without its own term.
        base: the method that it then is.
        changes: to the experiments of both.
        on: hyper-parameters with which it is not `base`; None if `off` alone is looked at.
        differs_after: the first round after which the models are not those of `base`.
        base_keys: hyper-parameters of `base`.
        atol: how far weights may be apart; 0: bit for bit.
        same_scores: whether all accuracies are equal, too.
    """

    method: str
    off: dict[str, Any]
    base: str
    changes: dict[str, Any] = NOTHING
    on: dict[str, Any] | None = None
    differs_after: int = 1
    base_keys: dict[str, Any] = NOTHING
    atol: float = 0
    same_scores: bool = True


PERSONAL = [
    Switch(method, {**also, switch: 0}, base, PARTIAL, {**also, **on}, after)
    for method, switch, base, on, also, after in [
        ("fedproto", "lambda", "local", {"lambda": 1}, {}, 2),
        ("fedtgp", "lambda", "local", {"lambda": 1}, {"server_epochs": 2, "stale": False}, 2),
        ("fedtgp", "lambda", "local", {"lambda": 1}, {"server_epochs": 2, "stale": True}, 2),
        ("fedtsp", "lambda", "local", {"lambda": 1}, {}, 1),
        ("feddistill", "gamma", "local", {}, {}, 2),
        ("fedgen", "generated_weight", "lg_fedavg", {}, SMALL_GENERATOR, 1),
    ]
]
FIRST_ROUND = [
    Switch("fedproto", {"lambda": 5}, "local", {"rounds": 1}),
    Switch("feddistill", {"gamma": 5}, "local", {"rounds": 1}),
]
ONE_CLIENT = [
    Switch("fedgen", {"generated_weight": 0}, "local", ALONE, SMALL_GENERATOR),
    Switch("lg_fedavg", {}, "local", ALONE),
    Switch("promptfl", SHORT, "local_prompts", ALONE, base_keys=SHORT),
    Switch(
        "scaffold", {}, "fedavg", {**CNN2, **ALONE, **THREE_ROUNDS}, atol=1e-4, same_scores=False
    ),
    Switch("fedmgp", {"aggregation": "first"}, "fedmgp", ALONE),
]
AVERAGED = [
    Switch("fedprox", {"mu": 0}, "fedavg", {**CNN2, "lr": 0.1, **PARTIAL}, {"mu": 1}),
    Switch("fedlc", {"tau": 0}, "fedavg", CNN2, {}),
    Switch("fedfa_augmentation", {"probability": 0}, "fedavg", {**CNN2, **PARTIAL}, {}),
    Switch("fedproto_global", {"mu": 0}, "fedavg", {**CNN3, **PARTIAL}, {}, 2),
    Switch("moon", {"mu": 0}, "fedavg", CNN3, {}, 2),
    Switch(
        "fedtsp_global", {"lambda": 0}, "fedavg", {**CNN3, **PARTIAL, "finetune_epochs": 1},
        {"lambda": 1, "tau": 0.1},
    ),
    Switch("fedbn", {}, "fedavg", CNN2),
    Switch(
        "fedconcat", ONE_CLUSTER, "fedavg", {**CNN3, **PARTIAL, "optimizer.momentum": 0.9}
    ),
    Switch(
        "fednova", {}, "fedavg",
        {**CNN2, **THREE_ROUNDS, "data.partition": "iid", "data.samples": 320}, **ROUNDED,
    ),
    Switch("fml", {"alpha": 1, "beta": 1}, "local", CNN3, {}),
    Switch(
        "fml", {"alpha": 1, "beta": 1}, "fedavg", CNN3, {}, base_keys={"weights": "uniform"},
        same_scores=False,
    ),
    *(
        Switch("fedfa_anchors", ANCHORS_OFF, "fedavg", {**CNN2, **MOMENTUM},
               {**ANCHORS_OFF, one: 0.01})
        for one in ANCHORS_OFF
    ),
    *(
        Switch(method, {"mu": 0}, "fedglcl", EXTRA, {"mu": 1}, after)
        for method, after in (("fedglcl_fedprox", 1), ("fedglcl_moon", 2))
    ),
]  # fmt: skip
PROMPTED = [
    Switch("maple_fedprox", {"mu": 0}, "maple_fedavg", {}, {"mu": 10}),
    Switch(
        "promptfl_fedprox", {**SHORT, "mu": 0}, "promptfl", PARTIAL, {**SHORT, "mu": 5},
        base_keys=SHORT,
    ),
    Switch("promptfolio", {**SHORT, "theta": 0}, "promptfl", base_keys=SHORT, atol=1e-5),
    Switch("kgcoop", {"lambda": 0}, "promptfl", on={"lambda": 8},
           base_keys={**SHORT, "words": "a photo of a"}),
    Switch(  # one batch: theta = w - lr grad, w = theta
        "promptfl_pfedme", {**SHORT, "inner_steps": 1, "lambda": 4, "eta": 0.25}, "promptfl",
        {"batch_size": 1000}, base_keys={**SHORT, "weights": "uniform"}, **ROUNDED,
    ),
    Switch("pfedmoap", {**SHORT, "experts": 1}, "promptfl", base_keys=SHORT, same_scores=False),
    Switch(
        "fedmgp", {"groups": 1, "selected": 1, "diversity": 0}, "fedmgp",
        base_keys={"groups": 1, "selected": 1},
    ),
]  # fmt: skip


def keys(hyper_parameters):
    return {f"algorithm.{name}": value for name, value in hyper_parameters.items()}


def global_model(server):
    """The model that the clients average, under the names of its base's."""
    model = server["clusters"]["0"] if "clusters" in server else server.get("model", {})
    rename = {"shared_context": "context"}
    return {rename.get(n, n.removeprefix("auxiliary.")): tensor for n, tensor in model.items()}


def own_models(done):
    """Each client's tensors at the end: those of the global model, and its own."""
    shared = global_model(done.servers[-1])
    return {(k, n): t for k, own in done.models.items() for n, t in {**shared, **own}.items()}


def apart(done, plain, round_):
    """The largest difference of a run's weights from those of its base, after a round."""
    pairs = [
        (global_model(done.servers[round_])[n], tensor)
        for n, tensor in global_model(plain.servers[round_]).items()
    ]
    if round_ == len(plain.servers) - 1:
        theirs = {(k, n): t for k, own in plain.models.items() for n, t in own.items()}
        pairs += [(own_models(done)[place], tensor) for place, tensor in theirs.items()]
        assert pairs
    return max((float((a.double() - b.double()).abs().max()) for a, b in pairs), default=0.0)


def accuracies(done, names):
    """All clients' accuracies and the named metrics in every round."""
    return [(result.per_client, [result.metrics.get(n) for n in names]) for result in done.results]


@pytest.fixture(scope="module")
def bases() -> dict[str, Any]:
    """Runs of the bases, by base and changes."""
    return {}


@pytest.mark.parametrize(
    "switch",
    [*PERSONAL, *FIRST_ROUND, *ONE_CLIENT, *AVERAGED, *PROMPTED],
    ids=lambda each: f"{each.method} {each.off}",
)
def test_switched_off_it_is_its_base_and_switched_on_it_is_not(run, bases, switch):
    asked = switch.base, {**switch.changes, **keys(switch.base_keys)}
    plain = bases.get(repr(asked)) or bases.setdefault(repr(asked), run(*asked))
    off = run(switch.method, {**switch.changes, **keys(switch.off)})
    rounds = range(len(plain.servers))
    assert all(apart(off, plain, round_) <= switch.atol for round_ in rounds)
    if switch.same_scores:
        both = plain.results[-1].metrics.keys() & off.results[-1].metrics.keys()
        names = sorted(name for name in both if "accuracy" in name)
        assert accuracies(off, names) == accuracies(plain, names)
    if switch.on is not None:
        on = run(switch.method, {**switch.changes, **keys(switch.on)})
        assert apart(on, plain, rounds[-1]) > 1e-5
        if global_model(plain.servers[0]):
            alike = [apart(on, plain, round_) == 0 for round_ in rounds]
            assert alike == [round_ < switch.differs_after for round_ in rounds]
