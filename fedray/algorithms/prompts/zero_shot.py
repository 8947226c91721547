"""Zero-shot CLIP, without training or communication; a baseline of prompt methods.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021,
arXiv:2103.00020.

    classification by class names -> ZeroShotClip.text_features  (models/prompted/fixed.py)
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import field_validator

from fedray.core import HyperParameters, PromptMethod, algorithms
from fedray.models.clip import FrozenClip
from fedray.models.prompted import PHOTO, PromptedClip, ZeroShotClip


@algorithms.add
class ZeroShot(PromptMethod):
    """CLIP without trained prompts."""

    name = "zero_shot"
    title = "Zero-shot CLIP"
    paper = "Radford et al., ICML 2021, arXiv:2103.00020"
    travels = "nothing"

    class HParams(HyperParameters):
        """Hyper-parameters of zero-shot CLIP."""

        template: str = PHOTO
        """Text of a class, with {} for its name; CLIP's templates differ by data set, for example
        "a photo of a {}, a type of flower."."""

        @field_validator("template")
        @classmethod
        def _has_one_placeholder(cls, value: str) -> str:
            if value.count("{}") != 1 or value.count("{") != 1 or value.count("}") != 1:
                raise ValueError(
                    f"'{value}' must have {{}} once, for the class name, and no other braces; for "
                    f"example '{PHOTO}'"
                )
            return value

    hp: HParams

    def prompted_model(self, clip: FrozenClip, class_names: Sequence[str]) -> PromptedClip:
        return ZeroShotClip(clip, class_names, self.hp.template)
