"""Zero-shot CLIP, without training or communication; a baseline of prompt methods.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021,
arXiv:2103.00020.

    classification by class names -> ZeroShotClip.text_features
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import AfterValidator
from torch import Tensor

from fedray.core import PromptMethod, method
from fedray.models.clip import FrozenClip
from fedray.models.prompted import PHOTO, PromptedClip


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


def _with_one_placeholder(value: str) -> str:
    if value.count("{}") != 1 or value.count("{") != 1 or value.count("}") != 1:
        raise ValueError(
            f"'{value}' must have {{}} once, for the class name, and no other braces; for "
            f"example '{PHOTO}'"
        )
    return value


Template = Annotated[str, AfterValidator(_with_one_placeholder)]


@method("zero_shot", "Zero-shot CLIP", "Radford et al., ICML 2021, arXiv:2103.00020")
class ZeroShot(PromptMethod):
    """CLIP without trained prompts."""

    template: Template = PHOTO
    """Text of a class, with {} for its name; CLIP's templates differ by data set, for example
    "a photo of a {}, a type of flower."."""

    def prompted_model(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        return ZeroShotClip(clip, class_names, self.template)
