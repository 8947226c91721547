"""FedProto with one global model: weights and class prototypes are averaged, features pulled.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
arXiv:2105.00243, in the homogeneous form of FedGLCL's comparison.

    Eq. (6) -> aggregate (algorithms/prototypes.py)
    Eq. (7) -> FedProtoGlobal.local_loss

Deviations:
    - The weights are averaged as in FedAvg, so that there is a global model to test; the paper's
      clients share their prototypes alone (`fedproto`).
    - The distance is the mean over batch and width, as the official code has it; the paper writes
      a plain L2 norm.
    - Prototypes are made by one pass in evaluation mode after training, each client's by its own
      weights before they are averaged.

Buffers: as in FedAvg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Downlinks, Server, ServerState, Uplinks
from fedray.algorithms.fedavg import FedAvg, GlobalModel, TrainedModel
from fedray.algorithms.fedproto import no_prototypes
from fedray.algorithms.prototypes import (
    Aggregation,
    GlobalPrototypes,
    LocalPrototypes,
    aggregate,
    local_prototypes,
    prototype_distance,
)
from fedray.algorithms.registry import algorithms
from fedray.client import Batch, Client, ClientState
from fedray.models import Classifier

VECTORS, PRESENT = "prototypes.vectors", "prototypes.present"


@dataclass(frozen=True)
class PrototypedModel(GlobalModel, GlobalPrototypes):
    """The global model and the server's prototypes."""


@dataclass(frozen=True)
class PrototypedUpdate(TrainedModel, LocalPrototypes):
    """A trained model and the prototypes that it makes."""


@algorithms.add
class FedProtoGlobal(FedAvg):
    """FedAvg whose clients pull their features to common class prototypes."""

    name = "fedproto_global"
    paper = "Tan et al., AAAI 2022, arXiv:2105.00243"
    shares = "whole models and class prototypes"

    class HParams(FedAvg.HParams):
        """Global FedProto's hyper-parameters."""

        mu: float = Field(1.0, ge=0)
        """μ, weight of the prototype term; 0 is FedAvg. FedGLCL's comparison: 1; paper's λ: 1."""
        proto_agg: Aggregation = "weighted"
        """Eq. (6): weighted by samples (paper); uniform over holders (common code)."""

    # --- server ----------------------------------------------------------------------------------

    def init_server(self, server: Server) -> ServerState:
        """The initial weights and no prototypes, so the first round has no regulariser."""
        none = no_prototypes(server)
        weights = super().init_server(server)
        return {**weights, VECTORS: none["vectors"], PRESENT: none["present"]}

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """Weights and prototypes, the same for all."""
        down = PrototypedModel.of(
            server.model,
            {k: value for k, value in state.items() if k not in (VECTORS, PRESENT)},
            vectors=state[VECTORS],
            present=state[PRESENT],
        )
        return dict.fromkeys(clients, down)

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """Average weights and prototypes; a class nobody uploaded keeps its last prototype."""
        if not uplinks:
            return state
        vectors, present = aggregate(uplinks, self.setting.num_classes, self.hp.proto_agg)
        return {
            **super().server_update(state, uplinks, server),
            VECTORS: vectors.where(present.unsqueeze(1), state[VECTORS]),
            PRESENT: present | state[PRESENT],
        }

    # --- client ----------------------------------------------------------------------------------

    def local_loss(
        self, model: Classifier, batch: Batch, down: PrototypedModel, state: ClientState
    ) -> Tensor:
        """The supervised loss + μ * distance to the class's prototype, Eq. (7)."""
        output = model(batch.images)
        loss = self.supervised_loss(output, batch.labels, state)
        if self.hp.mu == 0:
            return loss
        distance = prototype_distance(output.features.float(), batch.labels, down)
        return loss + distance * float(self.hp.mu)

    def uplink(self, client: Client, model: Classifier, down: GlobalModel) -> PrototypedUpdate:
        """The trained weights of the shared part, and the client's prototypes."""
        return PrototypedUpdate(
            **vars(super().uplink(client, model, down)), **vars(local_prototypes(client, model))
        )
