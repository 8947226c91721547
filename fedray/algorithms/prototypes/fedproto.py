"""FedProto: clients pull their features to the class prototypes that all of them average.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
arXiv:2105.00243.

    Eq. (6) -> aggregate (algorithms/prototypes.py)
    Eq. (7) -> prototype_loss

Deviations:
    - The distance is the mean over batch and width, as the official code and HtFLlib have it; the
      paper writes a plain L2 norm. Weight lambda = 1 is FedTSP's supplementary C.4.
    - Prototypes are made by one pass in evaluation mode after training. HtFLlib averages features
      seen during training, under moving weights.
    - Predictions come from the classifier head, as in FedTSP's comparison; the paper also
      describes the nearest prototype.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray.algorithms.base import Algorithm, Downlinks, Server, ServerState, Uplinks
from fedray.algorithms.prototypes import (
    Aggregation,
    GlobalPrototypes,
    LocalPrototypes,
    aggregate,
    local_prototypes,
    prototype_distance,
)
from fedray.algorithms.registry import algorithms
from fedray.client import Batch, Client
from fedray.config import Frozen
from fedray.models import Classifier


@algorithms.add
class FedProto(Algorithm):
    """Prototypes up, averaged prototypes down; models stay personal."""

    name = "fedproto"
    paper = "Tan et al., AAAI 2022, arXiv:2105.00243"
    shares = "class prototypes"

    class HParams(Frozen):
        """FedProto's hyper-parameters."""

        lambda_: float = Field(1.0, ge=0, alias="lambda")
        """λ, weight of the prototype term; 0 is Local. Paper: 1; FedTSP's comparison: 1."""
        proto_agg: Aggregation = "weighted"
        """Eq. (6): weighted by samples (paper); uniform over holders (HtFLlib)."""

    def init_server(self, server: Server) -> ServerState:
        """No prototypes yet, so the first round has no regulariser."""
        return no_prototypes(server)

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """The averaged prototypes, the same for all."""
        return dict.fromkeys(clients, GlobalPrototypes(state["vectors"], state["present"]))

    def loss(self, model: Classifier, batch: Batch, down: GlobalPrototypes) -> Tensor:
        """Cross-entropy and the prototype term, Eq. (7)."""
        return prototype_loss(model, batch, down, self.hp.lambda_)

    def uplink(self, client: Client, model: Classifier, down: GlobalPrototypes) -> LocalPrototypes:
        """The client's own prototypes."""
        return local_prototypes(client, model)

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """Average the participants' prototypes; a class nobody uploaded keeps its last one."""
        if not uplinks:
            return state
        vectors, present = aggregate(uplinks, self.setting.num_classes, self.hp.proto_agg)
        return {
            "vectors": vectors.where(present.unsqueeze(1), state["vectors"]),
            "present": present | state["present"],
        }


def no_prototypes(server: Server) -> ServerState:
    """A server that has not seen any prototype: zeros [C, d], none present."""
    classes, d = server.setting.num_classes, server.setting.feature_dim
    return {"vectors": torch.zeros(classes, d), "present": torch.zeros(classes, dtype=torch.bool)}


def prototype_loss(
    model: Classifier, batch: Batch, prototypes: GlobalPrototypes, weight: float
) -> Tensor:
    """Cross-entropy + λ * distance to the class's prototype, Eq. (7).

    Args:
        model: the client's classifier.
        batch: images [B, channels, H, W] and labels [B].
        prototypes: the server's, [C, d].
        weight: λ; at 0 the term is not computed, so the method equals Local bit for bit.
    """
    output = model(batch.images)
    loss = F.cross_entropy(output.logits, batch.labels)
    if weight == 0:
        return loss
    return loss + weight * prototype_distance(output.features.float(), batch.labels, prototypes)
