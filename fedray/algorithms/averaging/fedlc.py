"""FedLC: FedAvg with logits that are calibrated by the client's class counts.

Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022,
arXiv:2209.00189.

    calibrated logits -> calibrate
    calibrated loss   -> FedLC.loss

Predictions use the logits without calibration.

Deviations:
    - The loss is the cross-entropy over all classes, as in public re-implementations. The paper's
      sum excludes the label's class. Both decrease together, since the cross-entropy is
      softplus(the paper's loss).
    - Each client is calibrated by its own class counts, as in the paper; PFLlib uses the counts of
      all clients together.
    - A class without images counts as 1e-8 images, a margin of 100 tau; its margin would otherwise
      be infinite.
"""

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import Batch, ClassifierOutput, LocalContext, method


@method("fedlc", "FedLC", "Zhang et al., ICML 2022, arXiv:2209.00189")
class FedLC(FedAvg):
    """FedAvg with logits calibrated by the client's class counts, which the client never sends."""

    dense = False

    tau: float = Field(1.0, ge=0, le=1e6)
    """τ, weight of the margins; 0 gives FedAvg. Usual: 1."""

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        logits = calibrate(output.logits, local.client.class_counts, self.tau)
        return F.cross_entropy(logits, batch.labels)


def calibrate(logits: Tensor, counts: Tensor, tau: float) -> Tensor:
    """Return g_c = f_c - tau * n_{i,c}^(-1/4), from logits f [B, C] and class counts n_i [C].

    A class without images counts as 1e-8 images.
    """
    margins = counts.float().clamp_min(1e-8).pow(-0.25)
    return logits - tau * margins
