"""Prompts of CoOp and MaPLe, trained locally and by FedAvg, FedProx and pFedMe.

CoOp's context: Zhou et al., IJCV 2022, arXiv:2109.01134; with FedAvg this is PromptFL, Guo et al.,
IEEE TMC 2023, arXiv:2208.11625. MaPLe's prompts in both towers: Khattak et al., CVPR 2023,
arXiv:2210.03117. DP2FL (arXiv:2504.16357) compares itself with these methods. DP2FL states no
values for pFedMe, so the defaults are pFedMe's.

    text features g(p, k) -> ContextClip.text_features  (models/prompted/context.py)
    coupling F of MaPLe's prompts -> DualPromptClip.vision_prompts  (models/prompted/dual.py)
    averaging of the prompts -> combined_rows, mean_of (core/sums.py)
    with FedProx, mu/2 ||p - p_t||² -> proximal_term  (losses.py)
    with pFedMe, inner and outer steps -> PFedMe.train  (personalised/pfedme.py)

Deviations:
    - By default, training images are not cropped randomly but prepared like test images.
    - Prompts are inputs of the towers alone (`depth=1`), as DP2FL says after Eq. (3); MaPLe's own
      file has nine layers.
"""

from fedray.algorithms.averaging.fedprox import FedProx
from fedray.algorithms.personalised.pfedme import PFedMe
from fedray.algorithms.prompts.prompt_averaging import (
    ContextMethod,
    CoupledPrompts,
    PromptAveraging,
)
from fedray.algorithms.prompts.promptfl import PromptFL
from fedray.core import LocalTraining, method


@method(
    "local_prompts",
    "Local prompts",
    "Zhou et al., IJCV 2022, arXiv:2109.01134 (CoOp), at each client",
)
class LocalPrompts(ContextMethod, LocalTraining):
    """One prompt context per client, trained without communication."""


@method("promptfl_fedprox", "PromptFL + FedProx", PromptFL.paper)
class FedProxPromptFL(PromptFL, FedProx):
    """PromptFL with FedProx's proximal term (DP2FL's comparison "FP+P"); μ = 0 gives PromptFL."""


@method("promptfl_pfedme", "PromptFL + pFedMe", PromptFL.paper)
class PFedMePromptFL(PFedMe, PromptFL):
    """A global prompt context, and personal contexts that pFedMe holds near it."""


@method(
    "maple_local", "MaPLe, local", "Khattak et al., CVPR 2023, arXiv:2210.03117, at each client"
)
class MapleLocal(CoupledPrompts, LocalTraining):
    """MaPLe's prompts, trained without communication (DP2FL's comparison "Local")."""


@method("maple_fedavg", "MaPLe + FedAvg", "Khattak et al., CVPR 2023, arXiv:2210.03117, averaged")
class MapleFedAvg(PromptAveraging, CoupledPrompts):
    """FedAvg of MaPLe's prompts."""


@method("maple_fedprox", "MaPLe + FedProx", MapleFedAvg.paper)
class MapleFedProx(MapleFedAvg, FedProx):
    """FedProx on MaPLe's prompts (DP2FL's comparison "FP+P"); μ = 0 gives maple_fedavg."""


@method("maple_pfedme", "MaPLe + pFedMe", MapleFedAvg.paper)
class MaplePFedMe(PFedMe, MapleFedAvg):
    """MaPLe's prompts, global, and personal ones that pFedMe holds near them."""
