"""A worker gets one call with the distinct downloads of its own clients, and no others."""

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


@pytest.fixture
def send():
    """Send a step's downloads to two workers; return their shares."""

    def send(task: str, down: dict[int, Vectors | None]) -> list[Share]:
        workers = [None, None]
        executor = object.__new__(RayExecutor)
        executor._pool = SimpleNamespace(ready=lambda: workers)
        executor._experiment, executor.states = "{}", StateStore()
        executor._architectures, executor._rate = ["mlp"] * CLIENTS, {"mlp": 1e-6}
        data = SimpleNamespace(at=lambda round_: SimpleNamespace(train=["ten images"] * CLIENTS))
        experiment = SimpleNamespace(stacked=1, gpus=0)
        executor._assembly = SimpleNamespace(
            experiment=experiment, model_numbers=1, identity="", data=data
        )
        blocks = executor._blocks(task, "client_update", 1, down)
        return [share for _, share in executor._shares(task, 1, blocks, down)]

    return send


def vectors() -> Payload:
    return Vectors(torch.rand(10, BYTES // 40))


def received(shares: list[Share]) -> dict[int, Any]:
    return {client: down for share in shares for client, _, down in share.inputs()}


@pytest.mark.parametrize("task", ["step", "sum"])
def test_own_downloads_are_sent_once(send, task):
    down = {client: vectors() for client in range(CLIENTS)}
    shares = send(task, down)
    assert len(shares) == 2
    sent = sum(len(cloudpickle.dumps(share)) for share in shares)
    assert CLIENTS * BYTES < sent < 1.1 * CLIENTS * BYTES
    for client, payload in received(shares).items():
        assert torch.equal(payload.vectors, down[client].vectors)


def test_clients_of_a_call_share_an_object(send):
    everyone = vectors()
    shares = send("step", dict.fromkeys(range(CLIENTS), everyone))
    for share in shares:
        assert len({id(down) for _, _, down in share.inputs()}) == 1


def test_clients_without_a_download_get_none(send):
    down = {client: vectors() if client % 3 == 0 else None for client in range(CLIENTS)}
    shares = send("step", down)
    given = received(shares)
    assert [client for client, payload in given.items() if payload is not None] == [
        client for client in given if client % 3 == 0
    ]
