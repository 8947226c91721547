"""What head-sharing methods have in common: extractors stay personal, the head is the server's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedray.algorithms.averaging.fedavg import mean_tensors
from fedray.core import (
    Client,
    ClientState,
    Downlinks,
    LocalContext,
    LocalTraining,
    Payload,
    PayloadTypes,
    Server,
    ServerState,
    StateTree,
    SummingMethod,
    Tensors,
    Total,
    Trained,
    mean_of,
    payload_field,
    weighed,
)
from fedray.models import head_tensors


@dataclass(frozen=True)
class GlobalHead(Payload):
    """The head that every client starts a round with: weight [C, d] and bias [C]."""

    head: Mapping[str, Tensor] = payload_field(
        "weights", reveals="the mean of the participants' heads"
    )


@dataclass(frozen=True)
class Head(Payload):
    """A client's classifier head and how many images trained it."""

    head: Mapping[str, Tensor] = payload_field(
        "weights",
        reveals="which classes the client holds, by the rows of its head that moved; the extractor "
        "stays",
    )
    samples: int = payload_field("statistics", reveals="how many images the client has")


class HeadSharing(LocalTraining):
    """Local training of personal extractors, of any architecture, under the server's head."""

    downloads: ClassVar[PayloadTypes] = (GlobalHead,)
    down_type: ClassVar[type[GlobalHead]] = GlobalHead
    """Payload type of the shared head."""

    def init_server(self, server: Server) -> ServerState:
        """The head that the first client starts with."""
        return {"head": initial_head(server)}

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """The shared head, the same for all."""
        return dict.fromkeys(clients, self.down_type(state["head"]))

    def begin(self, client: Client, state: ClientState, down: Any) -> LocalContext:
        """The client's personal extractor under the shared head."""
        head = {f"head.{name}": value for name, value in down.head.items()}
        return LocalContext(client, client.load({**state.model, **head}), state, down)


class HeadAveraging(SummingMethod, HeadSharing):
    """The shared head is the mean of what the participants trained."""

    uploads: ClassVar[PayloadTypes] = (Head,)

    def summand(self, upload: Any) -> StateTree:
        """n_k h_k and n_k, whose sums give the mean."""
        weight = float(upload.samples)
        return {"weight": torch.tensor(weight).double(), "head": weighed(upload.head, weight)}

    def server_step(self, state: ServerState, total: Total, server: Server) -> ServerState:
        """The mean of the heads by samples."""
        return {**state, "head": mean_of(total["head"], total["weight"], state["head"])}

    def finish(self, local: LocalContext, trained: Trained) -> tuple[Head, ClientState]:
        """Upload the trained head; keep the model."""
        _, kept = super().finish(local, trained)
        return Head(local.client.weights(local.model.head), len(local.client.train)), kept


def initial_head(server: Server) -> Tensors:
    """The initial head of the first client, by the names that it has within the head."""
    architecture = server.architectures[0]
    names = head_tensors(server.empty(architecture))
    initial = server.initial(architecture)
    return {name.removeprefix("head."): initial[name] for name in initial if name in names}


def mean_head(weights: Mapping[int, float], uplinks: Mapping[int, Head]) -> Tensors:
    """The mean h = sum_k p_k h_k over the participants.

    Args:
        weights: p_k by client.
        uplinks: heads by client.
    """
    return mean_tensors(weights, {client: upload.head for client, upload in uplinks.items()})
