"""FedGH: the server trains one head for all on the mean features of the clients' classes.

Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM Multimedia
2023, arXiv:2303.13137.

    Algorithm 1, client: local averaged representation -> mean_features
    Algorithm 1, server: generalised global header     -> header_loss, FedGH.server_update

Deviations:
    - The server makes `server_epochs` passes over a round's uploads, in batches, by SGD: 100 in
      FedTSP's comparison, whose supplementary gives its rate as 0.01. The paper's algorithm goes
      over them once, one at a time: `server_epochs=1 server_batch_size=1`.
    - In the authors' repository the step after each upload is that of a client's optimiser, so that
      the head on the server never moves; here it does, as the paper says and FedTSP's code does.
    - Mean features are made in evaluation mode, of all training images; HtFLlib and its fork by
      FedTSP's authors leave out the last incomplete batch.
    - The server's batches have the clients' batch size, as in HtFLlib and in that fork. With 100
      uploads a step where clients have batches of 10 (`server_batch_size=100`), accuracies on
      digits were 6 to 11 points lower.

Buffers: those of the extractors are personal; heads have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from fedray.algorithms.personalised.shared_head import GlobalHead, HeadSharing
from fedray.algorithms.prototypes.class_prototypes import (
    ClassFeatures,
    ServerTraining,
    train_on_uploads,
)
from fedray.core import (
    Client,
    ClientState,
    LocalContext,
    Server,
    ServerState,
    Trained,
    Uplinks,
    algorithms,
    payload_field,
)
from fedray.models import Classifier


@dataclass(frozen=True)
class GeneralisedHead(GlobalHead):
    """The head that the server has trained."""

    head: Mapping[str, Tensor] = payload_field(
        "weights", reveals="a head that was trained on the clients' mean class features"
    )


@algorithms.add
class FedGH(HeadSharing):
    """Mean class features up, a head that was trained on them down; extractors stay personal."""

    name = "fedgh"
    title = "FedGH"
    paper = "Yi et al., ACM MM 2023, arXiv:2303.13137"
    travels = "mean class features up, a classifier head down"
    uploads = (ClassFeatures,)
    downloads = (GeneralisedHead,)
    down_type = GeneralisedHead

    class HParams(ServerTraining):
        """Those of the server's training."""

    hp: HParams

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        """Train the head on from where it was; without uploads nothing changes."""
        if not uplinks:
            return state
        head = train_on_uploads(
            state["head"], header_loss, uplinks, server, "fedgh_batches", self.hp
        )
        return {"head": {name: tensor.cpu() for name, tensor in head.items()}}

    def finish(self, local: LocalContext, trained: Trained) -> tuple[ClassFeatures, ClientState]:
        _, kept = super().finish(local, trained)
        return mean_features(local.client, local.model), kept


def mean_features(client: Client, model: Classifier) -> ClassFeatures:
    """Return the local averaged representation: the mean feature of each local class."""
    classes, vectors, _ = client.class_means(model)
    return ClassFeatures(classes, vectors)


def header_loss(head: Mapping[str, Tensor], vectors: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of the head on mean features.

    Args:
        head: weight [C, d] and bias [C].
        vectors: mean features [B, d] of any clients.
        labels: their classes [B].
    """
    return F.cross_entropy(F.linear(vectors, head["weight"], head["bias"]), labels)
