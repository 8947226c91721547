"""FedProx: FedAvg with a proximal term to the weights that a round starts from.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, arXiv:1812.06127.

    Eq. (2) -> proximal_term
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.config import LossWeight
from fedray.core import Batch, LocalContext, algorithms
from fedray.models import ClassifierOutput


@algorithms.add
class FedProx(FedAvg):
    """FedAvg with a proximal term."""

    name = "fedprox"
    title = "FedProx"
    paper = "Li et al., MLSys 2020, arXiv:1812.06127"
    dense = True

    class HParams(FedAvg.HParams):
        """FedProx's hyper-parameters."""

        mu: LossWeight = 0.001
        """μ, weight of the proximal term; 0 is FedAvg. FedGLCL's comparison: 1e-3 or 1e-4."""

    hp: HParams

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        """The supervised loss and the proximal term, Eq. (2)."""
        loss, mu = super().loss(output, batch, local), self.hp.mu
        return loss + proximal_term(local.model, local.down.weights, mu) if mu else loss


def proximal_term(model: nn.Module, start: Mapping[str, Tensor], mu: float) -> Tensor:
    """mu/2 ||w - w_t||² over all parameters that are shared, Eq. (2)."""
    pairs = [(w, start[name]) for name, w in model.named_parameters() if name in start]
    return mu / 2 * torch.stack([(w - w_t).square().sum() for w, w_t in pairs]).sum()
