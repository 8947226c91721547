"""FedBN: everything is averaged but the normalisation layers, which stay with their client.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
ICLR 2021, arXiv:2102.07623.

    Algorithm 1, aggregation -> FedBN.shared

Deviations:
    - Normalisation layers are found by their type. The official code asks for "bn" in the name,
      which misses those of residual shortcuts.
    - Weights by samples, as all methods here; the official code's 1/K is `weights: uniform`.

Buffers: running statistics and counters of normalisation layers stay, like their parameters.
"""

from __future__ import annotations

from collections.abc import Collection

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import algorithms
from fedray.models import Classifier, normalisation_tensors, tensor_names


@algorithms.add
class FedBN(FedAvg):
    """FedAvg with local normalisation."""

    name = "fedbn"
    title = "FedBN"
    paper = "Li et al., ICLR 2021, arXiv:2102.07623"
    travels = "models without normalisation"
    dense = True

    def shared(self, model: Classifier) -> Collection[str]:
        """Return all names but those of normalisation layers (Algorithm 1)."""
        return tensor_names(model) - normalisation_tensors(model)
