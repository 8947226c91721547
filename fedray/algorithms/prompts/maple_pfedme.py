"""MaPLe's prompts with pFedMe's personal ones (DP2FL's comparison "pF+P").

Khattak et al., CVPR 2023, arXiv:2210.03117; Dinh et al., NeurIPS 2020, arXiv:2006.08848.

    inner and outer steps -> PFedMe.train  (personalised/pfedme.py)
    Coupling F -> DualPromptClip.vision_prompts  (models/prompted/dual.py)

DP2FL gives no values; pFedMe's are the defaults.
"""

from __future__ import annotations

from fedray.algorithms.personalised.pfedme import PFedMe
from fedray.algorithms.prompts.maple import MapleFedAvg
from fedray.core import algorithms


@algorithms.add
class MaplePFedMe(MapleFedAvg, PFedMe):
    """Global prompts in both towers, and personal ones held near them."""

    name = "maple_pfedme"
    title = "MaPLe + pFedMe"

    class HParams(PFedMe.HParams, MapleFedAvg.HParams):
        """Those of both; defaults are pFedMe's, so the mean is uniform."""

    hp: HParams
