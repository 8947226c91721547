"""PromptFolio: text features are a mixture of those of a shared and of a local context.

Pan et al., "Federated Learning from Vision-Language Foundation Models: Theoretical Analysis and
Method", NeurIPS 2024, arXiv:2409.19610. Official code: github.com/PanBikang/PromptFolio.

    mixed text features -> mix  (models/prompted/paired.py)
    averaging of p_g alone -> PairedContexts.shared  (prompts/prompt_averaging.py)

FedMGP's port uses the share of participating clients as theta, so its results are not those of
PromptFolio.

Deviations:
    - The official loader omits the last incomplete batch (`drop_last=true`).
    - By default, images are not cropped randomly; see promptfl.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedray.algorithms.prompts.prompt_averaging import PairedContexts
from fedray.core import algorithms
from fedray.models.clip import FrozenClip
from fedray.models.prompted import PortfolioClip, PromptedClip


@algorithms.add
class PromptFolio(PairedContexts):
    """FedAvg of one context, whose text features are mixed with those of a local context."""

    name = "promptfolio"
    title = "PromptFolio"
    paper = "Pan et al., NeurIPS 2024, arXiv:2409.19610"

    class HParams(PairedContexts.HParams):
        theta: float = Field(0.4, ge=0, le=1)
        """θ, weight of the local context; 0 gives PromptFL, 1 local prompts. Official code: 0.4."""

    hp: HParams

    def prompted_model(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        return PortfolioClip(clip, class_names, self.hp.length, self.hp.words, self.hp.theta)
