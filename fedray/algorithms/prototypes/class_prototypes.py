"""Base classes, payloads and operations of methods that exchange class prototypes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray import core
from fedray.algorithms.losses import similarity_analysis
from fedray.algorithms.mean import by_class, class_average
from fedray.algorithms.server_training import train_on_server
from fedray.core import Server, ServerState
from fedray.evaluation.protocols import Analysis

CLASS_FEATURES = {
    "classes": core.sent("statistics", "which classes the client holds", "c", dtype=torch.int64),
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
    "counts": core.sent("statistics", "how many images of each class", "c", dtype=torch.int64),
}
"""The same with the client's number of training samples of each class [c]."""


class ClassAveraging(core.LocalTraining):
    """A method whose server keeps the mean of the clients' vectors of each class, Eq. (6).

    A class without uploads keeps its last mean.
    """

    down: ClassVar[Any] = {
        "vectors": core.sent(
            "prototypes", "mean features of a class over its clients, which may be one", "C d"
        ),
        "present": core.sent("statistics", "", "C", dtype=torch.bool),
    }
    """The server's vectors, zero for absent classes, and the mask of those present [C]."""

    def init_server(self, server: Server) -> ServerState:
        """Return zero vectors, [C, d] or as declared, and no class present."""
        sizes = {"C": self.setting.num_classes, "d": self.setting.feature_dim}
        vectors = torch.zeros([sizes[axis] for axis in self.down["vectors"].axes.split()])
        present = torch.zeros(len(vectors), dtype=torch.bool)
        return {**super().init_server(server), "vectors": vectors, "present": present}

    def server_step(self, state: ServerState, total: core.Total, server: Server) -> ServerState:
        vectors, present = class_average(total["vectors"])
        return {
            **super().server_step(state, total, server),
            "vectors": vectors.where(present.unsqueeze(1), state["vectors"]),
            "present": present | state["present"],
        }


class PrototypeSharing(core.LocalTraining):
    """Local training whose clients upload class prototypes, beside what else they upload."""

    up = LOCAL_PROTOTYPES

    def analyse(self, state: ServerState, server: Server) -> Analysis:
        return similarity_analysis(state["vectors"], state.get("present"))

    def finish(self, local: core.LocalContext, trained: core.Trained) -> core.StepResult:
        upload, state = super().finish(local, trained)
        return {**(upload or {}), **local_prototypes(local.client, local.model)}, state


class PrototypeAveraging(PrototypeSharing, ClassAveraging):
    """Averaging of class prototypes, which clients upload and receive."""


def local_prototypes(client: core.Client, model: core.Classifier) -> dict[str, Tensor]:
    """Return P_{i,c}, mean features of client i's images of each class c, FedTSP's Eq. (5)."""
    return dict(zip(LOCAL_PROTOTYPES, client.class_means(model), strict=True))


def prototype_loss(
    output: core.ClassifierOutput, labels: Tensor, prototypes: Any, weight: float
) -> Tensor:
    """Return cross-entropy + λ * distance of features [B, d] to their classes' prototypes, Eq. (7).

    The distance is a mean squared error over batch and width. A sample whose class has no prototype
    counts as zero (FedProto's index set). `prototypes` has `vectors` [C, d] and `present` [C].
    """
    features, present = output.features.float(), prototypes.present[labels].unsqueeze(1)
    targets = torch.where(present, prototypes.vectors[labels], features)
    return F.cross_entropy(output.logits, labels) + weight * F.mse_loss(features, targets)


# --- training on the server ----------------------------------------------------------------------


class ServerTraining(core.Algorithm):
    """A method whose server trains on uploaded mean features (FedGH, FedTGP)."""

    server_epochs: core.Epochs = 100
    """Passes over the uploaded vectors per round. FedTSP's and FedTGP's code: 100; FedGH: 1."""
    server_batch_size: int | None = Field(None, ge=1, le=10**6)
    """Number of uploaded vectors per server step; null: the clients' batch size (FedTSP's and
    FedTGP's code). FedGH's paper: 1."""
    server_lr: core.LearningRate = 0.01
    """Learning rate of the server's SGD. FedTSP's supplementary: 0.01; FedTGP's code: clients'."""

    def train_on_uploads(
        self,
        tensors: Mapping[str, Tensor],
        loss: Callable[[core.Tensors, tuple[Tensor, Tensor]], Tensor],
        uplinks: core.Uplinks,
        server: Server,
    ) -> core.Tensors:
        """Train tensors by SGD on batches of the clients' mean features, in random order.

        `loss` gets the tensors, and vectors [B, d] with their classes [B].
        """
        vectors = torch.cat([upload.vectors for upload in uplinks.values()]).to(server.device)
        labels = torch.cat([upload.classes for upload in uplinks.values()]).to(server.device)
        random = server.streams.torch(f"{self.name}_batches", round_=server.round)
        size = self.server_batch_size or self.setting.training.batch_size
        orders = (torch.randperm(len(labels), generator=random) for _ in range(self.server_epochs))
        parts = (part for order in orders for part in torch.split(order.to(server.device), size))
        batches = ((vectors[part], labels[part]) for part in parts)
        return train_on_server(server, tensors, loss, batches, self.server_lr)[0]
