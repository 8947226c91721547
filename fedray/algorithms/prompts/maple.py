"""MaPLe's prompts in both towers of a frozen CLIP, trained locally, or by FedAvg and FedProx.

Khattak et al., "MaPLe: Multi-modal Prompt Learning", CVPR 2023, arXiv:2210.03117. DP2FL
(arXiv:2504.16357) trains these prompts and compares itself with methods that train the same.

    Coupling F -> DualPromptClip.vision_prompts  (models/prompted/dual.py)
    averaging of the prompts -> weighted_mean  (mean.py)
    with FedProx, mu/2 ||p - p_t||² -> proximal_term  (averaging/fedprox.py)

Deviations:
    - No random crops: images are prepared as for testing.
    - One layer of prompts by default (`depth`), MaPLe's nine in the experiments of scale "paper".
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fedray.algorithms.averaging.fedprox import FedProx
from fedray.algorithms.prompts.prompt_averaging import PromptAveraging
from fedray.core import HyperParameters, LocalTraining, PromptMethod, algorithms
from fedray.models.clip import FrozenClip
from fedray.models.prompted import DualPromptClip, PromptedClip


class CoupledPrompts(PromptMethod):
    """A method whose model is text prompts, and maps that make vision prompts of them."""

    class HParams(HyperParameters):
        """Hyper-parameters of the prompts."""

        length: int = Field(2, ge=1, le=64)
        """n, tokens of each prompt (MaPLe: 2)."""
        depth: int = Field(1, ge=1, le=64)
        """J, blocks of both towers with prompts; 1: only at the input. MaPLe: 9; DP2FL's equations:
        1."""
        words: str | None = "a photo of a"
        """The first text prompt starts from these words' embeddings; None: from N(0, 0.02²)."""

    hp: HParams

    def prompted_model(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        """Text prompts and maps."""
        return DualPromptClip(clip, class_names, self.hp.length, self.hp.depth, self.hp.words)


@algorithms.add
class MapleLocal(CoupledPrompts, LocalTraining):
    """MaPLe's prompts at each client, trained alone (DP2FL's comparison "Local")."""

    name = "maple_local"
    title = "MaPLe, local"
    paper = "Khattak et al., CVPR 2023, arXiv:2210.03117, at each client"
    travels = "nothing"


@algorithms.add
class MapleFedAvg(CoupledPrompts, PromptAveraging):
    """FedAvg of MaPLe's prompts."""

    name = "maple_fedavg"
    title = "MaPLe + FedAvg"
    paper = "Khattak et al., CVPR 2023, arXiv:2210.03117, averaged"
    travels = "text prompts and the maps to vision prompts"

    class HParams(PromptAveraging.HParams, CoupledPrompts.HParams):
        """Those of both."""

    hp: HParams


@algorithms.add
class MapleFedProx(MapleFedAvg, FedProx):
    """FedProx on MaPLe's prompts (DP2FL's comparison "FP+P")."""

    name = "maple_fedprox"
    title = "MaPLe + FedProx"

    class HParams(MapleFedAvg.HParams, FedProx.HParams):
        """Those of both; μ = 0 is maple_fedavg."""

    hp: HParams
