"""FedBABU: the head keeps its initial values; only the body is trained and averaged.

Oh et al., "FedBABU: Towards Enhanced Representation for Federated Image Classification",
ICLR 2022, arXiv:2106.06042.

    Algorithm 1, local update -> FedBABU.learns
    Algorithm 1, aggregation  -> FedBABU.shared

The head is sent to everybody once, before the first round: with `model.init=independent` the
clients' own initial heads would differ. The paper's fine-tuning after training is not part of it.

Buffers: those of the body are averaged as in FedAvg; the head has none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from fedray.algorithms.base import Exchange, ServerState
from fedray.algorithms.fedavg import FedAvg
from fedray.algorithms.registry import algorithms
from fedray.client import Client, ClientState
from fedray.comm import Payload, travels
from fedray.models import Classifier, head_tensors, tensor_names


@dataclass(frozen=True)
class FixedHead(Payload):
    """The head that all clients keep: its weight [C, d] and bias [C] by their names."""

    weights: Mapping[str, Tensor] = travels("weights")


@algorithms.add
class FedBABU(FedAvg):
    """FedAvg of bodies under one fixed random head."""

    name = "fedbabu"
    paper = "Oh et al., ICLR 2022, arXiv:2106.06042"
    shares = "models without the head; the head once"
    dense = True

    class HParams(FedAvg.HParams):
        """FedBABU has none of its own."""

    def shared(self, model: Classifier) -> Collection[str]:
        """The body: all but the head (Algorithm 1)."""
        return tensor_names(model) - head_tensors(model)

    def learns(self, model: Classifier) -> Collection[str]:
        """The body's parameters (Algorithm 1)."""
        return {name for name, _ in model.named_parameters()} - head_tensors(model)

    def prepare(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Send the server's initial head to everybody, once."""
        server = exchange.server
        initial, names = server.initial(server.architecture), head_tensors(server.model)
        head = FixedHead({name: initial[name] for name in sorted(names)})
        exchange.call("receive_head", dict.fromkeys(exchange.everyone, head))
        return state

    def receive_head(
        self, client: Client, state: ClientState, down: FixedHead
    ) -> tuple[None, ClientState]:
        """Keep the head, in place of the client's own."""
        return None, ClientState({**state.model, **down.weights}, state.memory)
