"""What tests of prompt methods share: a frozen CLIP, drawn prompts, the first payloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

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
    """A client of an experiment in round 1, with features of zeros under these labels."""
    model: Any = assembly.empty(PROMPTED)
    width = (model.clip.dim,) if model.reads == "features" else (1, model.clip.dim)
    features = np.zeros((len(labels), *width), np.float32)
    own = Samples(features, np.array(labels, np.int64), np.arange(len(labels)))
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


def first_exchange(assembly: Assembly) -> tuple[Traffic, Traffic, int]:
    """Traffic down and up of one client in round 1, by the gate, and how many numbers it trains."""
    algorithm, gate, server = assembly.algorithm, assembly.gate, assembly.server(CPU)
    client = empty_client(assembly)
    down = algorithm.downlink(algorithm.init_server(server), [0], server)[0]
    received, traffic_down = gate.down(down) if down is not None else (None, Traffic())
    state = algorithm.init_client(client)
    model = client.load(algorithm.start(client, state, received))
    up = algorithm.uplink(client, model, received)
    traffic_up = gate.up(up, round_=1, client=0)[1] if up is not None else Traffic()
    return traffic_down, traffic_up, sum(p.numel() for p in model.parameters())
