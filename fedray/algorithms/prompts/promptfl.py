"""PromptFL: FedAvg of one context in front of the class names, around a frozen CLIP.

Guo et al., "PromptFL: Let Federated Participants Cooperatively Learn Prompts Instead of Models",
IEEE Transactions on Mobile Computing 2023, arXiv:2208.11625. Prompts as in CoOp (Zhou et al., IJCV
2022): "X X ... X {class}." with the m words in front replaced.

    text features g(p, k) -> ContextClip.text_features  (models/prompted/context.py)
    averaging of p -> weighted_mean  (mean.py)
    with FedProx, mu/2 ||p - p_t||² -> proximal_term  (averaging/fedprox.py)

Deviations:
    - By default no random crops: images are prepared as for testing, so that what the frozen vision
      tower makes of them is computed once. With `data.augment: resized_crop`, as in the experiments
      at paper scale, it sees every view of every epoch.
    - Every client starts a round from the mean; in FedMGP's comparison those that did not take part
      in the last round start from an older one.
    - The last incomplete batch is trained on; the official loaders of this family of codes (FedOTP,
      FedPGP, PromptFolio, FedMGP) leave it out (`drop_last=true`).
"""

from __future__ import annotations

from collections.abc import Sequence

from fedray.algorithms.averaging.fedprox import FedProx
from fedray.algorithms.prompts.prompt_averaging import ContextHParams, PromptAveraging
from fedray.core import LocalTraining, PromptMethod, algorithms
from fedray.models.clip import FrozenClip
from fedray.models.prompted import ContextClip, PromptedClip


class SingleContext(PromptMethod):
    """A method whose model is one context."""

    class HParams(ContextHParams):
        """Those of the context."""

    hp: HParams

    def prompted_model(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        """One context."""
        return ContextClip(clip, class_names, self.hp.length, self.hp.words)


@algorithms.add
class PromptFL(SingleContext, PromptAveraging):
    """FedAvg of one context."""

    name = "promptfl"
    title = "PromptFL"
    paper = "Guo et al., IEEE TMC 2023, arXiv:2208.11625"
    travels = "one context"

    class HParams(PromptAveraging.HParams, SingleContext.HParams):
        """PromptFL's hyper-parameters."""

    hp: HParams


@algorithms.add
class FedProxPromptFL(PromptFL, FedProx):
    """PromptFL with FedProx's proximal term (DP2FL's comparison "FP+P")."""

    name = "promptfl_fedprox"
    title = "PromptFL + FedProx"

    class HParams(PromptFL.HParams, FedProx.HParams):
        """Those of both; μ = 0 is PromptFL."""

    hp: HParams


@algorithms.add
class LocalPrompts(SingleContext, LocalTraining):
    """One context for each client, trained alone."""

    name = "local_prompts"
    title = "Local prompts"
    paper = "Zhou et al., IJCV 2022, arXiv:2109.01134 (CoOp), at each client"
    travels = "nothing"
