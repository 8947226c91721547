"""What a payload's class may declare, and which uploads are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from rounds import step_of
from tensors import CPU
from torch import Tensor

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.prototypes.class_prototypes import PrototypeSharing
from fedray.core import Algorithm, BadPayload, Payload, sent
from fedray.core.payload import NotFinitePayload, join_payload, split_payload
from fedray.errors import ClientError, UserError
from fedray.runtime.groups import GroupRunner


@pytest.fixture(autouse=True)
def no_traces(monkeypatch):
    """Forget the payloads that a test defines."""
    monkeypatch.setattr(Payload, "types", dict(Payload.types))


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
    assert [*OtherChild.up.declared] == ["first", "third"]
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

        monkeypatch.setattr(algorithm, "client_update", update)
        try:
            step_of(runtime, 0, None, down)
        except ClientError as error:
            return error.failure.cause
        return None

    return cause


def field(name: str, change) -> Any:
    """Return a function that changes one field of an upload."""
    return lambda upload: replace(upload, **{name: change(getattr(upload, name))})


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
        (lambda up: [up], "list cannot travel, expected FedAvg.up"),
        (lambda up: FedAvg.down(up.model), "FedAvg.down cannot travel"),
        (lambda up: {"model": up.model}, "samples"),
        (lambda up: {**vars(up), "luggage": 1}, "luggage"),
        (field("model", first(lambda t: t[:1])), "FedAvg.up.model."),
        (field("model", first(Tensor.double)), "is float64 ["),
        (field("model", first(Tensor.to_sparse)), "is a tensor of another kind"),
        (field("model", first(entry(float("nan")))), "holds a NaN or an infinity"),
        (field("model", first(lambda t: {"inner": t})), "is a dict, expected a tensor"),
        (field("model", lambda m: {**m, "w": CPU}), "model.w is a device, expected a tensor"),
        (
            field("model", lambda m: {**m, "w": torch.ones(1)}),
            "model has an unexpected entry 'w'",
        ),
        (field("model", lambda m: dict(list(m.items())[1:])), "FedAvg.up.model lacks '"),
        (field("model", lambda m: torch.ones(1)), "is a Tensor, expected a mapping of tensors"),
        (field("samples", lambda n: 0), "FedAvg.up.samples holds 0, expected 1 to "),
        (field("samples", lambda n: n + 1), "FedAvg.up.samples holds "),
        (field("samples", float), "FedAvg.up.samples is a float, expected an int"),
        (field("samples", lambda n: True), "FedAvg.up.samples is a bool, expected an int"),
    ],
)
def test_uploads_of_a_model(cause, change, words):
    assert_found(cause("fedavg", change), words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda up: up, None),
        (field("classes", entry(-1)), "PrototypeSharing.up.classes holds -1, expected 0 to "),
        (field("classes", entry(10)), "PrototypeSharing.up.classes holds 10, expected 0 to 9"),
        (field("classes", lambda t: t[:1].repeat(len(t))), "classes holds a class twice"),
        (field("classes", Tensor.int), "PrototypeSharing.up.classes is int32 ["),
        (field("counts", entry(0)), "PrototypeSharing.up.counts holds 0, expected 1 to "),
        (field("counts", entry(10**6)), "PrototypeSharing.up.counts holds 1e+06, expected 1 to "),
        (field("vectors", lambda t: t[:, 1:]), "PrototypeSharing.up.vectors is float32 ["),
        (field("vectors", entry(float("nan"))), "PrototypeSharing.up.vectors holds a NaN"),
        (lambda up: PrototypeSharing.up(*(t[:0] for t in vars(up).values())), "classes is empty"),
    ],
)
def test_uploads_of_prototypes(cause, change, words):
    assert_found(cause("fedproto", change), words)


def transposed(mapping):
    """The first matrix of a mapping, or of the mapping in it, with rows and columns exchanged."""
    name = next(n for n, t in mapping.items() if not isinstance(t, Tensor) or t.dim() > 1)
    value = mapping[name]
    changed = value.transpose(0, 1) if isinstance(value, Tensor) else transposed(value)
    return {**mapping, name: changed}


@pytest.mark.parametrize(
    ("method", "change", "words"),
    [
        ("scaffold", field("change", transposed), "Scaffold.up.change.extractor"),
        ("scaffold", field("change", lambda m: {}), "Scaffold.up.change lacks '"),
        ("fednova", field("steps", lambda n: 0.0), "FedNova.up.steps holds 0, expected 1 to"),
        ("fedpac", field("head", transposed), "FedPAC.up.head.head.weight is float32 [16"),
        ("fedpac", field("variance", lambda v: -1.0), "FedPAC.up.variance holds -1"),
        (
            "fedkd",
            field("update", first(lambda t: {"whole": torch.ones(3)})),
            "FedKD.up.update.auxiliary",
        ),
        ("fedkd", field("update", transposed), "FedKD.up.update.auxiliary"),
        ("fedkd", field("update", lambda m: {}), "FedKD.up.update lacks 'auxiliary"),
        ("fedkd", field("update", first(lambda t: {})), "KeyError"),
        ("fedkd", field("samples", lambda n: 0), "FedKD.up.samples holds 0"),
        ("fedmgp", field("prompts", first(lambda t: t[:1])), "FedMGP.up.prompts.text is"),
        ("fedmgp", field("samples", lambda n: 10**6), "FedMGP.up.samples holds"),
        ("dp2fl", field("task", lambda t: t[:-1]), "DP2FL.up.task is float32 ["),
        ("dp2fl", field("data", lambda t: t[None]), "DP2FL.up.data is float32 ["),
        ("dp2fl", field("losses", lambda t: t[:-1]), "DP2FL.up.losses is float32 ["),
        *((name, lambda up: up, None) for name in ("scaffold", "fedpac", "fedkd", "fedmgp")),
    ],
)
def test_what_is_combined_with_the_servers_state_has_its_form(cause, method, change, words):
    assert_found(cause(method, change), words)


def test_a_bound_tells_what_is_not_finite_from_what_is_too_large():
    class Losses(Payload):
        losses = sent("statistics", axes="n")

    with pytest.raises(NotFinitePayload, match=r"Losses\.losses holds nan, expected 0 to 1"):
        Losses(torch.tensor([0.5, float("nan")])).require_within("losses", 0, 1)
    with pytest.raises(BadPayload, match=r"Losses\.losses holds 2, expected 0 to 1") as error:
        Losses(torch.tensor([0.5, 2.0])).require_within("losses", 0, 1)
    assert not isinstance(error.value, NotFinitePayload)


class Parcel(Payload):
    """A payload with a tensor, named tensors, an integer and a float."""

    vectors = sent("prototypes", axes="n d")
    weights = sent("weights")
    samples = sent("statistics", number=int)
    tau = sent("statistics", number=float)


def test_a_payload_comes_back_from_a_file_with_its_types(tmp_path, monkeypatch):
    before = Parcel(torch.randn(2, 3), {"fc.weight": torch.randn(2), "b": torch.ones(1)}, 12, 0.25)
    split = split_payload(before)
    after = join_payload(*split, tmp_path)
    assert type(after) is Parcel
    assert torch.equal(after.vectors, before.vectors)
    assert {name: t.tolist() for name, t in after.weights.items()} == {
        name: t.tolist() for name, t in before.weights.items()
    }
    assert (after.samples, after.tau, type(after.samples)) == (12, 0.25, int)
    monkeypatch.delitem(Payload.types, Parcel.full_name())
    with pytest.raises(UserError, match=r"holds a payload of type \S+Parcel, which this version"):
        join_payload(*split, tmp_path)
