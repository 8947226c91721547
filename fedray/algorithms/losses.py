"""Losses on logits that several methods share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def softmax_loss(logits: Tensor, labels: Tensor, *, exclude_target: bool = False) -> Tensor:
    """-log(e^{g_y} / sum_c e^{g_c}), mean over the batch: cross-entropy, or without its positive.

    With the label's class left out of the sum it may be negative, and
    cross-entropy = softplus(that) for every image.

    Args:
        logits: g [B, C].
        labels: y [B].
        exclude_target: sum over c != y.
    """
    if not exclude_target:
        return F.cross_entropy(logits, labels)
    own = F.one_hot(labels, logits.shape[1]).bool()
    others = torch.logsumexp(logits.masked_fill(own, -torch.inf), dim=1)
    return (others - logits[own]).mean()
