"""FedBN: all layers are averaged except normalisation layers, which stay with their client.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
ICLR 2021, arXiv:2102.07623.

    Algorithm 1, aggregation -> FedBN.shared

Deviations:
    - Normalisation layers are identified by their type. The official code looks for "bn" in the
      name, which misses the layers of residual shortcuts.
    - Clients are weighted by samples, as in all methods here; the official code weights them
      equally (`weights=uniform`).

Buffers: running statistics and counters of normalisation layers stay with the client, like the
layers' parameters.
"""

from collections.abc import Collection

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import Classifier, method
from fedray.models import normalisation_tensors, tensor_names


@method("fedbn", "FedBN", "Li et al., ICLR 2021, arXiv:2102.07623")
class FedBN(FedAvg):
    """FedAvg with personal normalisation layers."""

    def shared(self, model: Classifier) -> Collection[str]:
        """Return all names except those of normalisation layers (Algorithm 1)."""
        return tensor_names(model) - normalisation_tensors(model)
