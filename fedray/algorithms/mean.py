"""Means over clients, in the papers' notation.

p_k is the weight of client k, n_k the number of its training samples, and n_{k,c} the number of its
samples of class c. Sums are computed in double precision, so that the mean of many clients is exact
to the last digit of a float32.

    p_k                                        -> client_weights
    sum_k p_k w_k of named tensors             -> weighted_mean
    sum_k w_k v_k of vectors                   -> weighted_sum
    sum_k n_{k,c} v_{k,c} / n_c for each class -> by_class, class_average
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from fedray import core

Weights: TypeAlias = Literal["samples", "uniform"]
ClassWeights: TypeAlias = Literal["weighted", "uniform"]
SAMPLES = core.sent("statistics", "how many images the client has", number=int)
"""n_k, the client's number of training images."""


def client_weights(uploads: core.Uplinks, how: Weights) -> dict[int, float]:
    """Return p_k of each participant: n_k/n for "samples", 1/K for "uniform"."""
    sizes = {k: float(u.samples) if how == "samples" else 1.0 for k, u in uploads.items()}
    total = sum(sizes.values())
    return {client: size / total for client, size in sizes.items()}


def weighted_mean(
    weights: Mapping[int, float], tensors: Mapping[int, Mapping[str, Tensor]]
) -> Mapping[str, Tensor]:
    """Return w = sum_k p_k w_k, from p_k and w_k by client; integer counters take the maximum."""

    def terms(clients: Sequence[int]) -> core.StateTree:
        shares = torch.tensor([weights[k] for k in clients], dtype=torch.double)
        rows = core.doubled([tensors[k] for k in clients], "mean", shares, counters=True)
        return {"mean": rows}

    total = core.total_of({client: client for client in tensors}, terms)
    mean: Mapping[str, Tensor]
    mean = core.mean_of(total["mean"], 1.0, next(iter(tensors.values())))
    return mean


def weighted_sum(weights: Tensor, vectors: Tensor) -> Tensor:
    """Return sum_k w_k v_k of vectors [K, p], DP2FL's Eq. (4).

    Vectors of weight 0 are excluded, because they may not be finite, and 0 times NaN is NaN.
    """
    column = weights.unsqueeze(1)
    return (column * vectors.masked_fill(column == 0, 0)).sum(0)


def by_class(method: Any, upload: Any) -> core.Tensors:
    """Return the terms that a client adds to the mean of each class, in double precision.

    This is Eq. (6) of FedProto and FedTSP, with `class_average`. The method's `proto_agg` is
    "weighted", by n_{k,c}/n_c, or "uniform", over the clients that hold the class.

    Returns:
        Weighted vectors [C, d], their weights [C], and 1 for each class that the client holds [C].
    """
    held, classes = upload.classes, method.setting.num_classes
    counts = torch.ones(len(held)) if method.proto_agg == "uniform" else upload.counts
    weight = counts.double()
    vectors = torch.zeros(classes, upload.vectors.shape[1], dtype=torch.float64)
    vectors[held] = upload.vectors.double() * weight.unsqueeze(1)
    weights, holders = torch.zeros(2, classes, dtype=torch.float64)
    weights[held], holders[held] = weight, 1.0
    return {"vectors": vectors, "weights": weights, "holders": holders}


def class_average(sums: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the means [C, d] from the clients' summed terms, and the mask of classes with one [C].

    A mean is zero where no client holds the class.
    """
    means = sums["vectors"] / sums["weights"].clamp_min(1).unsqueeze(1)
    return means.float(), sums["holders"] > 0
