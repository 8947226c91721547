"""PromptFolio: a portfolio of a shared and an own context, mixed in the space of text features.

Pan et al., "Federated Learning from Vision-Language Foundation Models: Theoretical Analysis and
Method", NeurIPS 2024, arXiv:2409.19610. Official code: github.com/PanBikang/PromptFolio.

    mixed text features -> mix
    averaging of p_g alone -> PairedContexts.shared  (algorithms/paired_contexts.py)

FedMGP's port takes the share of participating clients for theta; its results are not PromptFolio's.

Deviations:
    - No random crops, see promptfl.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from torch import Tensor

from fedray.algorithms.paired_contexts import PairedClip, PairedContexts
from fedray.algorithms.registry import algorithms
from fedray.models.clip import FrozenClip, PromptedClip


class PortfolioClip(PairedClip):
    """Two contexts whose text features are mixed.

    Args:
        clip: the frozen CLIP.
        names: of the classes.
        length: m.
        words: see `PairedClip`.
        theta: weight of the own context.
    """

    def __init__(
        self,
        clip: FrozenClip,
        names: Sequence[str],
        length: int,
        words: str | None = None,
        theta: float = 0.4,
    ) -> None:
        super().__init__(clip, names, length, words)
        self.theta = theta

    def text_features(self) -> Tensor:
        """The mixed text features [K, d]."""
        shared, own = super().text_features()
        return mix(shared, own, self.theta)


def mix(shared: Tensor, own: Tensor, theta: float) -> Tensor:
    """(1 - theta) g(p_g, k) + theta g(p_l, k) of unit features [K, d]; not a unit vector again."""
    return (1 - theta) * shared + theta * own


@algorithms.add
class PromptFolio(PairedContexts):
    """FedAvg of one context, mixed with an own one."""

    name = "promptfolio"
    paper = "Pan et al., NeurIPS 2024, arXiv:2409.19610"

    class HParams(PairedContexts.HParams):
        """PromptFolio's hyper-parameters."""

        theta: float = Field(0.4, ge=0, le=1)
        """θ, weight of the own context; 0 is PromptFL, 1 local prompts. Official code: 0.4."""

    def prompts(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        """Two contexts, mixed."""
        return PortfolioClip(clip, class_names, self.hp.length, self.hp.words, self.hp.theta)
