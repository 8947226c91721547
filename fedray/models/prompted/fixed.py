"""No prompts at all: zero-shot CLIP."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedray.models.clip.frozen import FrozenClip
from fedray.models.prompted.base import PromptedClip
from fedray.models.prompted.texts import PHOTO


class ZeroShotClip(PromptedClip):
    """A frozen CLIP with one text for each class, and no prompts.

    Radford et al., ICML 2021, arXiv:2103.00020.

    Args:
        clip: the frozen CLIP.
        names: of the classes.
        template: with {} for the name.
    """

    def __init__(self, clip: FrozenClip, names: Sequence[str], template: str = PHOTO) -> None:
        super().__init__(clip, names)
        self.template = template

    def initialise(self, generator: torch.Generator) -> None:
        """Draw nothing."""

    def text_features(self) -> Tensor:
        """Return features of the texts without prompts [K, d]."""
        return self.fixed_texts(self.template)
