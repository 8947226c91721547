"""FedBABU: the head keeps its initial values; only the body is trained and averaged.

Oh et al., "FedBABU: Towards Enhanced Representation for Federated Image Classification",
ICLR 2022, arXiv:2106.06042.

    Algorithm 1, local update -> FedBABU.begin
    Algorithm 1, aggregation  -> FedBABU.shared

The head is sent to all clients once, before the first round: with `model.init=independent` the
clients' own initial heads would differ. The paper's fine-tuning after training is not part of it.

Buffers: those of the body are averaged as in FedAvg; the head has none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from fedray.algorithms.averaging.fedavg import GlobalModel
from fedray.algorithms.averaging.sent_once import SentOnce
from fedray.core import (
    Client,
    ClientState,
    Exchange,
    LocalContext,
    Payload,
    Server,
    ServerState,
    algorithms,
    payload_field,
)
from fedray.models import Classifier, head_tensors, tensor_names


@dataclass(frozen=True)
class FixedHead(Payload):
    """The head that all clients keep: its weight [C, d] and bias [C] by their names."""

    weights: Mapping[str, Tensor] = payload_field("weights", reveals="nothing: initial weights")


@dataclass(frozen=True)
class BodyAndHead(GlobalModel):
    """The global body and the fixed head, for a client that did not get the head."""

    kept: Mapping[str, Tensor] = payload_field("weights")


@algorithms.add
class FedBABU(SentOnce):
    """FedAvg of bodies under one fixed random head."""

    name = "fedbabu"
    title = "FedBABU"
    paper = "Oh et al., ICLR 2022, arXiv:2106.06042"
    travels = "models without the head; the head once"
    dense = True
    downloads = (GlobalModel, FixedHead, BodyAndHead)
    with_kept = BodyAndHead

    def shared(self, model: Classifier) -> Collection[str]:
        """The body: all but the head (Algorithm 1)."""
        return tensor_names(model) - head_tensors(model)

    def begin(self, client: Client, state: ClientState, down: GlobalModel) -> LocalContext:
        """The global body under the fixed head; only the body is trainable (Algorithm 1)."""
        local = super().begin(client, state, down)
        body = {name for name, _ in local.model.named_parameters()} - head_tensors(local.model)
        return replace(local, trainable=body)

    def prepare(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Send the server's initial head to all clients once, also to clients that join later."""
        head = FixedHead(self.kept(exchange.server))
        exchange.call("receive_head", dict.fromkeys(range(self.setting.clients), head))
        return {**state, "holds": self.replied(exchange)}

    def kept(self, server: Server) -> Mapping[str, Tensor]:
        """Return the server's initial head."""
        initial, names = server.initial(server.architecture), head_tensors(server.model)
        return {name: initial[name] for name in sorted(names)}

    def keep(self, state: ClientState, kept: Mapping[str, Tensor]) -> ClientState:
        """Return the client's state with the fixed head instead of its initial one."""
        return ClientState({**state.model, **kept}, state.memory)

    def receive_head(
        self, client: Client, state: ClientState, down: FixedHead
    ) -> tuple[None, ClientState]:
        """Store the head, instead of the client's initial one."""
        return None, self.keep(state, down.weights)
