"""PromptFL with pFedMe's personal prompts (DP2FL's comparison "pFedMe + PromptFL").

Guo et al., IEEE TMC 2023, arXiv:2208.11625; Dinh et al., NeurIPS 2020, arXiv:2006.08848.

    inner and outer steps -> PFedMe.train  (personalised/pfedme.py)
    text features g(p, k) -> ContextClip.text_features  (models/prompted/context.py)

DP2FL gives no values; pFedMe's are the defaults.
"""

from __future__ import annotations

from fedray.algorithms.personalised.pfedme import PFedMe
from fedray.algorithms.prompts.promptfl import PromptFL
from fedray.core import algorithms


@algorithms.add
class PFedMePromptFL(PromptFL, PFedMe):
    """A global context, and personal ones held near it."""

    name = "promptfl_pfedme"
    title = "PromptFL + pFedMe"

    class HParams(PFedMe.HParams, PromptFL.HParams):
        """Those of both; defaults are pFedMe's, so the mean is uniform."""

    hp: HParams
