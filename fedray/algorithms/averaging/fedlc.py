"""FedLC: FedAvg whose logits are calibrated by how many images of each class a client has.

Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022,
arXiv:2209.00189.

    calibrated logits -> calibrate
    calibrated loss   -> softmax_loss (algorithms/losses.py)

Predictions use the logits as they are.

Deviations:
    - The paper's sum leaves out the label's own class; by default the loss is the cross-entropy
      over all classes, as public re-implementations have it: CE = softplus(the paper's form), so
      both fall together. `exclude_target` is the paper's form.
    - A class without images counts as 1e-8 images (margin 100 tau), not as an infinite margin.
"""

from __future__ import annotations

import torch
from pydantic import Field, StrictBool
from torch import Tensor

from fedray.algorithms.fedavg import FedAvg
from fedray.algorithms.losses import softmax_loss
from fedray.algorithms.registry import algorithms
from fedray.client import Client, ClientState
from fedray.models import ClassifierOutput

COUNTS = "counts"


@algorithms.add
class FedLC(FedAvg):
    """FedAvg with calibrated logits; clients remember their class counts, which never travel."""

    name = "fedlc"
    paper = "Zhang et al., ICML 2022, arXiv:2209.00189"
    shares = "whole models"

    class HParams(FedAvg.HParams):
        """FedLC's hyper-parameters."""

        tau: float = Field(1.0, ge=0)
        """τ, weight of the margins; 0 is FedAvg, unless `exclude_target`. Usual: 1."""
        exclude_target: StrictBool = False
        """Leave the label's class out of the sum (paper)."""

    def init_client(self, client: Client) -> ClientState:
        """As FedAvg, and the class counts n_i."""
        before = super().init_client(client)
        return ClientState(before.model, {**before.memory, COUNTS: class_counts(client)})

    def supervised_loss(
        self, output: ClassifierOutput, labels: Tensor, state: ClientState
    ) -> Tensor:
        """The calibrated loss."""
        logits = calibrate(output.logits, state.memory[COUNTS], self.hp.tau)
        return softmax_loss(logits, labels, exclude_target=self.hp.exclude_target)


def class_counts(client: Client) -> Tensor:
    """n_{i,c}: how many training images of each class a client has [C], int64."""
    labels = torch.from_numpy(client.train.all_labels[client.train.index])
    return torch.bincount(labels, minlength=client.setting.num_classes)


def calibrate(logits: Tensor, counts: Tensor, tau: float) -> Tensor:
    """g_c = f_c - tau * n_{i,c}^(-1/4); a class without images counts as 1e-8 images.

    Args:
        logits: f [B, C].
        counts: n_i [C].
        tau: weight of the margins.

    Returns:
        g [B, C].
    """
    margins = counts.float().clamp_min(1e-8).pow(-0.25)
    return logits - tau * margins.to(logits.device)
