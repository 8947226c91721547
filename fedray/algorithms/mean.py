"""Means over clients, in the papers' notation.

p_k is the weight of client k, n_k the number of its training samples, and n_{k,c} the number of its
samples of class c. Sums are computed in double precision, so that the mean of many clients is exact
to the last digit of a float32.

    p_k                                        -> client_weights
    sum_k p_k w_k of named tensors             -> Averaging, weighted_mean
    sum_k w_k v_k of vectors                   -> weighted_sum
    sum_k n_{k,c} v_{k,c} / n_c for each class -> class_sums, class_average; aggregate: both
    mean of the rows of each class             -> row_means
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from fedray import core

Weights: TypeAlias = Literal["samples", "uniform"]
ClassWeights: TypeAlias = Literal["weighted", "uniform"]


SAMPLES = core.sent(
    "statistics", "how many images the client has", number=int, check=core.count_of_samples
)
"""n_k, the client's number of training images."""


class Averaging(core.SummingMethod):
    """A method whose server averages named tensors of the uploads with the weights p_k.

    What is averaged, and what is added up without weights, follows from `up`; the means have the
    same names in the server's state.
    """

    @cached_property
    def combined(self) -> Mapping[str, str]:
        """How each field of an upload is combined, by name: "mean" or "sum"."""
        return {name: field.combine for name, field in self.up.declared.items() if field.combine}

    def weight(self, upload: Any) -> float:
        """Return n_k, the unnormalised weight of an upload; p_k = n_k / sum n_k."""
        return float(upload.samples)

    def summand(self, upload: Any) -> core.StateTree:
        """Return n_k, n_k w_k of each averaged mapping, and each mapping that is added up."""
        weight = self.weight(upload)
        sums = {
            name: core.weighed(getattr(upload, name), weight if how == "mean" else 1.0)
            for name, how in self.combined.items()
        }
        return {"weight": torch.tensor(weight).double(), **sums}

    def summands(self, uploads: Sequence[Any]) -> core.StateTree:
        if type(self).summand is not Averaging.summand:
            return super().summands(uploads)
        core.check_terms({name: getattr(uploads[0], name) for name in self.combined}, uploads[0])
        weights = [*map(self.weight, uploads)]
        ones = [1.0] * len(weights)
        sums = {
            name: core.weighed_rows(
                [getattr(upload, name) for upload in uploads], weights if how == "mean" else ones
            )
            for name, how in self.combined.items()
        }
        return {"weight": torch.tensor(weights).double(), **sums}

    def server_step(
        self, state: core.ServerState, total: core.Total, server: core.Server
    ) -> core.ServerState:
        weight, averaged = total["weight"], [n for n, how in self.combined.items() if how == "mean"]
        return {name: core.mean_of(total[name], weight, state[name]) for name in averaged}


def client_weights(uploads: core.Uplinks, how: Weights) -> dict[int, float]:
    """Return p_k of each participant: n_k/n for "samples", 1/K for "uniform"."""
    sizes = {k: float(u.samples) if how == "samples" else 1.0 for k, u in uploads.items()}
    total = sum(sizes.values())
    return {client: size / total for client, size in sizes.items()}


def weighted_mean(
    weights: Mapping[int, float], tensors: Mapping[int, Mapping[str, Tensor]]
) -> Mapping[str, Tensor]:
    """Return w = sum_k p_k w_k for every tensor; integer counters take the maximum.

    Args:
        weights: p_k by client.
        tensors: w_k by client and name.
    """
    weighted = {client: (named, weights[client]) for client, named in tensors.items()}
    total = core.total_of(lambda pair: {"mean": core.weighed(*pair)}, weighted)
    return core.mean_of(total["mean"], 1.0, next(iter(tensors.values())))


def weighted_sum(weights: Tensor, vectors: Tensor) -> Tensor:
    """Return sum_k w_k v_k of vectors [K, p], DP2FL's Eq. (4).

    Vectors of weight 0 are excluded, because they may not be finite, and 0 times NaN is NaN.
    """
    column = weights.unsqueeze(1)
    return (column * vectors.masked_fill(column == 0, 0)).sum(0)


# --- means per class -----------------------------------------------------------------------------


def aggregate(uploads: core.Uplinks, classes: int, how: ClassWeights) -> tuple[Tensor, Tensor]:
    """Return the mean of the clients' vectors of each class, for methods with single uploads.

    Args:
        uploads: uploads with `classes`, `vectors` and `counts`, by client.
        classes: C.
        how: "weighted" by n_{k,c}/n_c; "uniform" over the clients that hold the class.

    Returns:
        Means [C, d], zero where no client holds the class, and the mask of the classes that at
        least one client holds [C].
    """
    total = core.total_of(lambda upload: class_sums(upload, classes, how), uploads)
    return class_average(total.sums)


def class_sums(upload: Any, classes: int, how: ClassWeights) -> core.Tensors:
    """Return the terms that a client adds to the mean of each class, in double precision.

    The mean is Eq. (6) of FedProto and FedTSP.

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


def class_average(sums: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return means [C, d] and mask [C] of `aggregate` from the clients' summed `class_sums`."""
    means = sums["vectors"] / sums["weights"].clamp_min(1).unsqueeze(1)
    return means.float(), sums["holders"] > 0


def row_means(rows: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean row of each class [C, d], zero without rows, and the row counts [C].

    Args:
        rows: vectors [M, d].
        labels: the class of each row [M].
        classes: C.
    """
    counts = torch.bincount(labels, minlength=classes)
    sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows)
    return sums / counts.clamp_min(1).unsqueeze(1), counts
