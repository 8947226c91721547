"""A CLIP without prompts (zero-shot)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedray.models.clip.frozen import FrozenClip
from fedray.models.prompted.base import PromptedClip
from fedray.models.prompted.texts import PHOTO


class ZeroShotClip(PromptedClip):
    """A frozen CLIP with one text per class and no prompts.

    Radford et al., ICML 2021, arXiv:2103.00020.

    Args:
        clip: the frozen CLIP.
        names: the names of the classes.
        template: the text, with {} for the class name.
    """

    def __init__(self, clip: FrozenClip, names: Sequence[str], template: str = PHOTO) -> None:
        super().__init__(clip, names)
        self.template = template

    def initialise(self, generator: torch.Generator) -> None:
        """Do nothing, since there are no prompts."""

    def text_features(self) -> Tensor:
        return self.fixed_texts(self.template)
