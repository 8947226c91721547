"""Losses and similarities that several methods use."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedray.evaluation.protocols import Analysis

Over: TypeAlias = Literal["images", "entries"]


def cosine_matrix(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosines [A, B] of the rows of a [A, d] and b [B, d]; 0, not NaN, for zero vectors.

    FedGLCL's Eq. (6), of images and texts. Computes in float32 under autocast too. In bfloat16, the
    rounding error divided by a temperature of 0.01 is a third of a logit.
    """
    with torch.autocast(a.device.type, enabled=False):
        a, b = (F.normalize(x.float(), dim=1, eps=1e-8) for x in (a, b))
        return a @ b.T


def similarity_analysis(vectors: Tensor, present: Tensor | None = None) -> Analysis:
    """Return the cosines between the server's class prototypes [C, d], as in FedTSP's Fig. 1.

    Cosines are 0 for classes that are not `present` [C]; without any present class, there is no
    matrix `prototype_similarity`.
    """
    if present is not None:
        if not bool(present.any()):
            return Analysis()
        vectors = vectors * present.unsqueeze(1)
    return Analysis(matrices={"prototype_similarity": cosine_matrix(vectors, vectors)})


def kl_divergence(
    logits: Tensor, teacher: Tensor, over: Over = "images", temperature: float = 1.0
) -> Tensor:
    """Return KL(softmax(teacher / T) || softmax(logits / T)), in float32 under autocast too.

    Logits are [B, C]. The sum is divided by B, the "images", or by B * C, the "entries"; it is not
    multiplied by T².
    """
    log_p, log_q = (F.log_softmax(x.float() / temperature, dim=1) for x in (teacher, logits))
    divergence = F.kl_div(log_q, log_p, reduction="batchmean", log_target=True)
    return divergence if over == "images" else divergence / logits.shape[1]


def proximal_term(model: nn.Module, start: Mapping[str, Tensor], mu: float) -> Tensor:
    """Return mu/2 ||w - w_t||² over the model's parameters named in `start`, FedProx's Eq. (2)."""
    pairs = [(w, start[name]) for name, w in model.named_parameters() if name in start]
    return mu / 2 * torch.stack([(w - w_t).square().sum() for w, w_t in pairs]).sum()
