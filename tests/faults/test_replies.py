"""A reply that is not what its method declares is the failure of its client and reaches nobody."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import small_runs
import torch
from small_runs import ROUND, VICTIM, outcome_of

from fedray.algorithms.averaging.fedavg import FedAvg, TrainedModel
from fedray.algorithms.prototypes.class_prototypes import LocalPrototypes
from fedray.algorithms.prototypes.fedproto import FedProto
from fedray.core import Client, ClientState, LocalContext, Trained, algorithms
from fedray.errors import ClientError
from fedray.runtime.assembly import Assembly
from fedray.runtime.conformance import Trace, compare_traces
from fedray.runtime.resolve import from_tree

NAN = float("nan")
Reply = Callable[[Client, Any, ClientState], Any]


def last_tensor(change: Callable[[torch.Tensor], Any]) -> Reply:
    """Change the last tensor of the weights."""

    def reply(client: Client, up: Any, after: ClientState) -> Any:
        name = list(up.weights)[-1]
        return replace(up, weights={**up.weights, name: change(up.weights[name])}), after

    return reply


def fields(**changes: Callable[[Any], Any]) -> Reply:
    """Change fields of the upload."""

    def reply(client: Client, up: Any, after: ClientState) -> Any:
        return replace(up, **{n: make(getattr(up, n)) for n, make in changes.items()}), after

    return reply


def leave(client: Client, up: Any, after: ClientState) -> Any:
    sys.exit(0)


def report(client: Client, up: Any, after: ClientState) -> Any:
    client.reports["share"] = "0.5"  # type: ignore[assignment]
    return up, after


def loss(client: Client, up: Any, after: ClientState) -> Any:
    client.train_losses.append(NAN)
    return up, after


MODELS: Mapping[str, Reply] = {
    "NaN": last_tensor(lambda t: t * NAN),
    "infinity": last_tensor(lambda t: t / 0),
    "one entry": last_tensor(lambda t: t[:1].clone()),
    "a dimension more": last_tensor(lambda t: t.unsqueeze(0)),
    "integers": last_tensor(lambda t: t.long()),
    "float64": last_tensor(lambda t: t.double()),
    "a trillion numbers": last_tensor(lambda t: torch.zeros(1).expand(10**12)),
    "no tensor": last_tensor(lambda t: None),
    "a list": last_tensor(lambda t: t.tolist()),
    "a tensor too many": fields(weights=lambda m: {**m, "extra": torch.zeros(3)}),
    "a tensor too few": fields(weights=lambda m: dict(list(m.items())[:-1])),
    "no mapping": fields(weights=lambda m: None),
    "negative samples": fields(samples=lambda n: -50),
    "samples in words": fields(samples=str),
    "no upload": lambda client, up, after: (None, after),
    "an undeclared type": lambda client, up, after: (dict(vars(up)), after),
    "three": lambda client, up, after: (up, after, 1),
    "no state": lambda client, up, after: (up, None),
    "a number in the state": lambda client, up, after: (up, replace(after, memory={"steps": 3})),
    "a report in words": report,
    "a loss of NaN": loss,
    "an exit": leave,
}
PROTOTYPES: Mapping[str, Reply] = {
    "a class that does not exist": fields(classes=lambda t: t + 10),
    "one class twice": fields(classes=lambda t: t[:1].repeat(len(t))),
    "narrow vectors": fields(vectors=lambda t: t[:, :-1]),
    "a vector too few": fields(vectors=lambda t: t[:-1]),
    "more images than there are": fields(counts=lambda t: t + 10**6),
}
CASES = [*(("bad_fedavg", n) for n in MODELS), *(("bad_fedproto", n) for n in PROTOTYPES)]


def is_bad(method: Any, client: Client) -> bool:
    return bool(method.hp.bad) and (client.id, client.round) == (VICTIM, ROUND)


class BadFedAvg(FedAvg):
    """FedAvg with one bad reply."""

    name = "bad_fedavg"

    class HParams(FedAvg.HParams):
        bad: str = ""

    def finish(self, local: LocalContext, trained: Trained) -> tuple[TrainedModel, ClientState]:
        up, after = super().finish(local, trained)
        is_it = is_bad(self, local.client)
        return MODELS[self.hp.bad](local.client, up, after) if is_it else (up, after)


class BadFedProto(FedProto):
    """FedProto with one bad reply."""

    name = "bad_fedproto"

    class HParams(FedProto.HParams):
        bad: str = ""

    def finish(self, local: LocalContext, trained: Trained) -> tuple[LocalPrototypes, ClientState]:
        up, after = super().finish(local, trained)
        is_it = is_bad(self, local.client)
        return PROTOTYPES[self.hp.bad](local.client, up, after) if is_it else (up, after)


@pytest.fixture(autouse=True, scope="module")
def methods() -> Iterator[None]:
    """Register this file's methods, for its tests only."""
    algorithms.names()  # loads all: what is loaded later would be forgotten again
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algorithms, "_entries", dict(algorithms._entries))
        for method in (BadFedAvg, BadFedProto):
            algorithms.add(method)
        yield


def assembly(method: str, bad: str, policy: str = "drop") -> Assembly:
    keys = {"algorithm": {"name": method, "bad": bad}, "faults.on_client_error": policy}
    return Assembly(from_tree(dict(small_runs.TREE), keys.items()))


@pytest.fixture(scope="module")
def absent(methods) -> dict[str, Trace]:
    """The runs in which the client is absent from the round of its bad reply."""
    names = ("bad_fedavg", "bad_fedproto")
    return {name: outcome_of(assembly(name, ""), absent=True)[0] for name in names}


@pytest.mark.parametrize(("method", "bad"), CASES)
def test_a_bad_reply_stops_the_run_or_counts_as_absence(absent, method, bad):
    with pytest.raises(ClientError, match=r"^client 1, round 2, step client_update: ") as stopped:
        outcome_of(assembly(method, bad, "stop"))
    assert "\n" not in str(stopped.value)
    found, events = outcome_of(assembly(method, bad))
    assert [client for client, what in events if what.startswith("failed: ")] == [VICTIM]
    compare_traces([absent[method]], [found])


def test_an_unusual_order_of_tensors_changes_nothing(monkeypatch):
    turned = fields(weights=lambda m: dict(reversed(list(m.items()))))
    monkeypatch.setitem(MODELS, "turned", turned)
    found, _ = outcome_of(assembly("bad_fedavg", "turned", "stop"))
    compare_traces([outcome_of(assembly("bad_fedavg", ""))[0]], [found])
