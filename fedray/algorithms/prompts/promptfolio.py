"""PromptFolio: the text features of a shared and of a local context are mixed.

Pan et al., "Federated Learning from Vision-Language Foundation Models: Theoretical Analysis and
Method", NeurIPS 2024, arXiv:2409.19610. Official code: github.com/PanBikang/PromptFolio.

    mixed text features -> mix
    averaging of p_g alone -> PairedContexts.shared  (prompts/prompt_averaging.py)

FedMGP's port uses the share of participating clients as theta, so that its results are not
PromptFolio's.

Deviations:
    - The official loader omits the last incomplete batch (`drop_last=true`).
    - By default, images are not cropped randomly; see promptfl.py.
"""

from pydantic import Field
from torch import Tensor

from fedray.algorithms.prompts.prompt_averaging import ContextMethod, PairedContexts
from fedray.core import method
from fedray.models.prompted import PairedClip


class PortfolioClip(PairedClip):
    """A CLIP that mixes the text features of two contexts."""

    def text_features(self) -> Tensor:
        """Return the mixed text features [K, d]."""
        shared, local = super().text_features()
        return mix(shared, local, self.hparams.theta)


def mix(shared: Tensor, local: Tensor, theta: float) -> Tensor:
    """Return (1 - theta) g(p_g, k) + theta g(p_l, k) of unit features [K, d], not normalised."""
    return (1 - theta) * shared + theta * local


@method("promptfolio", "PromptFolio", "Pan et al., NeurIPS 2024, arXiv:2409.19610")
class PromptFolio(PairedContexts, ContextMethod):
    """FedAvg of one context, with text features mixed from the shared and a local context."""

    clip_model = PortfolioClip

    theta: float = Field(0.4, ge=0, le=1)
    """θ, weight of the local context; 0 gives PromptFL, 1 local prompts. Official code: 0.4."""
