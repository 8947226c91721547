"""FedProto with one global model: weights and class prototypes are averaged.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
arXiv:2105.00243, in the homogeneous form of FedGLCL's comparison.

    Eq. (6) -> by_class, class_average (mean.py)
    Eq. (7) -> FedProtoGlobal.loss

Deviations:
    - The weights are averaged as in FedAvg, so that a global model can be tested; the paper's
      clients share prototypes alone (`fedproto`).
    - The distance is a mean squared error over batch and width, as in the official code; the paper
      writes a plain L2 norm.
    - Prototypes are computed by one pass in evaluation mode after training, with the client's
      weights before averaging.

Buffers: as in FedAvg.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedray import core
from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.mean import ClassWeights, class_average
from fedray.algorithms.prototypes.class_prototypes import (
    GLOBAL_PROTOTYPES,
    PrototypeSharing,
    empty_prototypes,
    local_prototypes,
    prototype_distance,
    with_latest,
)
from fedray.config import LossWeight
from fedray.models import ClassifierOutput


class PrototypeAveraging(FedAvg, PrototypeSharing):
    """FedAvg of models and of class prototypes."""

    dense = False
    down = GLOBAL_PROTOTYPES

    proto_agg: ClassWeights = "weighted"
    """Mean of a class's prototypes, Eq. (6): weighted, by samples (paper), or uniform, over the
    clients that hold the class (most code)."""

    def init_server(self, server: core.Server) -> core.ServerState:
        return {**super().init_server(server), **empty_prototypes(server)}

    def server_step(
        self, state: core.ServerState, total: core.Total, server: core.Server
    ) -> core.ServerState:
        """Average weights and prototypes; a class without uploads keeps its last prototype."""
        prototypes = with_latest(state, *class_average(total["vectors"]))
        return {**super().server_step(state, total, server), **prototypes}

    def finish(
        self, local: core.LocalContext, trained: core.Trained
    ) -> tuple[Any, core.ClientState]:
        update, next_state = super().finish(local, trained)
        return {**update, **local_prototypes(local.client, local.model)}, next_state


@core.method(
    "fedproto_global", "FedProto, one global model", "Tan et al., AAAI 2022, arXiv:2105.00243"
)
class FedProtoGlobal(PrototypeAveraging):
    """FedAvg with a loss that pulls features to class prototypes averaged over all clients."""

    mu: LossWeight = 1.0
    """μ, weight of the prototype term; 0 gives FedAvg. FedGLCL's comparison: 1; paper's λ: 1."""

    def loss(self, output: ClassifierOutput, batch: core.Batch, local: core.LocalContext) -> Tensor:
        """Return the supervised loss plus μ times the distance to the prototypes, Eq. (7)."""
        loss = super().loss(output, batch, local)
        if self.mu == 0:
            return loss
        distance = prototype_distance(output.features.float(), batch.labels, local.down)
        return loss + distance * self.mu
