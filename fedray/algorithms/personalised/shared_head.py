"""Base classes of methods with personal extractors and a shared head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fedray import core
from fedray.algorithms.mean import Averaging
from fedray.models import head_tensors


@dataclass(frozen=True)
class GlobalHead(core.Payload):
    """The shared head at the start of a round: weight [C, d] and bias [C]."""

    head: Mapping[str, Tensor] = core.payload_field(
        "weights", reveals="the mean of the participants' heads"
    )


@dataclass(frozen=True)
class Head(core.Payload):
    """A client's trained classifier head and its number of training images."""

    head: Mapping[str, Tensor] = core.payload_field(
        "weights",
        reveals="which classes the client holds, by the rows of its head that changed; the "
        "extractor is not sent",
    )
    samples: int = core.payload_field("statistics", reveals="how many images the client has")

    def check(self, call: core.Call) -> None:
        self.require_within("samples", 1, call.samples)


class HeadSharing(core.LocalTraining):
    """Local training of personal extractors, of any architecture, with the server's head."""

    stacks = True
    downloads: ClassVar[core.PayloadTypes] = (GlobalHead,)
    down_type: ClassVar[type[GlobalHead]] = GlobalHead
    """The payload type of the shared head."""

    def init_server(self, server: core.Server) -> core.ServerState:
        return {"head": initial_head(server)}

    def downlink(
        self, state: core.ServerState, clients: Sequence[int], server: core.Server
    ) -> core.Downlinks:
        return dict.fromkeys(clients, self.down_type(state["head"]))

    def begin(self, client: core.Client, state: core.ClientState, down: Any) -> core.LocalContext:
        """Load the client's personal extractor and the shared head."""
        head = {f"head.{name}": value for name, value in down.head.items()}
        return core.LocalContext(client, client.load({**state.model, **head}), state, down)


class HeadAveraging(Averaging, HeadSharing):
    """A `HeadSharing` method whose shared head is the mean of the participants' heads."""

    uploads: ClassVar[core.PayloadTypes] = (Head,)
    averaged = ("head",)

    def finish(
        self, local: core.LocalContext, trained: core.Trained
    ) -> tuple[Head, core.ClientState]:
        _, next_state = super().finish(local, trained)
        return Head(local.client.weights(local.model.head), len(local.client.train)), next_state


def initial_head(server: core.Server) -> core.Tensors:
    """Return the first client's initial head, by tensor names without the prefix "head."."""
    architecture = server.architectures[0]
    names = head_tensors(server.empty(architecture))
    initial = server.initial(architecture)
    return {name.removeprefix("head."): initial[name] for name in initial if name in names}
