"""A reply that is not what its method declares is the failure of its client and reaches nobody.

What is refused of an upload is in tests/core/test_payload.py.
"""

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
from fedray.core import Client, ClientState, LocalContext, Trained, algorithms
from fedray.errors import ClientError
from fedray.runtime.assembly import Assembly
from fedray.runtime.resolve import from_tree
from fedray.runtime.traces import compare_traces

Reply = Callable[[Client, Any, ClientState], Any]


def weights(change: Callable[[Mapping[str, torch.Tensor]], Any]) -> Reply:
    """Change the weights of the upload."""
    return lambda client, up, after: (replace(up, weights=change(up.weights)), after)


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
    "a trillion numbers": weights(
        lambda m: {name: torch.zeros(1).expand(10**12) for name, t in m.items()}
    ),
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

    class HParams(FedAvg.HParams):
        bad: str = ""

    def finish(self, local: LocalContext, trained: Trained) -> tuple[TrainedModel, ClientState]:
        up, after = super().finish(local, trained)
        client = local.client
        if not self.hp.bad or (client.id, client.round) != (VICTIM, ROUND):
            return up, after
        return {**BAD, "turned": TURNED}[self.hp.bad](client, up, after)


@pytest.fixture(autouse=True, scope="module")
def _method() -> Iterator[None]:
    """Register this file's method, for its tests only."""
    algorithms.names()  # loads all: what is loaded later would be forgotten again
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algorithms, "_entries", dict(algorithms._entries))
        algorithms.add(BadFedAvg)
        yield


def assembly(bad: str = "", policy: str = "drop") -> Assembly:
    keys = {"algorithm": {"name": "bad_fedavg", "bad": bad}, "faults.on_client_error": policy}
    return Assembly(from_tree(dict(small_runs.TREE), keys.items()))


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_reply_stops_the_run_or_counts_as_absence(bad):
    with pytest.raises(ClientError, match=r"^client 1, round 2, step client_update: ") as stopped:
        outcome_of(assembly(bad, "stop"))
    assert "\n" not in str(stopped.value)
    found, events = outcome_of(assembly(bad))
    assert [client for client, what in events if what.startswith("failed: ")] == [VICTIM]
    absent, _ = outcome_of(assembly(), absent=True)
    compare_traces([absent], [found])


def test_an_unusual_order_of_tensors_changes_nothing():
    (found, _), (honest, _) = outcome_of(assembly("turned", "stop")), outcome_of(assembly())
    compare_traces([honest], [found])
