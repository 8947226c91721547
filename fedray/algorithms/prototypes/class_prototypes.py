"""Base classes, payloads and operations of methods that exchange class prototypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray import core
from fedray.algorithms.losses import similarity_analysis
from fedray.algorithms.mean import by_class
from fedray.algorithms.server_training import train_on_server
from fedray.config import Epochs, LearningRate
from fedray.core.optimizers import TorchSGD
from fedray.evaluation.protocols import Analysis
from fedray.models import Classifier, ClassifierOutput

CLASS_FEATURES = {
    "classes": core.sent(
        "statistics",
        "which classes the client holds",
        "c",
        dtype=torch.int64,
    ),
    "vectors": core.sent(
        "prototypes",
        "the mean features of its classes; for a class with one image, the features of that image, "
        "from which a reader with the model can reconstruct it",
        "c d",
    ),
}
"""Numbers [c] and mean features [c, d], not normalised, of the classes that a client holds."""
LOCAL_PROTOTYPES = {
    **CLASS_FEATURES,
    "vectors": replace(CLASS_FEATURES["vectors"], combine=by_class),
    "counts": core.sent(
        "statistics",
        "how many images of each class it has",
        "c",
        dtype=torch.int64,
    ),
}
"""The same with the client's number of training samples of each class [c]."""
GLOBAL_PROTOTYPES = {
    "vectors": core.sent(
        "prototypes",
        "the mean features of every class over the clients; if one client alone holds a class, its "
        "own mean features",
        "C d",
    ),
    "present": core.sent("statistics", "", "C", dtype=torch.bool),
}
"""The server's prototypes [C, d], zero for absent classes, and the mask of those present [C]."""


class PrototypeSharing(core.LocalTraining):
    """Local training of personal models, of which only the class prototypes are uploaded."""

    up = LOCAL_PROTOTYPES

    def analyse(self, state: core.ServerState, server: core.Server) -> Analysis:
        return similarity_analysis(state["vectors"], state["present"])

    def finish(
        self, local: core.LocalContext, trained: core.Trained
    ) -> tuple[Any, core.ClientState]:
        _, next_state = super().finish(local, trained)
        return local_prototypes(local.client, local.model), next_state


def local_prototypes(client: core.Client, model: Classifier) -> dict[str, Tensor]:
    """Return P_{i,c}, mean features of client i's images of each class c, FedTSP's Eq. (5)."""
    return dict(zip(LOCAL_PROTOTYPES, client.class_means(model), strict=True))


class ServerTraining(core.Algorithm):
    """A method whose server trains on uploaded mean features (FedGH, FedTGP)."""

    server_epochs: Epochs = 100
    """Number of passes over the uploaded vectors per round. FedTSP's and FedTGP's code: 100;
    FedGH's paper: 1."""
    server_batch_size: int | None = Field(None, ge=1, le=10**6)
    """Number of uploaded vectors per server step; null: the clients' batch size (FedTSP's and
    FedTGP's code). FedGH's paper: 1."""
    server_lr: LearningRate = 0.01
    """Learning rate of the server's SGD. FedTSP's supplementary: 0.01; FedTGP's code: that of the
    clients."""


def train_on_uploads(
    tensors: Mapping[str, Tensor],
    loss: Callable[[core.Tensors, tuple[Tensor, Tensor]], Tensor],
    uplinks: core.Uplinks,
    server: core.Server,
    purpose: str,
    method: ServerTraining,
) -> core.Tensors:
    """Train tensors by SGD on batches of the clients' uploads.

    Args:
        tensors: initial values by name.
        loss: returns the loss from the tensors, and from vectors [B, d] and their classes [B].
        uplinks: mean features by client id.
        server: provides the device, the round and the random streams.
        purpose: name of the random stream that shuffles the uploads in every epoch.
        method: has epochs, batch size and learning rate.
    """
    vectors = torch.cat([upload.vectors for upload in uplinks.values()]).to(server.device)
    labels = torch.cat([upload.classes for upload in uplinks.values()]).to(server.device)
    random = server.streams.torch(purpose, round_=server.round)
    size = method.server_batch_size or server.setting.training.batch_size
    orders = (torch.randperm(len(labels), generator=random) for _ in range(method.server_epochs))
    parts = (part for order in orders for part in torch.split(order.to(server.device), size))
    batches = ((vectors[part], labels[part]) for part in parts)
    sgd = partial(TorchSGD, lr=method.server_lr)
    return train_on_server(tensors, loss, batches, sgd, server.device)[0]


def prototype_distance(features: Tensor, labels: Tensor, prototypes: Any) -> Tensor:
    """Return the mean squared distance of features [B, d] to the prototypes of their classes.

    A sample whose class has no prototype counts as zero (FedProto's index set).
    """
    target = prototypes.vectors[labels]
    present = prototypes.present[labels].unsqueeze(1)
    return F.mse_loss(features, torch.where(present, target, features))


def prototype_loss(
    output: ClassifierOutput, labels: Tensor, prototypes: Any, weight: float
) -> Tensor:
    """Return cross-entropy + λ * distance to the class's prototype, Eq. (7).

    Args:
        output: features [B, d] and logits [B, C].
        labels: class labels [B].
        prototypes: the server's prototypes [C, d].
        weight: λ; with 0 the term is not computed, so that the method equals Local bit for bit.
    """
    loss = F.cross_entropy(output.logits, labels)
    if weight == 0:
        return loss
    return loss + weight * prototype_distance(output.features.float(), labels, prototypes)


def empty_prototypes(server: core.Server) -> dict[str, Tensor]:
    """Return a state without prototypes: zero vectors [C, d], and no class present."""
    classes, d = server.setting.num_classes, server.setting.feature_dim
    return {"vectors": torch.zeros(classes, d), "present": torch.zeros(classes, dtype=torch.bool)}


def with_latest(state: core.ServerState, vectors: Tensor, present: Tensor) -> dict[str, Tensor]:
    """Return new vectors [C, d] where a class is present [C], and else those of the state."""
    return {
        "vectors": vectors.where(present.unsqueeze(1), state["vectors"]),
        "present": present | state["present"],
    }
