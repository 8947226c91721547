"""FML: a shared small model and the client's own teach each other by deep mutual learning.

Shen et al., "Federated Mutual Learning", arXiv:2006.16765. The paper's meme model is the small
model here.

    L_local, L_meme -> mutual_loss
    D_KL            -> kl_divergence  (losses.py)
    mean of the meme models -> combined_rows, mean_of (core/sums.py)

Deviations:
    - D_KL is the mean over images, and each model is trained by its own loss alone. FedTSP's code,
      a fork of HtFLlib, averages over images and classes (`kl=entries`), lets the gradients of both
      losses reach both models (`teacher_gradients=true`) and clips gradients (`clip_norm=10`).
      `preset=official_code` sets all of these.
    - α = β = 0.5 as in FedTSP's comparison.
    - The small model's buffers are averaged as in FedAvg; FedTSP's code never averages them.

Buffers: those of the small model are averaged like weights; counters take the maximum. Those of the
client's own model stay with the client.
"""

from typing import Any

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray.algorithms.distillation.auxiliary_averaging import MutualLearning
from fedray.algorithms.losses import Over, kl_divergence
from fedray.core import Batch, LocalContext, method


@method("fml", "FML", "Shen et al., 2020, arXiv:2006.16765")
class FML(MutualLearning):
    """Mutual learning between the client's model and a small model, which is averaged."""

    alpha: float = Field(0.5, ge=0, le=1)
    """α, weight of the labels in the loss of the client's own model; the small model's outputs
    have weight 1 - α. 1 trains it as Local, unless `teacher_gradients` or `clip_norm` couple
    both models. FedTSP's comparison: 0.5."""
    beta: float = Field(0.5, ge=0, le=1)
    """β, weight of the labels in the loss of the small model; 1 trains the small model as
    FedAvg. FedTSP's comparison: 0.5."""

    def loss(self, output: Any, batch: Batch, local: LocalContext) -> Tensor:
        small, labels = output.auxiliary, batch.labels
        to_own, to_small = self.teacher(small).logits, self.teacher(output).logits
        own = mutual_loss(output.logits, to_own, labels, self.alpha, self.kl)
        return own + mutual_loss(small.logits, to_small, labels, self.beta, self.kl)


def mutual_loss(
    logits: Tensor, teacher: Tensor, labels: Tensor, weight: float, over: Over = "images"
) -> Tensor:
    """Return weight * CE + (1 - weight) * D_KL(teacher || model), L_local and L_meme.

    The weight is α or β; the other model's logits [B, C] are the teacher. See `kl_divergence`.
    """
    loss = weight * F.cross_entropy(logits, labels)
    return loss + (1 - weight) * kl_divergence(logits, teacher, over)
