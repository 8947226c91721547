"""DP-FPL: a shared plus a personal context, whose low-rank factors get clipped, noisy gradients.

Tran, Sun, Patterson, Milanova, "Privacy-Preserving Personalized Federated Prompt Learning for
Multimodal Large Language Models", ICLR 2025, arXiv:2501.13904. Official code:
github.com/linhhtran/DP-FPL, commit cce74b47, `--factorization dpfpl`.

    factorisation p_L = u v + r by a power iteration -> factors
    standard deviation of the noise -> DPFPL.noise_std
    noisy gradients of u and v, and the gradient of p_L from them -> local_gradient
    step of the shared context on the mean gradient -> Algorithm.server_step  (core/algorithm.py)

The client's context is p_G + u v + r, that is, p_G + p_L. A round is one exchange: every
participant draws one batch, and `local_epochs` is not read. With equal weights, the mean of the
clients' single steps is a step on their mean gradient.

The noise in `epsilon` is for the personal contexts, and who knows the experiment's seed knows it.
The shared context is protected by the experiment's `privacy` with mode=central. The official code's
noise is that of clip_norm = lr * clip and noise_multiplier = sqrt(T ln(1/delta)) / (epsilon B).

Deviations:
    - The official code divides the gradients of u and v by 10 (`local_rate=0.1`, the default).
    - The gradient of p_L is (du) v + u (dv) + u u^T (du) v, as in the official code. The code of
      RGP (Yu et al., ICML 2021), from which the lines are, has a comment that subtracts the last
      term.
    - The official code takes a clipped batch's sensitivity to be clip / B, although it clips the
      mean of the batch and not single images. Its epsilon is therefore no guarantee.
    - In the official code, every client's personal context takes the step of the last client, whose
      gradient the shared model still has.
    - Plain SGD; official code: Dassl's SGD with momentum, whose state all clients share.
    - By default, images are not cropped randomly; see promptfl.py.
    - Checked against the official code; the paper's text was not at hand.
"""

from dataclasses import replace
from math import log, sqrt

import torch
from pydantic import Field
from torch import Tensor

from fedray.algorithms.mean import Weights
from fedray.algorithms.prompts.prompt_averaging import PairedContexts
from fedray.core import LocalContext, Requires, Trained, fit, method
from fedray.models.prompted import PairedClip


class SumClip(PairedClip):
    """A CLIP with the sum of a shared and a local context before every class name."""

    def text_features(self) -> Tensor:
        """Return unit text features [K, d] under p_G + p_L."""
        with torch.autocast(self.local_context.device.type, enabled=False):
            context = self.shared_context + self.local_context
        return self.texts_after(context)


@method("dp_fpl", "DP-FPL", "Tran et al., ICLR 2025, arXiv:2501.13904")
class DPFPL(PairedContexts):
    """A shared plus a personal context, trained through noisy gradients of low-rank factors."""

    clip_model = SumClip
    requires = Requires(prompts=True, head=False, sgd=True)

    weights: Weights = "uniform"
    """Client weights in the mean: uniform, 1/K (official code), or samples, n_k/n."""
    length: int = Field(16, ge=1, le=64)
    """m, tokens of both contexts. Official code: 16."""
    rank: int = Field(8, ge=1, le=64)
    """Rank of u v; at most m. Official code: 8; its runs: 1 to 8."""
    epsilon: float = Field(0.0, ge=0, le=1e6)
    """ε, privacy budget of the noise on the gradients of u and v; 0: no clipping, no noise.
    Official runs: 0 to 0.4."""
    delta: float = Field(1e-5, gt=0, lt=1)
    """δ of the noise. Official code: 1e-5."""
    clip: float = Field(10.0, gt=0, le=1e6)
    """Largest norm of the gradients of u and v, with `epsilon`. Official code: 10."""
    local_rate: float = Field(0.1, gt=0, le=1e3)
    """Factor of the personal context's learning rate. Official code: 0.1."""

    def noise_std(self) -> float:
        """Return sqrt(T ln(1/delta)) / epsilon times clip / B; 0 without noise."""
        if not self.epsilon:
            return 0.0
        sigma = sqrt(self.setting.rounds * log(1 / self.delta)) / self.epsilon
        return sigma * self.clip / self.setting.training.batch_size

    def train(self, local: LocalContext) -> Trained:
        """Take one step on one batch; the personal context's gradient is `local_gradient`."""
        client, model = local.client, local.model
        random = client.random("dp_fpl")
        drawn = torch.randperm(len(client.train), generator=random).numpy()
        batch = client.train.part(drawn[: client.setting.training.batch_size])
        once = replace(client.with_schedule(epochs=1, drop_last=False), train=batch)
        u, v = factors(model.local_context.detach(), self.rank, random)

        def through_factors() -> None:
            gradient = model.local_context.grad
            assert gradient is not None
            du, dv = gradient @ v.T, u.T @ gradient
            if self.epsilon:
                du, dv = (private(g, self.clip, self.noise_std(), random) for g in (du, dv))
            model.local_context.grad = self.local_rate * local_gradient(u, v, du, dv)

        return fit(
            replace(local, client=once),
            lambda batch: self.loss(model(batch.inputs), batch, local),
            before_step=through_factors,
        )


def factors(context: Tensor, rank: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return u [m, b] and v [b, d_t] with orthonormal columns and rows, one power iteration.

    u spans context x for a random x [d_t, b], and v^T spans context^T u; b is at most m.
    """
    length, width = context.shape
    start = torch.randn(width, min(rank, length), generator=random).to(context.device)
    u = torch.linalg.qr(context @ start).Q
    return u, torch.linalg.qr(context.T @ u).Q.T


def private(gradient: Tensor, clip: float, std: float, random: torch.Generator) -> Tensor:
    """Return a gradient scaled to a norm of at most `clip`, plus noise from N(0, std²)."""
    noise = torch.randn(gradient.shape, generator=random).to(gradient.device)
    scale: Tensor = (clip / gradient.norm()).clamp(max=1)
    return gradient * scale + std * noise


def local_gradient(u: Tensor, v: Tensor, du: Tensor, dv: Tensor) -> Tensor:
    """Return (du) v + u (dv) + u u^T (du) v [m, d_t]."""
    through_u = du @ v
    return through_u + u @ dv + u @ (u.T @ through_u)
