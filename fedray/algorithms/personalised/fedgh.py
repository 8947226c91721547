"""FedGH: the server trains one shared head on the clients' mean class features.

Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM Multimedia
2023, arXiv:2303.13137.

    Algorithm 1, client: local averaged representation -> mean_features
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

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fedray import core
from fedray.algorithms.personalised.shared_head import HeadSharing
from fedray.algorithms.prototypes.class_prototypes import (
    CLASS_FEATURES,
    ServerTraining,
    train_on_uploads,
)
from fedray.models import Classifier


@core.method("fedgh", "FedGH", "Yi et al., ACM MM 2023, arXiv:2303.13137")
class FedGH(HeadSharing, ServerTraining):
    """A shared head that the server trains on mean class features; extractors stay personal."""

    down = {"head": core.sent("weights", "a head trained on the clients' mean class features")}
    up = CLASS_FEATURES

    def server_update(
        self, state: core.ServerState, uplinks: core.Uplinks, server: core.Server
    ) -> core.ServerState:
        """Continue to train the head on the uploads; without uploads, return the same state."""
        if not uplinks:
            return state
        head = train_on_uploads(state["head"], header_loss, uplinks, server, "fedgh_batches", self)
        return {"head": head}

    def finish(
        self, local: core.LocalContext, trained: core.Trained
    ) -> tuple[Any, core.ClientState]:
        _, next_state = super().finish(local, trained)
        return mean_features(local.client, local.model), next_state


def mean_features(client: core.Client, model: Classifier) -> core.Tensors:
    """Return the local averaged representation: the mean feature of each local class."""
    classes, vectors, _ = client.class_means(model)
    return {"classes": classes, "vectors": vectors}


def header_loss(head: Mapping[str, Tensor], batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the cross-entropy of the head on mean features.

    Args:
        head: weight [C, d] and bias [C].
        batch: mean features [B, d] of any clients, and the class of each [B].
    """
    vectors, labels = batch
    return F.cross_entropy(F.linear(vectors, head["weight"], head["bias"]), labels)
