"""FedProto: clients pull their features to the class prototypes that all of them average.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022,
arXiv:2105.00243.

    Eq. (6) -> aggregate (mean.py)
    Eq. (7) -> prototype_loss (prototypes/class_prototypes.py)

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

from pydantic import Field
from torch import Tensor

from fedray.algorithms.mean import Aggregation, class_sums
from fedray.algorithms.prototypes.class_prototypes import (
    GlobalPrototypes,
    PrototypeSharing,
    no_prototypes,
    prototype_loss,
    renewed_prototypes,
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
    stacks = True
    downloads = (GlobalPrototypes,)

    class HParams(HyperParameters):
        lambda_: LossWeight = Field(1.0, alias="lambda")
        """λ, weight of the prototype term; 0 is Local. Paper: 1; FedTSP's comparison: 1."""
        proto_agg: Aggregation = "weighted"
        """Eq. (6): weighted by samples (paper); uniform over holders (HtFLlib);
        literal: weighted and divided by the number of holders, as FedTSP's Eq. (6) is printed."""

    hp: HParams

    def init_server(self, server: Server) -> ServerState:
        return no_prototypes(server)

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        return dict.fromkeys(clients, GlobalPrototypes(state["vectors"], state["present"]))

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """Return cross-entropy and the prototype term, Eq. (7)."""
        return prototype_loss(output, batch.labels, local.down, self.hp.lambda_)

    def summand(self, upload: Any) -> StateTree:
        return {"classes": class_sums(upload, self.setting.num_classes, self.hp.proto_agg)}

    def server_step(self, state: ServerState, total: Total, server: Server) -> ServerState:
        """Average the participants' prototypes; a class nobody uploaded keeps its last one."""
        return renewed_prototypes(state, total["classes"], self.hp.proto_agg)
