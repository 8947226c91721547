"""Stacked clients give the numbers of unstacked ones to 1e-5, and their own bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from small import assert_same, on_workers
from torch import Tensor

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.base.errors import ClientError, UserError
from fedray.config import Experiment
from fedray.core import Batch, ClientState, LocalContext, algorithms
from fedray.core.stacked import refusal, shared_steps
from fedray.core.sums import subtrees
from fedray.federation import Federation
from fedray.laws.conformance import small_experiment
from fedray.laws.traces import Trace, compare_traces, serial, trace
from fedray.models import ClassifierOutput
from fedray.runtime import stacked
from fedray.runtime.assembly import Assembly

CLOSE = 1e-5
MOMENTUM = ("optimizer", {"name": "sgd", "momentum": 0.9, "weight_decay": 1e-3})
TINY: dict[str, Any] = {
    "rounds": 5,
    "batch_size": 8,
    "participation": 0.75,
    "eval_every": 0,
    "data.clients": 5,
    "data.samples": 100,
    "data.partition": "dirichlet",
    "data.evolution": {"name": "none"},
    "model.group": "mlp",
    "model.feature_dim": 16,
    "finetune_epochs": 0,
}
"""Clients with unlike numbers of batches, the last of unlike sizes; four take part in a round."""
STACKABLE = sorted(method.name for method in algorithms.entries() if not refusal(method))


def experiment(method: str, *sets: tuple[str, Any]) -> Experiment:
    """Return a small experiment of a method."""
    made = dict(TINY)
    if "prompt_length" in algorithms.get(method).model_fields:
        made["algorithm.prompt_length"] = 0
    if algorithms.get(method).requires.prompts:
        made = {key: value for key, value in TINY.items() if not key.startswith("model")}
        made |= {"lr": 0.001, "rounds": 3, "data.clients": 3, "data.samples": 50}
    if method == "feddf":  # Adam's first step has the size of its rate, however small a gradient
        made["algorithm.server_lr"] = 1e-5
    if algorithms.get(method).requires.text:
        made["text.encoder"] = {"name": "orthogonal", "dim": 16}
    return small_experiment(method, [*made.items(), *sets])


def last(method: str, *sets: tuple[str, Any]) -> list[Trace]:
    """Return the trace of the last round of a small experiment."""
    return trace(Assembly(experiment(method, *sets)), serial)[-1:]


@pytest.fixture
def trained(monkeypatch) -> list[int]:
    """How many clients were trained together, each time."""
    together: list[int] = []
    train = stacked.train_stacked

    def count(*args: Any) -> Any:
        together.append(len(args[-1]))
        return train(*args)

    monkeypatch.setattr(stacked, "train_stacked", count)
    return together


@pytest.mark.parametrize("method", STACKABLE)
def test_a_method_that_stacks_has_the_numbers_of_each_client_by_itself(method, trained):
    alone = last(method, MOMENTUM)
    assert not trained
    together = last(method, MOMENTUM, ("stacked", 2))
    assert max(trained) == 2
    compare_traces(alone, together, CLOSE)
    absent, work = "absent", "metric work/images"
    assert alone[0].numbers[absent] == together[0].numbers[absent] == []
    assert alone[0].numbers.get(work) == together[0].numbers.get(work)


@pytest.mark.parametrize(
    "sets",
    [
        (),
        (("optimizer", "adam"), ("lr", 1e-3), ("local_epochs", 2)),
        (("clip_grad_norm", 0.5),),
        (("data.augment", "flip_rotate"),),
        (("drop_last", True), ("batch_size", 4)),
        (("model.projector", 8), ("model.feature_dim", 8), ("rounds", 3)),
        (("model.group", "cnn2"), ("rounds", 3)),
        (("local_epochs", 3), ("lr_schedule", {"name": "cosine"})),
    ],
    ids=["sgd", "adam", "clipped", "augmented", "drop_last", "batch_norm", "cnn", "schedule"],
)
def test_every_way_of_training_can_be_stacked(sets):
    compare_traces(last("fedavg", *sets), last("fedavg", *sets, ("stacked", 4)), CLOSE)


def test_what_clients_did_is_counted_as_by_themselves():
    def work(*sets: tuple[str, Any]) -> list[Any]:
        a = Assembly(experiment("moon", ("rounds", 3), *sets))
        cpu = torch.device("cpu")
        federation = Federation(a.algorithm, serial(a), a.gate, a.plan, a.server(cpu))
        return [(done.client_work, done.server_work) for done in federation.rounds()]

    assert work() == work(("stacked", 4))


def test_stacks_are_subtrees_of_the_additions():
    assert [*subtrees(range(10), 4)] == [range(2), range(2, 5), range(5, 7), range(7, 10)]
    assert [*subtrees(range(5, 10), 4)] == [range(5, 7), range(7, 10)]
    assert [*subtrees((3, 8), 4)] == [(3, 8)]
    assert [*subtrees((), 4)] == []


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([[8, 8, 5], [8, 8, 5], [8, 8], [9]], [(0, 3), (0, 3), (0, 2), (3, 4)]),
        # a client whose only batch is one larger does not join smaller clients
        ([[8, 9], [8, 8], [9], [8]], [(0, 2), (3, 4), (1, 2), (0, 1), (2, 3)]),
        ([[], []], []),
    ],
)
def test_whole_batches_are_computed_together_and_last_ones_by_size(sizes, expected):
    """Batches of 8; the first client of each step, and the one after the last."""
    steps = [*shared_steps(sizes, 8, 2, counts_steps=False)]
    assert steps == [(slice(*pair), epoch) for epoch in (0, 1) for pair in expected]


def test_clients_with_equal_numbers_of_steps_are_together_if_the_optimiser_counts_them():
    steps = [*shared_steps([[4, 4], [4]], 4, 2, counts_steps=True)]
    expected = [(0, 2), (0, 1)], [(0, 1), (1, 2), (0, 1)]
    assert steps == [(slice(*pair), n) for n, epoch in enumerate(expected) for pair in epoch]


BLOCKS = ("rounds=3", "data.clients=7", "model.group=mlp", "batch_size=16", "stacked=3")
PARTIAL = ("participation=0.8", "faults.drop=0.2")


@pytest.mark.ray
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "words",
    [
        ("algorithm=fedavg", *BLOCKS),
        ("algorithm=fedavg", *BLOCKS, *PARTIAL),
        ("algorithm=moon", *BLOCKS, "participation=0.6"),
        ("algorithm=local", *BLOCKS, "model.group=digits"),
    ],
    ids=["sums", "faults", "memory", "architectures"],
)
def test_workers_give_the_serial_numbers(small, pool, tmp_path, words, workers):
    on_workers(small.experiment(*words), tmp_path, pool, workers)
    assert_same(tmp_path, small.undisturbed(*words))


def test_an_experiment_that_stacks_has_another_identity(small):
    plain = small.experiment("algorithm=fedglcl", "model.group=mlp")
    assert "stacked" not in plain.reproducibility_key()
    assert plain.identity() != plain.model_copy(update={"stacked": 2}).identity()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("algorithm=scaffold",), "it has its own training loop"),
        (("algorithm=feddistill",), "it has its own training loop"),
        (("algorithm=fedotp", "model.clip=small", "data.image_size=32"), "has not been compared"),
        (("algorithm=fedavg", "precision=bfloat16"), "precision"),
    ],
)
def test_what_cannot_be_stacked_is_refused(small, words, reason):
    with pytest.raises(UserError, match=reason):
        small.experiment(*words, "stacked=4")


class Odd(FedAvg):
    """FedAvg whose loss a test changes."""

    name, stacks = "odd", True
    change: ClassVar[Any]

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        return type(self).change(super().loss(output, batch, local), local)


@pytest.fixture
def odd(monkeypatch):
    """Returns the last round of a method whose loss is changed, with stacked clients or without."""
    monkeypatch.setattr(algorithms, "_entries", {**algorithms._entries, "odd": Odd})

    def run(change: Callable[[Tensor, LocalContext], Tensor], count: int = 4) -> Trace:
        monkeypatch.setattr(Odd, "change", staticmethod(change), raising=False)
        return last("odd", ("rounds", 2), ("participation", 1.0), ("stacked", count))[0]

    return run


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda loss, local: loss + torch.rand(()), "randomness"),
        (lambda loss, local: loss * 2 if loss > 1 else loss, "data-dependent"),
        (lambda loss, local: loss * local.client.id, "local.client.id"),
        (lambda loss, local: loss + len(local.state.model), "local.state.model"),
    ],
    ids=["torch", "control flow", "client", "state"],
)
def test_a_loss_that_cannot_be_batched_is_refused(odd, change, reason):
    odd(change, 1)
    with pytest.raises(UserError, match=reason):
        odd(change)


def test_the_client_whose_loss_is_not_finite_is_named(odd):
    """The client with the fewest images, by its class counts, which a loss may read as a tensor."""

    def diverge(loss: Tensor, local: LocalContext) -> Tensor:
        return loss / (local.state.memory["images"] != fewest)

    begin, fewest = FedAvg.begin, 0

    def with_images(self, client, state, down):
        local = begin(self, client, state, down)
        images = torch.tensor(len(client.train))
        return replace(local, state=ClientState(local.state.model, {"images": images}))

    Odd.begin = with_images
    try:
        sizes = [len(index) for index in Assembly(experiment("fedavg")).data.train]
        fewest = min(sizes)
        named = rf"client {sizes.index(fewest)}, round 1, .*loss became inf"
        for stacked in (1, 4):
            with pytest.raises(ClientError, match=named):
                odd(diverge, stacked)
    finally:
        del Odd.begin


def test_the_client_whose_step_fails_is_named(odd, monkeypatch):
    finish = FedAvg.finish

    def break_(self, local, trained):
        if local.client.id == 1:
            raise ArithmeticError("client 1")
        return finish(self, local, trained)

    monkeypatch.setattr(Odd, "finish", break_, raising=False)
    with pytest.raises(ClientError, match=r"client 1, round 1, .* ArithmeticError: client 1"):
        odd(lambda loss, local: loss)


def test_a_loss_that_writes_into_the_download_is_refused(odd):
    def write(loss: Tensor, local: LocalContext) -> Tensor:
        local.down.model["head.bias"].add_(0)
        return loss

    with pytest.raises(ClientError, match=r"client 0, round 1, .* wrote into its download"):
        odd(write)


def test_a_loss_may_use_the_positions_of_a_batch(monkeypatch):
    class Weighed(FedAvg):
        name = "weighed"
        stacks = True

        def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
            return super().loss(output, batch, local) * (1 + batch.positions.float().mean() / 10)

    algorithms.names()
    monkeypatch.setattr(algorithms, "_entries", dict(algorithms._entries))
    algorithms.add(Weighed)
    alone, together = (last("weighed", ("rounds", 3), ("stacked", n)) for n in (1, 4))
    compare_traces(alone, together, CLOSE)
