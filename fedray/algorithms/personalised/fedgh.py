"""FedGH: the server trains one shared head on the clients' mean class features.

Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM Multimedia
2023, arXiv:2303.13137.

    Algorithm 1, client: local averaged representation -> FedGH.finish
    Algorithm 1, server: generalised global header     -> header_loss, FedGH.server_update

Deviations:
    - The server makes `server_epochs` passes of SGD over a round's uploads, in batches. FedTSP's
      comparison makes 100 passes, and its supplementary states a learning rate of 0.01. The paper's
      algorithm makes one pass, one upload per step (`server_epochs=1 server_batch_size=1`).
    - The head on the server is trained, as in the paper and in FedTSP's code. In the authors'
      repository the server steps the optimiser of a client instead, so that the server's head never
      changes.
    - Mean features are computed in evaluation mode over all training images; HtFLlib and the fork
      of it by FedTSP's authors omit the last incomplete batch.
    - The server's batches have the clients' batch size, as in HtFLlib and its fork. With 100
      uploads per step where clients have batches of 10 (`server_batch_size=100`), accuracies on
      digits were 6 to 11 points lower.

Buffers: those of the extractors are personal; heads have none.
"""

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from fedray import core
from fedray.algorithms.personalised.shared_head import HeadSharing
from fedray.algorithms.prototypes.class_prototypes import (
    CLASS_FEATURES,
    ServerTraining,
    local_prototypes,
)
from fedray.core import LocalContext, Server, ServerState, StepResult, Trained, Uplinks


@core.method("fedgh", "FedGH", "Yi et al., ACM MM 2023, arXiv:2303.13137")
class FedGH(HeadSharing, ServerTraining):
    """A shared head that the server trains on mean class features; extractors stay personal."""

    down = {"head": core.sent("weights", "a head trained on the clients' mean class features")}
    up = CLASS_FEATURES

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """Continue to train the head on the uploads."""
        return {"head": self.train_on_uploads(state["head"], header_loss, uplinks, server)}

    def finish(self, local: LocalContext, trained: Trained) -> StepResult:
        _, state = super().finish(local, trained)
        means = local_prototypes(local.client, local.model)
        return {name: means[name] for name in CLASS_FEATURES}, state


def header_loss(head: Mapping[str, Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the cross-entropy of a head (weight [C, d], bias [C]) on mean features.

    A batch has mean features [B, d] of any clients, and the class of each [B].
    """
    vectors, labels = batch
    return F.cross_entropy(F.linear(vectors, head["weight"], head["bias"]), labels)
