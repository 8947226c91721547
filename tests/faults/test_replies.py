"""A reply that is not what its method declares ends the run, with the name of its client.

What is refused of an upload is in tests/core/test_payload.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import small_runs
import torch
from small_runs import ROUND, VICTIM

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.base.errors import ClientError
from fedray.core import Client, ClientState, LocalContext, Trained, algorithms
from fedray.laws.traces import Trace, compare_traces, serial, trace
from fedray.runtime.assembly import Assembly
from fedray.runtime.resolve import from_tree

Reply = Callable[[Client, Any, ClientState], Any]


def weights(change: Callable[[Mapping[str, torch.Tensor]], Any]) -> Reply:
    """Change the weights of the upload."""
    return lambda client, up, after: ({**up, "model": change(up["model"])}, after)


def leave(client: Client, up: Any, after: ClientState) -> Any:
    sys.exit(0)


def report(client: Client, up: Any, after: ClientState) -> Any:
    client.reports["share"] = "0.5"  # type: ignore[assignment]
    return up, after


def loss(client: Client, up: Any, after: ClientState) -> Any:
    client.train_losses.append(float("nan"))
    return up, after


BAD: Mapping[str, Reply] = {
    "NaN": weights(lambda m: {name: t * torch.nan for name, t in m.items()}),
    "no mapping": weights(lambda m: None),
    "no upload": lambda client, up, after: (None, after),
    "three": lambda client, up, after: (up, after, 1),
    "no state": lambda client, up, after: (up, None),
    "a report in words": report,
    "a loss of NaN": loss,
    "an exit": leave,
}
TURNED = weights(lambda m: dict(reversed(list(m.items()))))


class BadFedAvg(FedAvg):
    """FedAvg with one bad reply."""

    name = "bad_fedavg"

    bad: str = ""

    def finish(self, local: LocalContext, trained: Trained) -> tuple[FedAvg.up, ClientState]:
        up, after = super().finish(local, trained)
        client = local.client
        if not self.bad or (client.id, client.round) != (VICTIM, ROUND):
            return up, after
        return {**BAD, "turned": TURNED}[self.bad](client, up, after)


@pytest.fixture(autouse=True, scope="module")
def _method() -> Iterator[None]:
    """Register this file's method, for its tests only."""
    algorithms.names()  # loads all: what is loaded later would be forgotten again
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algorithms, "_entries", dict(algorithms._entries))
        algorithms.add(BadFedAvg)
        yield


def run(bad: str = "") -> list[Trace]:
    tree = {**small_runs.TREE, "algorithm": {"name": "bad_fedavg", "bad": bad}}
    return trace(Assembly(from_tree(tree)), serial)


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_reply_ends_the_run(bad):
    with pytest.raises(ClientError, match=r"^client 1, round 2, step client_update: ") as stopped:
        run(bad)
    assert "\n" not in str(stopped.value)


def test_an_unusual_order_of_tensors_changes_nothing():
    compare_traces(run(), run("turned"))
