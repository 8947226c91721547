"""FedOTP: a shared and a local context, matched with image patches by unbalanced optimal transport.

Li et al., "Global and Local Prompts Cooperation via Optimal Transport for Federated Learning",
CVPR 2024, arXiv:2403.00041. Official code: github.com/HongxiaLee/FedOTP.

    logits <T, F G_k^T>, cost 1 - F G_k^T -> TransportClip.logits  (models/prompted/transport.py)
    scaling iterations for T -> transport_plan  (models/prompted/transport.py)
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

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedray.algorithms.prompts.prompt_averaging import PairedContexts
from fedray.core import algorithms
from fedray.models.clip import FrozenClip
from fedray.models.prompted import PromptedClip, TransportClip


@algorithms.add
class FedOTP(PairedContexts):
    """A shared and a local context, matched with image patches by optimal transport."""

    name = "fedotp"
    title = "FedOTP"
    paper = "Li et al., CVPR 2024, arXiv:2403.00041"
    stacks = False  # the number of iterations depends on the values of a batch

    class HParams(PairedContexts.HParams):
        gamma: float = Field(0.8, gt=0, le=1)
        """γ, the transported mass; 1 gives balanced transport, as in PLOT. Paper: 0.8."""
        epsilon: float = Field(0.1, ge=1e-6, le=1e6)
        """ε, weight of the entropy. Official code: 0.1 with ViT-B/16, 0.01 with ResNet-50."""
        threshold: float = Field(1e-3, gt=0, le=1e6)
        """Mean change of log v below which the iterations end. Official code: 1e-3, for v."""
        max_iterations: int = Field(100, ge=1, le=100_000)
        """Maximal number of iterations. Official code: 100."""

    hp: HParams

    def prompted_model(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        hp = self.hp
        return TransportClip(
            clip,
            class_names,
            hp.length,
            hp.words,
            gamma=hp.gamma,
            epsilon=hp.epsilon,
            threshold=hp.threshold,
            max_iterations=hp.max_iterations,
        )
