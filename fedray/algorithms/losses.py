"""Losses and similarities that several methods share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedray.evaluation.protocols import Analysis


def softmax_loss(logits: Tensor, labels: Tensor, *, exclude_target: bool = False) -> Tensor:
    """Return -log(e^{g_y} / sum_c e^{g_c}), the batch's mean; optionally without the positive.

    With the label's class left out of the sum it may be negative, and
    cross-entropy = softplus(that) for every image.

    Args:
        logits: g [B, C].
        labels: y [B].
        exclude_target: sum over c != y.
    """
    if not exclude_target:
        return F.cross_entropy(logits, labels)
    target = F.one_hot(labels, logits.shape[1]).bool()
    others = torch.logsumexp(logits.masked_fill(target, -torch.inf), dim=1)
    return (others - logits[target]).mean()


def cosine_matrix(a: Tensor, b: Tensor) -> Tensor:
    """Return cosines [A, B] of the rows of a [A, d] and b [B, d]; 0, not NaN, for zero vectors.

    In float32 under autocast too, which would multiply in bfloat16: divided by a temperature of
    0.01, its rounding is a third of a logit.
    """
    with torch.autocast(a.device.type, enabled=False):
        a, b = (F.normalize(x.float(), dim=1, eps=1e-8) for x in (a, b))
        return a @ b.T


def similarity_analysis(vectors: Tensor, present: Tensor | None = None) -> Analysis:
    """Return cosines between the server's class prototypes, as FedTSP's Fig. 1 draws them.

    Args:
        vectors: [C, d].
        present: which classes have a prototype [C]; the others' cosines are 0. None: all have.

    Returns:
        The matrix `prototype_similarity`; nothing while no class has a prototype.
    """
    if present is not None:
        if not bool(present.any()):
            return Analysis()
        vectors = vectors * present.unsqueeze(1)
    return Analysis(matrices={"prototype_similarity": cosine_matrix(vectors, vectors)})


def kl_divergence(
    logits: Tensor, teacher: Tensor, over: Literal["images", "entries"] = "images"
) -> Tensor:
    """Return KL(softmax(teacher) || softmax(logits)), in float32 under autocast too.

    Args:
        logits: of the model that learns [B, C].
        teacher: logits that it learns from [B, C].
        over: the mean divides by B images, or by B * C entries, which is C times smaller.
    """
    log_p, log_q = (F.log_softmax(x.float(), dim=1) for x in (teacher, logits))
    divergence = F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
    return divergence if over == "images" else divergence / logits.shape[1]


def proximal_term(model: nn.Module, start: Mapping[str, Tensor], mu: float) -> Tensor:
    """Return mu/2 ||w - w_t||² over all parameters that are shared, Eq. (2) of FedProx."""
    pairs = [(w, start[name]) for name, w in model.named_parameters() if name in start]
    return mu / 2 * torch.stack([(w - w_t).square().sum() for w, w_t in pairs]).sum()
