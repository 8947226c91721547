"""Bases of head-sharing methods: extractors stay personal, the head is the server's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedray.algorithms.mean import Averaging
from fedray.core import (
    Call,
    Client,
    ClientState,
    Downlinks,
    LocalContext,
    LocalTraining,
    Payload,
    PayloadTypes,
    Server,
    ServerState,
    Tensors,
    Trained,
    payload_field,
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

    def check(self, call: Call) -> None:
        self.require_within("samples", 1, call.samples)


class HeadSharing(LocalTraining):
    """Local training of personal extractors, of any architecture, under the server's head."""

    stacks = True
    downloads: ClassVar[PayloadTypes] = (GlobalHead,)
    down_type: ClassVar[type[GlobalHead]] = GlobalHead
    """Payload type of the shared head."""

    def init_server(self, server: Server) -> ServerState:
        return {"head": initial_head(server)}

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        return dict.fromkeys(clients, self.down_type(state["head"]))

    def begin(self, client: Client, state: ClientState, down: Any) -> LocalContext:
        """Load the client's personal extractor under the shared head."""
        head = {f"head.{name}": value for name, value in down.head.items()}
        return LocalContext(client, client.load({**state.model, **head}), state, down)


class HeadAveraging(Averaging, HeadSharing):
    """The shared head is the mean of what the participants trained."""

    uploads: ClassVar[PayloadTypes] = (Head,)
    averaged = ("head",)

    def finish(self, local: LocalContext, trained: Trained) -> tuple[Head, ClientState]:
        _, kept = super().finish(local, trained)
        return Head(local.client.weights(local.model.head), len(local.client.train)), kept


def initial_head(server: Server) -> Tensors:
    """Return the first client's initial head, by the names within the head."""
    architecture = server.architectures[0]
    names = head_tensors(server.empty(architecture))
    initial = server.initial(architecture)
    return {name.removeprefix("head."): initial[name] for name in initial if name in names}
