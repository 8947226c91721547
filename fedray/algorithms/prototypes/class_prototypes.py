"""What prototype methods have in common: their payloads, and operations on class prototypes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.client import Client, Samples
from fedray.comm import Payload, travels
from fedray.models import Classifier

Aggregation = Literal["weighted", "uniform", "literal"]


@dataclass(frozen=True)
class LocalPrototypes(Payload):
    """Mean features of the classes that a client holds.

    Attributes:
        classes: class numbers [c].
        vectors: mean features [c, d], not normalised.
        counts: training samples per class [c].
    """

    classes: Tensor = travels("statistics", "c")
    vectors: Tensor = travels("prototypes", "c d")
    counts: Tensor = travels("statistics", "c")


@dataclass(frozen=True)
class GlobalPrototypes(Payload):
    """The server's prototypes.

    Attributes:
        vectors: [C, d]; rows of absent classes are zero.
        present: which classes have a prototype [C], bool.
    """

    vectors: Tensor = travels("prototypes", "C d")
    present: Tensor = travels("statistics", "C")


def local_prototypes(client: Client, model: Classifier) -> LocalPrototypes:
    """FedTSP Eq. (5): P_{i,c} is the mean feature of client i's training images of class c."""
    return LocalPrototypes(*client.class_means(model))


def local_features(client: Client, model: Classifier) -> tuple[Tensor, Tensor]:
    """Features [n, d] and labels [n] of a client's training images, in evaluation mode."""
    labels = torch.from_numpy(client.train.all_labels[client.train.index])
    return features_of(client, model, client.train), labels.to(client.device)


@torch.no_grad()
def features_of(client: Client, model: Classifier, samples: Samples) -> Tensor:
    """Features [n, d] of a client's images of one split, in evaluation mode; n may be 0."""
    model.eval()
    none = torch.zeros(0, client.setting.feature_dim, device=client.device)
    parts = [model(batch.images).features.float() for batch in client.batches(samples)]
    return torch.cat([none, *parts])


def aggregate(
    uplinks: Mapping[int, LocalPrototypes], classes: int, how: Aggregation
) -> tuple[Tensor, Tensor]:
    """Average the clients' prototypes class by class.

    Args:
        uplinks: local prototypes by client id.
        classes: C.
        how: weighted by n_{i,c}/n_c; uniform over the clients that hold the class; literal is
            FedTSP's Eq. (6) as printed, weighted and divided by the number of holders again.

    Returns:
        Prototypes [C, d] (zero where absent) and which classes are present [C].
    """
    some = next(iter(uplinks.values())).vectors
    sums = torch.zeros(classes, some.shape[1])
    weights = torch.zeros(classes)
    holders = torch.zeros(classes)
    for upload in uplinks.values():
        weight = torch.ones(len(upload.classes)) if how == "uniform" else upload.counts.float()
        sums.index_add_(0, upload.classes, upload.vectors * weight.unsqueeze(1))
        weights.index_add_(0, upload.classes, weight)
        holders.index_add_(0, upload.classes, torch.ones_like(weight))
    means = sums / weights.clamp_min(1e-12).unsqueeze(1)
    if how == "literal":
        means = means / holders.clamp_min(1).unsqueeze(1)
    return means, holders > 0


def prototype_distance(features: Tensor, labels: Tensor, prototypes: GlobalPrototypes) -> Tensor:
    """Mean squared distance of features [B, d] to their class's prototype, over all B*d entries.

    A sample whose class has no prototype counts as zero (FedProto's index set).
    """
    target = prototypes.vectors.to(features.device)[labels]
    present = prototypes.present.to(features.device)[labels].unsqueeze(1)
    return F.mse_loss(features, torch.where(present, target, features))


def cosine_matrix(a: Tensor, b: Tensor) -> Tensor:
    """Cosines [A, B] between the rows of a [A, d] and b [B, d]; zero vectors give 0, not NaN."""
    return F.normalize(a.float(), dim=1, eps=1e-8) @ F.normalize(b.float(), dim=1, eps=1e-8).T
