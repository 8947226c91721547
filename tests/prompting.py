"""What tests of prompt methods share: an empty client, one training context, first payloads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from clips import CPU
from torch import Tensor

from fedray.core import (
    Algorithm,
    Batch,
    Call,
    Client,
    Downlinks,
    Exchange,
    LocalContext,
    LocalTraining,
    Payload,
    Samples,
    Skeleton,
    Tensors,
    Total,
    Trained,
    combined_rows,
    total_of,
)
from fedray.models import ImageFeatures, PatchFeatures, Pixels
from fedray.models.prompted import PromptedClip
from fedray.runtime.assembly import Assembly
from fedray.storage.run import Traffic


def prompted_model(assembly: Assembly) -> PromptedClip:
    """An empty model of the experiment's method."""
    model = assembly.models.empty(assembly.models.architectures[0])
    assert isinstance(model, PromptedClip)
    return model


def initial_prompts(assembly: Assembly, client: int = 0) -> Tensors:
    """A client's initial weights."""
    return assembly.models.initial(assembly.models.architectures[client], client)


def empty_client(assembly: Assembly, labels: tuple[int, ...] = ()) -> Client:
    """A client of an experiment in round 1, with zeros under these labels."""
    model = prompted_model(assembly)
    read: dict[type[Any], tuple[int, ...]] = {
        ImageFeatures: (model.clip.dim,),
        PatchFeatures: (1, model.clip.dim),
        Pixels: assembly.data.images.images.shape[1:],
    }
    kind = np.uint8 if model.reads is Pixels else np.float32
    zeros = np.zeros((len(labels), *read[model.reads]), kind)
    samples = Samples(zeros, np.array(labels, np.int64), np.arange(len(labels)), model.reads)
    return Client(
        id=0,
        round=1,
        setting=assembly.setting,
        train=samples,
        architecture=assembly.models.architectures[0],
        skeleton=Skeleton(model),
        initial=lambda: initial_prompts(assembly),
        device=CPU,
    )


def trained_numbers(assembly: Assembly) -> int:
    """How many numbers a client trains."""
    return sum(prompt.numel() for prompt in prompted_model(assembly).parameters())


class Alone(Exchange):
    """An exchange with one client, whose payloads pass the gate.

    Args:
        assembly: the parts of the experiment.
        client: the client.

    Attributes:
        down: what it was sent so far.
        up: what it has sent so far.
    """

    def __init__(self, assembly: Assembly, client: Client) -> None:
        self.server = replace(assembly.server(CPU), round=1)
        self.participants = self.everyone = self.replied = [client.id]
        self.absent = ()
        self.down, self.up = Traffic(), Traffic()
        self._assembly, self._client = assembly, client
        self._state = assembly.algorithm.init_client(client)

    def total(self, step: str, down: Downlinks) -> Total:
        """Add up what `call` returns."""
        return total_of(self.call(step, down), partial(combined_rows, self._assembly.algorithm))

    def call(self, step: str, down: Downlinks) -> dict[int, Any]:
        """Run the client's step on what passes the gate."""
        (sent,), gate = down.values(), self._assembly.gate
        if sent is not None:
            sent, traffic = gate.down(sent)
            self.down = Traffic.total([self.down, traffic])
        method = getattr(self._assembly.algorithm, step)
        reply, self._state = method(self._client, self._state, sent)
        if reply is not None:
            reply = (getattr(method, "up", None) or self._assembly.algorithm.up)(**reply)
            reply, traffic = gate.up(reply, Call(step, self._client, sent))
            self.up = Traffic.total([self.up, traffic])
        return {self._client.id: reply}


def first_exchange(assembly: Assembly) -> tuple[Traffic, Traffic]:
    """Traffic down and up of one client in round 1, by the gate; it trains on nothing."""
    algorithm, gate, server = assembly.algorithm, assembly.gate, assembly.server(CPU)
    client = empty_client(assembly, (0,))
    down = algorithm.downlink(algorithm.init_server(server), [0], server)[0]
    received, traffic_down = gate.down(down) if down is not None else (None, Traffic())
    up = _untrained_upload(algorithm, client, received)
    traffic_up = Traffic()
    if up is not None:
        up = algorithm.up(**up)
        traffic_up = gate.up(up, Call("client_update", client, received))[1]
    return traffic_down, traffic_up


def _untrained_upload(algorithm: Algorithm, client: Client, down: Payload | None) -> Any:
    if not isinstance(algorithm, LocalTraining):
        return None
    local = algorithm.begin(client, algorithm.init_client(client), down)
    untrained = Trained(client.weights(local.model), steps=0)
    return algorithm.finish(local, untrained)[0]


def loss_of(assembly: Assembly, local: LocalContext, batch: Batch) -> Tensor:
    """The method's loss of one batch, as training computes it."""
    algorithm = assembly.algorithm
    assert isinstance(algorithm, LocalTraining)
    return algorithm.loss(local.model.train()(batch.inputs), batch, local)
