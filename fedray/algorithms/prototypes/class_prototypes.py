"""What prototype methods have in common: their payloads, and operations on class prototypes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.algorithms.losses import similarity_analysis
from fedray.core import (
    Client,
    ClientState,
    LocalContext,
    LocalTraining,
    Payload,
    PayloadTypes,
    Server,
    ServerState,
    Trained,
    payload_field,
)
from fedray.evaluation.protocols import Analysis
from fedray.models import Classifier


@dataclass(frozen=True)
class ClassFeatures(Payload):
    """Mean features of the classes that a client holds.

    Attributes:
        classes: class numbers [c].
        vectors: mean features [c, d], not normalised.
    """

    classes: Tensor = payload_field(
        "statistics", "c", dtype=torch.int64, reveals="which classes the client holds"
    )
    vectors: Tensor = payload_field(
        "prototypes",
        "c d",
        reveals="the mean features of its classes; of a class with one image, the features of that "
        "image, from which a reader with the model can reconstruct it",
    )


@dataclass(frozen=True)
class LocalPrototypes(ClassFeatures):
    """Mean features of a client's classes, and how many images they are means of.

    Attributes:
        counts: training samples per class [c].
    """

    counts: Tensor = payload_field(
        "statistics", "c", dtype=torch.int64, reveals="how many images of each class it has"
    )


@dataclass(frozen=True)
class GlobalPrototypes(Payload):
    """The server's prototypes.

    Attributes:
        vectors: [C, d]; rows of absent classes are zero.
        present: which classes have a prototype [C], bool.
    """

    vectors: Tensor = payload_field(
        "prototypes",
        "C d",
        reveals="the mean features of every class over the clients; of a class that one client "
        "holds, that client's own",
    )
    present: Tensor = payload_field("statistics", "C", dtype=torch.bool)


class PrototypeSharing(LocalTraining):
    """Local training of personal models; only their class prototypes are uploaded."""

    uploads: ClassVar[PayloadTypes] = (LocalPrototypes,)

    def analyse(self, state: ServerState, server: Server) -> Analysis:
        """How alike the classes' prototypes are."""
        return similarity_analysis(state["vectors"], state["present"])

    def finish(self, local: LocalContext, trained: Trained) -> tuple[LocalPrototypes, ClientState]:
        """Upload the client's prototypes; keep the model."""
        _, kept = super().finish(local, trained)
        return local_prototypes(local.client, local.model), kept


def local_prototypes(client: Client, model: Classifier) -> LocalPrototypes:
    """FedTSP Eq. (5): P_{i,c} is the mean feature of client i's training images of class c."""
    return LocalPrototypes(*client.class_means(model))


def uploaded_batches(
    uplinks: Mapping[int, ClassFeatures],
    server: Server,
    purpose: str,
    *,
    epochs: int,
    batch_size: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of what clients uploaded, on the server's device, epoch after epoch.

    Args:
        uplinks: mean features by client id.
        server: draws the order, another one in every epoch.
        purpose: of the random stream.
        epochs: passes over all uploads.
        batch_size: uploaded vectors in a batch.

    Yields:
        Vectors [B, d] and their classes [B].
    """
    vectors = torch.cat([upload.vectors for upload in uplinks.values()]).to(server.device)
    labels = torch.cat([upload.classes for upload in uplinks.values()]).to(server.device)
    random = server.streams.torch(purpose, round_=server.round)
    for _ in range(epochs):
        order = torch.randperm(len(labels), generator=random).to(server.device)
        for index in torch.split(order, batch_size):
            yield vectors[index], labels[index]


def prototype_distance(features: Tensor, labels: Tensor, prototypes: GlobalPrototypes) -> Tensor:
    """Mean squared distance of features [B, d] to their class's prototype, over all B*d entries.

    A sample whose class has no prototype counts as zero (FedProto's index set).
    """
    target = prototypes.vectors[labels]
    present = prototypes.present[labels].unsqueeze(1)
    return F.mse_loss(features, torch.where(present, target, features))


def no_prototypes(server: Server) -> dict[str, Tensor]:
    """A server that has not seen any prototype: zeros [C, d], none present."""
    classes, d = server.setting.num_classes, server.setting.feature_dim
    return {"vectors": torch.zeros(classes, d), "present": torch.zeros(classes, dtype=torch.bool)}
