"""What a payload's class may declare, and which uploads are refused."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
import torch
from rounds import step_of
from tensors import CPU
from torch import Tensor

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.base.errors import ClientError, UserError
from fedray.core import Algorithm, Fields, sent
from fedray.core.payload import join_payload, split_payload
from fedray.runtime.groups import GroupRunner

# --- declarations --------------------------------------------------------------------------------


class Parent(Algorithm):
    up: ClassVar[Any] = {"first": sent("weights", "one thing"), "second": sent("statistics")}


class Child(Parent):
    up: ClassVar[Any] = {"third": sent("statistics", "another", number=int)}


class OtherChild(Child):
    up: ClassVar[Any] = {"first": sent("weights", "something else"), "second": None}


class Mixed(type("Unchanged", (Parent,), {}), OtherChild):
    """A method of two bases, of which only the second declares something."""


def test_what_a_payload_reveals_is_composed_of_its_fields():
    assert Parent.up.reveals() == "one thing"
    assert Child.up.reveals() == "one thing; another"
    assert OtherChild.up.reveals() == "something else; another"
    assert [*OtherChild.up] == ["first", "third"]
    assert Mixed.up is OtherChild.up


# --- uploads -------------------------------------------------------------------------------------


@pytest.fixture
def cause(assemble, monkeypatch):
    """`cause(method, change)` runs a client's first step of a method and changes its upload.

    It returns the cause of the client's failure, or None.
    """

    def cause(method: str, change) -> str | None:
        changes = {"model.group": "cnn2"}
        if method in ("fedmgp", "dp2fl"):
            changes = {"data.validation_fraction": 0.2}
        runtime = GroupRunner(assemble(method, changes), CPU)
        algorithm, server = runtime.assembly.algorithm, runtime.assembly.server(CPU)
        down = algorithm.downlink(algorithm.init_server(server), [0], server)[0]
        honest = algorithm.client_update

        def update(client, state, down):
            upload, after = honest(client, state, down)
            return change(algorithm.up(**upload) if isinstance(upload, dict) else upload), after

        monkeypatch.setitem(vars(algorithm), "client_update", update)
        try:
            step_of(runtime, 0, None, down)
        except ClientError as error:
            return error.failure.cause
        return None

    return cause


def field(name: str, change) -> Any:
    """Return a function that changes one field of an upload."""
    return lambda upload: upload.replaced(**{name: change(getattr(upload, name))})


def first(change) -> Any:
    """Return a function that changes the first tensor of a mapping."""
    return lambda mapping: {**mapping, next(iter(mapping)): change(next(iter(mapping.values())))}


def entry(value: float) -> Any:
    """Return a function that sets the first entry of a tensor."""

    def changed(tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        copy.view(-1)[0] = value
        return copy

    return changed


def assert_found(cause: str | None, words: str | None) -> None:
    assert cause is None if words is None else words in (cause or "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda up: up, None),
        (lambda up: [up], "client_update uploads list, expected model, samples"),
        (lambda up: FedAvg.down(up.model), "client_update uploads model, expected model, samples"),
        (lambda up: {"model": up.model}, "samples"),
        (lambda up: {**vars(up), "luggage": 1}, "luggage"),
        (field("model", first(entry(float("nan")))), "holds a NaN or an infinity"),
        (field("model", lambda m: {**m, "w": CPU}), "model.w is of type device, expected a tensor"),
        (field("model", lambda m: torch.ones(1)), "model is float32 [1], expected a mapping"),
        (field("samples", float), "samples is of type float, expected a number of type int"),
        (field("samples", lambda n: True), "samples is of type bool, expected a number"),
    ],
)
def test_uploads_of_a_model(cause, change, words):
    assert_found(cause("fedavg", change), words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda up: up, None),
        (field("classes", Tensor.int), "PrototypeSharing.up.classes is int32 ["),
        (field("counts", lambda t: t[1:]), "PrototypeSharing.up.counts is int64 ["),
        (field("vectors", lambda t: t[:, 1:]), "PrototypeSharing.up.vectors is float32 ["),
        (field("vectors", entry(float("nan"))), "PrototypeSharing.up.vectors holds a NaN"),
    ],
)
def test_uploads_of_prototypes(cause, change, words):
    assert_found(cause("fedproto", change), words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (field("losses", lambda t: t[:-1]), "DP2FL.up.losses is float32 ["),
    ],
)
def test_uploads_of_prompts(cause, change, words):
    assert_found(cause("dp2fl", change), words)


Parcel = Fields(
    "Parcel",
    {
        "vectors": sent("prototypes", axes="n d"),
        "weights": sent("weights"),
        "samples": sent("statistics", number=int),
        "tau": sent("statistics", number=float),
    },
)


def test_a_payload_comes_back_from_a_file_with_its_types():
    before = Parcel(torch.randn(2, 3), {"fc.weight": torch.randn(2), "b": torch.ones(1)}, 12, 0.25)
    facts, tensors = split_payload(before)
    after = join_payload(json.loads(json.dumps(facts)), tensors, (FedAvg.up, Parcel))
    assert [*vars(Parcel(**dict(reversed(vars(before).items()))))] == [*Parcel]
    with pytest.raises(UserError, match="no Parcel any more"):
        join_payload(facts, tensors, (FedAvg.up,))
    assert torch.equal(after.vectors, before.vectors)
    assert {name: t.tolist() for name, t in after.weights.items()} == {
        name: t.tolist() for name, t in before.weights.items()
    }
    assert (after.samples, after.tau, type(after.samples)) == (12, 0.25, int)
