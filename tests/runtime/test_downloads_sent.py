"""A call to a worker carries the distinct downloads of its own clients, and no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray import cloudpickle

from fedray.core import Fields, Payload, sent
from fedray.runtime.ray_executor import RayExecutor, Share
from fedray.storage.states import StateStore

CLIENTS, BYTES = 96, 20_000


Vectors = Fields(
    "Vectors",
    {
        "vectors": sent("prototypes", axes="C d"),
    },
)


class Recorder:
    """Stands in for a worker; records the calls."""

    def __init__(self) -> None:
        self.shares: list[Share] = []

    @property
    def run(self) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self.shares.append(arguments[-1]))

    test = run


@pytest.fixture
def send():
    """Send a step's downloads to two recorders; return the shares of all calls."""

    def send(task: str, down: dict[int, Vectors | None], groups: list[list[int]]) -> list[Share]:
        workers = [Recorder(), Recorder()]
        executor = object.__new__(RayExecutor)
        executor._pool = SimpleNamespace(ready=lambda: workers)
        executor._experiment, executor.states = "{}", StateStore()
        executor._architectures, executor._rate = ["mlp"] * CLIENTS, {"mlp": 1e-6}
        executor._sizes = [(0, [10] * CLIENTS)]
        experiment = SimpleNamespace(stacked=1, gpus=0)
        executor._assembly = SimpleNamespace(experiment=experiment, model_numbers=1, identity="")
        name = "evaluate" if task == "test" else "client_update"
        executor._send(task, name, 1, groups, down)
        return [share for worker in workers for share in worker.shares]

    return send


def vectors() -> Payload:
    return Vectors(torch.rand(10, BYTES // 40))


def received(shares: list[Share]) -> dict[int, Any]:
    return {client: down for share in shares for client, _, down in share.inputs()}


@pytest.mark.parametrize("task", ["step", "sum", "test"])
def test_own_downloads_are_sent_once(send, task):
    down = {client: vectors() for client in range(CLIENTS)}
    shares = send(task, down, [[client] for client in down])
    assert len(shares) > 2
    sent = sum(len(cloudpickle.dumps(share)) for share in shares)
    assert CLIENTS * BYTES < sent < 1.1 * CLIENTS * BYTES
    for client, payload in received(shares).items():
        assert torch.equal(payload.vectors, down[client].vectors)


def test_a_group_that_is_tested_together_gets_one(send):
    models = [vectors() for _ in range(8)]
    down = {client: models[client % 8] for client in range(CLIENTS)}
    groups = [list(range(first, CLIENTS, 8)) for first in range(8)]
    shares = send("test", down, groups)
    assert sum(len(share.downloads) for share in shares) == 8
    for share in shares:
        for group, (_, _, payload) in zip(share.groups, share.inputs(), strict=True):
            assert torch.equal(payload.vectors, down[group[0]].vectors)


def test_clients_of_a_call_share_an_object(send):
    everyone = vectors()
    shares = send("step", dict.fromkeys(range(CLIENTS), everyone), [[c] for c in range(CLIENTS)])
    assert {len(share.downloads) for share in shares} == {1}
    for share in shares:
        assert len({id(down) for _, _, down in share.inputs()}) == 1


def test_clients_without_a_download_get_none(send):
    down = {client: vectors() if client % 3 == 0 else None for client in range(CLIENTS)}
    shares = send("step", down, [[client] for client in down])
    assert sum(len(share.downloads) for share in shares) == CLIENTS // 3
    given = received(shares)
    assert [client for client, payload in given.items() if payload is not None] == [
        client for client in given if client % 3 == 0
    ]
