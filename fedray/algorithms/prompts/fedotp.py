"""FedOTP: a shared and a local context, matched with image patches by unbalanced optimal transport.

Li et al., "Global and Local Prompts Cooperation via Optimal Transport for Federated Learning",
CVPR 2024, arXiv:2403.00041. Official code: github.com/HongxiaLee/FedOTP.

    logits <T, F G_k^T>, cost 1 - F G_k^T -> TransportClip.logits
    scaling iterations for T -> transport_plan
    averaging of p_g alone -> PairedContexts.shared  (prompts/prompt_averaging.py)

Deviations:
    - The iterations run on logarithms, in float32, because exp(-C/eps) underflows for a small eps.
      They end when the mean change of log v, not of v, falls below `threshold`, so that the end
      does not depend on the scale of v. With the default threshold they end earlier than the
      official ones; this moves prompts by 3 % of the distance that training moves them.
    - With `words`, both contexts start from these words and differ after the first averaging;
      official code: each starts from its own noise.
    - The first round has as many participants as any other; official code: all clients.
    - The official loader omits the last incomplete batch (`drop_last=true`).
    - By default, images are not cropped randomly; see promptfl.py.
"""

from math import log

import torch
from pydantic import Field
from torch import Tensor

from fedray.algorithms.prompts.prompt_averaging import ContextMethod, PairedContexts
from fedray.core import method
from fedray.models import Inputs, PatchFeatures
from fedray.models.prompted import PairedClip

MAX_ENTRIES = 2**22
"""Entries of the cost that are processed at once; bounds the memory."""
CHECK_EVERY = 10
"""Iterations between two checks for convergence on an accelerator."""


class TransportClip(PairedClip):
    """A CLIP with two contexts whose text features share the patches of an image."""

    reads: type[Inputs] = PatchFeatures

    def logits(self, image: Tensor, text: Tensor) -> Tensor:
        """Return exp(logit_scale) <T, F G_k^T> [B, K] of patches F [B, M, d], texts G [N, K, d].

        The transport plan T has no gradient.
        """
        images = max(1, MAX_ENTRIES // (image.shape[1] * text.shape[0] * text.shape[1]))
        with torch.autocast(image.device.type, enabled=False):
            parts = torch.split(image, images)
            return torch.cat([self._logits(part, text.float()) for part in parts])

    def _logits(self, image: Tensor, text: Tensor) -> Tensor:
        cosines, hp = torch.einsum("bmd,nkd->bknm", image, text), self.hparams
        ends = hp.threshold, hp.max_iterations
        plan = transport_plan(1 - cosines.detach(), hp.gamma, hp.epsilon, *ends)
        return self.clip.scale * (plan * cosines).sum((-2, -1))


@torch.no_grad()
def transport_plan(
    cost: Tensor, gamma: float, epsilon: float, threshold: float = 1e-3, iterations: int = 100
) -> Tensor:
    """Return the plan T of entropic transport of mass gamma: columns sum to gamma/N, rows <= 1/M.

    With Q = exp(-C/eps): u = min(1/M / (Q v), 1), v = gamma/N / (Q^T u), T = diag(u) Q diag(v).
    The iterations use logarithms in float32, because exp(-C/eps) underflows for small eps. On an
    accelerator, a comparison makes the CPU wait, so convergence is checked every `CHECK_EVERY`
    iterations; u and v are frozen once converged, so that T does not depend on this.

    Args:
        cost: C, with the M rows last: [..., N, M].
        gamma: the mass, in (0, 1].
        epsilon: weight of the entropy.
        threshold: mean change of log v below which the iterations end.
        iterations: maximal number of iterations.

    Returns:
        T, with the shape of `cost`.
    """
    texts, patches = cost.shape[-2:]
    kernel = cost / -epsilon
    row, column = -log(patches), log(gamma / texts)
    log_u, log_v = (
        kernel.new_zeros(*kernel.shape[:-2], patches),
        kernel.new_zeros(kernel.shape[:-1]),
    )
    over = kernel.new_zeros((), dtype=torch.bool)
    every = 1 if kernel.device.type == "cpu" else CHECK_EVERY
    for number in range(1, iterations + 1):
        next_u = (row - (kernel + log_v.unsqueeze(-1)).logsumexp(-2)).clamp(max=0)
        next_v = column - (kernel + next_u.unsqueeze(-2)).logsumexp(-1)
        ends = (next_v - log_v).abs().mean() < threshold
        log_u, log_v = torch.where(over, log_u, next_u), torch.where(over, log_v, next_v)
        over = over | ends
        if number % every == 0 and over:
            break
    return (kernel + log_u.unsqueeze(-2) + log_v.unsqueeze(-1)).exp()


@method("fedotp", "FedOTP", "Li et al., CVPR 2024, arXiv:2403.00041")
class FedOTP(PairedContexts, ContextMethod):
    """A shared and a local context, matched with image patches by optimal transport."""

    clip_model = TransportClip
    stacks = False  # the number of iterations depends on the values of a batch

    gamma: float = Field(0.8, gt=0, le=1)
    """γ, the transported mass; 1 gives balanced transport, as in PLOT. Paper: 0.8."""
    epsilon: float = Field(0.1, ge=1e-6, le=1e6)
    """ε, weight of the entropy. Official code: 0.1 with ViT-B/16, 0.01 with ResNet-50."""
    threshold: float = Field(1e-3, gt=0, le=1e6)
    """Mean change of log v below which the iterations end. Official code: 1e-3, for v."""
    max_iterations: int = Field(100, ge=1, le=100_000)
    """Maximal number of iterations. Official code: 100."""
