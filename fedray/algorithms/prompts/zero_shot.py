"""Zero-shot CLIP, without training or communication; a baseline of prompt methods.

Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021,
arXiv:2103.00020.

    classification by class names -> ZeroShotClip.text_features
"""

from pydantic import Field
from torch import Tensor

from fedray.algorithms.prompts.prompt_averaging import ONE_NAME
from fedray.core import PromptMethod, method
from fedray.models.prompted import PHOTO, PromptedClip


class ZeroShotClip(PromptedClip):
    """A frozen CLIP with one text per class, the hyper-parameter `template`, and no prompts."""

    def text_features(self) -> Tensor:
        return self.fixed_texts(self.hparams.template)


@method("zero_shot", "Zero-shot CLIP", "Radford et al., ICML 2021, arXiv:2103.00020")
class ZeroShot(PromptMethod):
    """CLIP without trained prompts."""

    clip_model = ZeroShotClip

    template: str = Field(PHOTO, pattern=ONE_NAME)
    """Text of a class, with {} for its name; CLIP's templates differ by data set, for example
    "a photo of a {}, a type of flower."."""
