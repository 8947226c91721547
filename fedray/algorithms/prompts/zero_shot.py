"""Zero-shot CLIP, without training or communication; a baseline of prompt methods.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021,
arXiv:2103.00020.

    classification by class names -> ZeroShotClip.text_features
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator
from torch import Tensor

from fedray.core import PromptMethod, method
from fedray.models.prompted import PHOTO, PromptedClip


class ZeroShotClip(PromptedClip):
    """A frozen CLIP with one text per class, the hyper-parameter `template`, and no prompts."""

    def text_features(self) -> Tensor:
        return self.fixed_texts(self.hparams.template)


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

    clip_model = ZeroShotClip

    template: Template = PHOTO
    """Text of a class, with {} for its name; CLIP's templates differ by data set, for example
    "a photo of a {}, a type of flower."."""
