"""FedProx: FedAvg whose clients do not stray from where they started.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, arXiv:1812.06127.

    Eq. (2) -> proximal_term
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor, nn

from fedray.algorithms.fedavg import FedAvg, GlobalModel
from fedray.algorithms.registry import algorithms
from fedray.client import Batch, ClientState
from fedray.models import Classifier


@algorithms.add
class FedProx(FedAvg):
    """FedAvg with a proximal term."""

    name = "fedprox"
    paper = "Li et al., MLSys 2020, arXiv:1812.06127"
    shares = "whole models"
    dense = True

    class HParams(FedAvg.HParams):
        """FedProx's hyper-parameters."""

        mu: float = Field(0.001, ge=0)
        """μ, weight of the proximal term; 0 is FedAvg. FedGLCL's comparison: 1e-3 or 1e-4."""

    def local_loss(
        self, model: Classifier, batch: Batch, down: GlobalModel, state: ClientState
    ) -> Tensor:
        """The supervised loss and the proximal term, Eq. (2)."""
        loss = super().local_loss(model, batch, down, state)
        return loss + proximal_term(model, down.weights, self.hp.mu) if self.hp.mu else loss


def proximal_term(model: nn.Module, start: Mapping[str, Tensor], mu: float) -> Tensor:
    """mu/2 ||w - w_t||² over all parameters that are shared, Eq. (2)."""
    pairs = [(w, start[name].to(w)) for name, w in model.named_parameters() if name in start]
    return mu / 2 * torch.stack([(w - w_t).square().sum() for w, w_t in pairs]).sum()
