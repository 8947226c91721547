"""FedOTP: a shared and an own context, matched with image patches by unbalanced optimal transport.

Li et al., "Global and Local Prompts Cooperation via Optimal Transport for Federated Learning",
CVPR 2024, arXiv:2403.00041. Official code: github.com/HongxiaLee/FedOTP.

    cost C = 1 - F G_k^T, logits <T, F G_k^T> -> TransportClip.logits
    scaling iterations for T -> transport_plan
    averaging of p_g alone -> PairedContexts.shared  (algorithms/paired_contexts.py)

Deviations:
    - The iterations run on logarithms, in float32: exp(-C/eps) underflows for a small eps. They end
      when log v, not v, changes by less than `threshold` in the mean, so that the end does not
      depend on the scale of v.
    - The first round has as many participants as any other; official: all clients.
    - No random crops, see promptfl.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import torch
from pydantic import Field
from torch import Tensor

from fedray.algorithms.paired_contexts import PairedClip, PairedContexts
from fedray.algorithms.registry import algorithms
from fedray.models.clip import FrozenClip, PromptedClip, Stage

AT_ONCE = 2**22
"""Entries of the cost that are solved at once; bounds the memory."""


class TransportHParams(PairedContexts.HParams):
    """FedOTP's hyper-parameters."""

    gamma: float = Field(0.8, gt=0, le=1)
    """γ, the mass that is moved; 1 is balanced transport, as in PLOT. Paper: 0.8."""
    epsilon: float = Field(0.1, gt=0)
    """ε, weight of the entropy. Official: 0.1 with ViT-B/16, 0.01 with ResNet-50."""
    threshold: float = Field(1e-3, gt=0)
    """Mean change of log v at which the iterations end. Official (of v): 1e-3."""
    max_iterations: int = Field(100, ge=1)
    """Most iterations. Official: 100."""


class TransportClip(PairedClip):
    """Two contexts whose text features share the patches of an image.

    Args:
        clip: the frozen CLIP.
        names: of the classes.
        hp: lengths and knobs of the transport.
    """

    reads: Stage = "patches"

    def __init__(self, clip: FrozenClip, names: Sequence[str], hp: TransportHParams) -> None:
        super().__init__(clip, names, hp.length, hp.words)
        self.hp = hp

    def logits(self, image: Tensor, text: Tensor) -> Tensor:
        """exp(logit_scale) <T, F G_k^T> for patches F [B, M, d] and texts G [N, K, d]: [B, K].

        No gradient passes through T.
        """
        images = max(1, AT_ONCE // (image.shape[1] * text.shape[0] * text.shape[1]))
        with torch.autocast(image.device.type, enabled=False):
            parts = torch.split(image, images)
            return torch.cat([self._logits(part, text.float()) for part in parts])

    def _logits(self, image: Tensor, text: Tensor) -> Tensor:
        cosines = torch.einsum("bmd,nkd->bknm", image, text)
        hp = self.hp
        plan = transport_plan(
            1 - cosines.detach(), hp.gamma, hp.epsilon, hp.threshold, hp.max_iterations
        )
        return self.clip.scale * (plan * cosines).sum((-2, -1))


@torch.no_grad()
def transport_plan(
    cost: Tensor, gamma: float, epsilon: float, threshold: float = 1e-3, iterations: int = 100
) -> Tensor:
    """T of entropic transport of mass gamma: columns carry gamma/N each, rows at most 1/M each.

    With Q = exp(-C/eps): u = min(1/M / (Q v), 1), v = gamma/N / (Q^T u), T = diag(u) Q diag(v).

    Args:
        cost: C, with the M rows last: [..., N, M].
        gamma: in (0, 1].
        epsilon: of the entropy.
        threshold: mean change of log v at which the iterations end.
        iterations: most of them.

    Returns:
        T laid out as `cost`.
    """
    texts, patches = cost.shape[-2:]
    kernel = cost / -epsilon
    row, column = -log(patches), log(gamma / texts)
    log_v = kernel.new_zeros(kernel.shape[:-1])
    for _ in range(iterations):
        log_u = (row - (kernel + log_v.unsqueeze(-1)).logsumexp(-2)).clamp(max=0)
        before = log_v
        log_v = column - (kernel + log_u.unsqueeze(-2)).logsumexp(-1)
        if float((log_v - before).abs().mean()) < threshold:
            break
    return (kernel + log_u.unsqueeze(-2) + log_v.unsqueeze(-1)).exp()


@algorithms.add
class FedOTP(PairedContexts):
    """FedAvg of one of two contexts that transport matches with patches."""

    name = "fedotp"
    paper = "Li et al., CVPR 2024, arXiv:2403.00041"

    class HParams(TransportHParams):
        """FedOTP's hyper-parameters."""

    def prompts(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        """Two contexts and the transport."""
        return TransportClip(clip, class_names, self.hp)
