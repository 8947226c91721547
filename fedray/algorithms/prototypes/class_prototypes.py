"""What prototype methods have in common: their payloads, and operations on class prototypes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

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
    Tensors,
    Trained,
    payload_field,
    total_of,
)
from fedray.evaluation.protocols import Analysis
from fedray.models import Classifier

Aggregation = Literal["weighted", "uniform", "literal"]


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


def aggregate(
    uplinks: Mapping[int, LocalPrototypes], classes: int, how: Aggregation
) -> tuple[Tensor, Tensor]:
    """Average the clients' prototypes class by class.

    Args:
        uplinks: local prototypes by client id.
        classes: C.
        how: weighted by n_{i,c}/n_c; uniform over the clients that hold the class; literal is
            FedTSP's Eq. (6) as printed, weighted and then divided by the number of holders.

    Returns:
        Prototypes [C, d] (zero where absent) and which classes are present [C].
    """
    total = total_of(lambda upload: class_sums(upload, classes, how), uplinks)
    return class_means(total.sums, how)


def class_sums(upload: LocalPrototypes, classes: int, how: Aggregation) -> Tensors:
    """What a client's prototypes add to each class's mean (`aggregate`), in double precision.

    Returns:
        Weighted vectors [C, d], their weights [C], and 1 for each class that the client holds [C].
    """
    held, count = upload.classes, len(upload.classes)
    weight = torch.ones(count).double() if how == "uniform" else upload.counts.double()
    vectors = torch.zeros(classes, upload.vectors.shape[1], dtype=torch.float64)
    vectors[held] = upload.vectors.double() * weight.unsqueeze(1)
    weights, holders = torch.zeros(2, classes, dtype=torch.float64)
    weights[held], holders[held] = weight, 1.0
    return {"vectors": vectors, "weights": weights, "holders": holders}


def class_means(sums: Mapping[str, Tensor], how: Aggregation) -> tuple[Tensor, Tensor]:
    """What `class_sums` of all clients come to; see `aggregate`."""
    means = sums["vectors"] / sums["weights"].clamp_min(1).unsqueeze(1)
    if how == "literal":
        means = means / sums["holders"].clamp_min(1).unsqueeze(1)
    return means.float(), sums["holders"] > 0


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
    target = prototypes.vectors.to(features.device)[labels]
    present = prototypes.present.to(features.device)[labels].unsqueeze(1)
    return F.mse_loss(features, torch.where(present, target, features))


def no_prototypes(server: Server) -> dict[str, Tensor]:
    """A server that has not seen any prototype: zeros [C, d], none present."""
    classes, d = server.setting.num_classes, server.setting.feature_dim
    return {"vectors": torch.zeros(classes, d), "present": torch.zeros(classes, dtype=torch.bool)}
