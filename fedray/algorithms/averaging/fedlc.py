"""FedLC: FedAvg whose logits are calibrated by how many images of each class a client has.

Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022,
arXiv:2209.00189.

    calibrated logits -> calibrate
    calibrated loss   -> softmax_loss (algorithms/losses.py)

Predictions use the logits without calibration.

Deviations:
    - The paper's sum leaves out the label's own class; by default the loss is the cross-entropy
      over all classes, as public re-implementations have it: CE = softplus(the paper's form), so
      one decreases with the other. `exclude_target` is the paper's form.
    - Calibration takes each client's own class counts, as the paper; PFLlib takes those of all
      clients together.
    - A class without images counts as 1e-8 images (margin 100 tau), not as an infinite margin.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import Field, StrictBool
from torch import Tensor

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.losses import softmax_loss
from fedray.core import Batch, Client, ClientState, LocalContext, algorithms
from fedray.models import ClassifierOutput


@algorithms.add
class FedLC(FedAvg):
    """FedAvg with calibrated logits; clients count their classes, and never send the counts."""

    name = "fedlc"
    title = "FedLC"
    paper = "Zhang et al., ICML 2022, arXiv:2209.00189"
    one_model = True
    stacks = True

    class HParams(FedAvg.HParams):
        tau: float = Field(1.0, ge=0, le=1e6)
        """τ, weight of the margins; 0 is FedAvg, unless `exclude_target`. Usual: 1."""
        exclude_target: StrictBool = False
        """Leave the label's class out of the sum (paper)."""

    hp: HParams

    def begin(self, client: Client, state: ClientState, down: Any) -> LocalContext:
        """Begin like FedAvg, with n_i, the class counts of the client's images in this round."""
        local = super().begin(client, state, down)
        memory = {**local.state.memory, "counts": client.class_counts().to(client.device)}
        return replace(local, state=ClientState(local.state.model, memory))

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        logits = calibrate(output.logits, local.state.memory["counts"], self.hp.tau)
        return softmax_loss(logits, batch.labels, exclude_target=self.hp.exclude_target)


def calibrate(logits: Tensor, counts: Tensor, tau: float) -> Tensor:
    """Return g_c = f_c - tau * n_{i,c}^(-1/4); a class without images counts as 1e-8 images.

    Args:
        logits: f [B, C].
        counts: n_i [C].
        tau: weight of the margins.

    Returns:
        g [B, C].
    """
    margins = counts.float().clamp_min(1e-8).pow(-0.25)
    return logits - tau * margins
