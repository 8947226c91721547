"""FML: a shared small model and the client's own teach each other, by deep mutual learning.

Shen et al., "Federated Mutual Learning", arXiv:2006.16765; what the paper calls the meme model is
the small model here.

    L_local, L_meme -> mutual_loss
    D_KL            -> kl_divergence  (losses.py)
    mean of the meme models -> weighted_mean  (mean.py)

Deviations:
    - D_KL is the mean over images, and each model follows its own loss alone. The official code of
      FedTSP, a fork of HtFLlib, takes the mean over images and classes (`kl=entries`), lets
      gradients of both losses reach both models (`teacher_gradients=true`) and clips them
      (`clip_norm=10`); `preset=official_code` is all of these.
    - α = β = 0.5 is FedTSP's comparison.
    - There the small model's buffers are never averaged; here they are, as FedAvg does it.

Buffers: those of the small model are averaged like weights, counters take the maximum; those of the
own model stay with the client.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedray.algorithms.distillation.auxiliary_averaging import (
    AuxiliaryAveraging,
    MutualLearning,
)
from fedray.algorithms.losses import kl_divergence
from fedray.core import Batch, LocalContext, algorithms
from fedray.models import AuxiliaryOutput, ClassifierOutput


@algorithms.add
class FML(MutualLearning, AuxiliaryAveraging):
    """Mutual learning of the client's model with a small one, which is averaged."""

    name = "fml"
    title = "FML"
    paper = "Shen et al., 2020, arXiv:2006.16765"

    class HParams(MutualLearning.HParams, AuxiliaryAveraging.HParams):
        alpha: float = Field(0.5, ge=0, le=1)
        """α, weight of the labels in the own model's loss; 1 - α is that of the small model's
        outputs. 1: the own model is Local. FedTSP's comparison: 0.5."""
        beta: float = Field(0.5, ge=0, le=1)
        """β, the same in the small model's loss; 1: the small model is FedAvg."""

    hp: HParams

    def loss(self, output: ClassifierOutput, batch: Batch, local: LocalContext) -> Tensor:
        assert isinstance(output, AuxiliaryOutput)
        own, small, hp = output, output.auxiliary, self.hp
        to_own, to_small = self.teacher(small).logits, self.teacher(own).logits
        return mutual_loss(own.logits, to_own, batch.labels, hp.alpha, hp.kl) + mutual_loss(
            small.logits, to_small, batch.labels, hp.beta, hp.kl
        )


def mutual_loss(
    logits: Tensor,
    teacher: Tensor,
    labels: Tensor,
    weight: float,
    over: Literal["images", "entries"] = "images",
) -> Tensor:
    """Return weight * CE + (1 - weight) * D_KL(teacher || model), L_local and L_meme.

    Args:
        logits: of the model that learns [B, C].
        teacher: logits of the other model [B, C].
        labels: [B].
        weight: α or β, in [0, 1].
        over: see `kl_divergence`.
    """
    loss = weight * F.cross_entropy(logits, labels)
    return loss if weight == 1 else loss + (1 - weight) * kl_divergence(logits, teacher, over)
