"""FedProto: clients pull their features to the class prototypes that all of them average.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
arXiv:2105.00243.

    Eq. (6) -> aggregate (mean.py)
    Eq. (7) -> prototype_loss

Deviations:
    - The distance is a mean squared error over batch and width, as in the official code and
      HtFLlib; the paper writes a plain L2 norm. Therefore λ is 10 in HtFLlib's scripts, and 0.1
      where a paper has the Euclidean distance (FedTGP's). λ = 1 is FedTSP's supplementary C.4.
    - Prototypes are made by one pass in evaluation mode after training. HtFLlib and FedTSP's fork
      of it average features seen during training, under moving weights.
    - The server weighs by samples, as the paper; HtFLlib and that fork give equal weights
      (`proto_agg=uniform`).
    - A class that nobody uploaded keeps its prototype; HtFLlib forgets it.
    - Predictions come from the classifier head, as in that fork; HtFLlib tests by the nearest
      prototype, which the paper also describes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray.algorithms.mean import Aggregation, class_means, class_sums
from fedray.algorithms.prototypes.class_prototypes import (
    GlobalPrototypes,
    PrototypeSharing,
    no_prototypes,
    prototype_distance,
)
from fedray.config import LossWeight
from fedray.core import (
    Batch,
    Downlinks,
    HyperParameters,
    LocalContext,
    Server,
    ServerState,
    StateTree,
    SummingMethod,
    Total,
    algorithms,
)
from fedray.models import ClassifierOutput


@algorithms.add
class FedProto(SummingMethod, PrototypeSharing):
    """Prototypes up, averaged prototypes down; models stay personal."""

    name = "fedproto"
    title = "FedProto"
    paper = "Tan et al., AAAI 2022, arXiv:2105.00243"
    travels = "class prototypes"
    downloads = (GlobalPrototypes,)

    class HParams(HyperParameters):
        """FedProto's hyper-parameters."""

        lambda_: LossWeight = Field(1.0, alias="lambda")
        """λ, weight of the prototype term; 0 is Local. Paper: 1; FedTSP's comparison: 1."""
        proto_agg: Aggregation = "weighted"
        """Eq. (6): weighted by samples (paper); uniform over holders (HtFLlib);
        literal: weighted and divided by the number of holders, as FedTSP's Eq. (6) is printed."""

    hp: HParams

    def init_server(self, server: Server) -> ServerState:
        """No prototypes yet, so the first round has no regulariser."""
        return no_prototypes(server)

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """The averaged prototypes, the same for all."""
        return dict.fromkeys(clients, GlobalPrototypes(state["vectors"], state["present"]))

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """Cross-entropy and the prototype term, Eq. (7)."""
        return prototype_loss(output, batch.labels, local.down, self.hp.lambda_)

    def summand(self, upload: Any) -> StateTree:
        """What the client's prototypes add to each class's mean."""
        sums = class_sums(upload, self.setting.num_classes, self.hp.proto_agg)
        return {"classes": sums}

    def server_step(self, state: ServerState, total: Total, server: Server) -> ServerState:
        """Average the participants' prototypes; a class nobody uploaded keeps its last one."""
        vectors, present = class_means(total["classes"], self.hp.proto_agg)
        return {
            "vectors": vectors.where(present.unsqueeze(1), state["vectors"]),
            "present": present | state["present"],
        }


def prototype_loss(
    output: ClassifierOutput, labels: Tensor, prototypes: GlobalPrototypes, weight: float
) -> Tensor:
    """Cross-entropy + λ * distance to the class's prototype, Eq. (7).

    Args:
        output: features [B, d] and logits [B, C].
        labels: [B].
        prototypes: the server's, [C, d].
        weight: λ; at 0 the term is not computed, so the method equals Local bit for bit.
    """
    loss = F.cross_entropy(output.logits, labels)
    if weight == 0:
        return loss
    return loss + weight * prototype_distance(output.features.float(), labels, prototypes)
