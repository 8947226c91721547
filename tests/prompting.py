"""What tests of prompt methods share: a frozen CLIP, drawn prompts, the first payloads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedray.algorithms.base import Downlinks
from fedray.client import Client, Samples, Skeleton
from fedray.comm import Traffic
from fedray.models.clip import ClipSpec, FrozenClip, PromptedClip, load_clip
from fedray.runtime.assembly import PROMPTED, Assembly

CPU = torch.device("cpu")
NAMES = ("zero", "one", "two", "three", "four")
M = TypeVar("M", bound=PromptedClip)


def clip_of(folder: Path) -> FrozenClip:
    """The CLIP of a folder."""
    return load_clip(ClipSpec(name="openclip", path=str(folder)), CPU)


def drawn(model: M, seed: int = 0) -> M:
    """The model with initial values."""
    model.initialise(torch.Generator().manual_seed(seed))
    return model


def noise(*shape: int, seed: int = 1) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(model: torch.nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """The loss's gradient in every parameter; zero where it does not depend on it."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return dict(zip(names, found, strict=True))


def empty_client(assembly: Assembly, labels: tuple[int, ...] = ()) -> Client:
    """A client of an experiment in round 1, with zeros under these labels."""
    model: Any = assembly.empty(PROMPTED)
    read: dict[str, tuple[int, ...]] = {
        "features": (model.clip.dim,),
        "patches": (1, model.clip.dim),
        "images": assembly.data.images.images.shape[1:],
    }
    kind = np.uint8 if model.reads == "images" else np.float32
    zeros = np.zeros((len(labels), *read[model.reads]), kind)
    own = Samples(zeros, np.array(labels, np.int64), np.arange(len(labels)))
    return Client(
        id=0,
        round=1,
        setting=assembly.setting,
        train=own,
        test=own,
        architecture=PROMPTED,
        skeleton=Skeleton(model),
        initial=lambda: assembly.initial(PROMPTED),
        device=CPU,
    )


def trained_numbers(assembly: Assembly) -> int:
    """How many numbers a client trains."""
    return sum(prompt.numel() for prompt in assembly.empty(PROMPTED).parameters())


class Alone:
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
        self.participants = self.everyone = [client.id]
        self.down, self.up = Traffic(), Traffic()
        self._assembly, self._client = assembly, client
        self._state = assembly.algorithm.init_client(client)

    def call(self, step: str, down: Downlinks) -> dict[int, Any]:
        """Run the client's step on what passes the gate."""
        (sent,), gate = down.values(), self._assembly.gate
        if sent is not None:
            sent, traffic = gate.down(sent)
            self.down += traffic
        method = getattr(self._assembly.algorithm, step)
        reply, self._state = method(self._client, self._state, sent)
        if reply is not None:
            reply, traffic = gate.up(reply, round_=1, client=self._client.id)
            self.up += traffic
        return {self._client.id: reply}


def first_exchange(assembly: Assembly) -> tuple[Traffic, Traffic]:
    """Traffic down and up of one client in round 1, by the gate; it trains on nothing."""
    algorithm, gate, server = assembly.algorithm, assembly.gate, assembly.server(CPU)
    client = empty_client(assembly)
    down = algorithm.downlink(algorithm.init_server(server), [0], server)[0]
    received, traffic_down = gate.down(down) if down is not None else (None, Traffic())
    state = algorithm.init_client(client)
    model = client.load(algorithm.start(client, state, received))
    up = algorithm.uplink(client, model, received)
    traffic_up = gate.up(up, round_=1, client=0)[1] if up is not None else Traffic()
    return traffic_down, traffic_up
