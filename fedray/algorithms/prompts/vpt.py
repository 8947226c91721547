"""VPT: FedAvg of prompts in the image tower, at its input (shallow) or in every block (deep).

Jia et al., "Visual Prompt Tuning", ECCV 2022, arXiv:2203.12119. On CLIP as in MaPLe's code
(muzairkhattak/multimodal-prompt-learning, commit 69bce21, trainers/vpt.py): prompts are appended
after the patches, and those of deeper blocks replace the outputs of the previous prompts.

    [x, E, P] -> VisionTower.encode  (models/clip/vision.py), VisualPromptClip.image_features
    averaging of P -> combined_rows, mean_of (core/sums.py)

Deviations:
    - Prompts start from N(0, 0.02²), as in MaPLe's code; VPT's paper: Xavier's uniform.
    - There is no trained head; the texts of the classes are fixed, as in MaPLe's code.
    - VPT's paper inserts prompts behind the class token, after the first layer norm. MaPLe's code
      appends them before it; blocks read no order of tokens.
    - By default, images are not cropped randomly; see promptfl.py.
"""

from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from fedray.algorithms.prompts.prompt_averaging import PromptAveraging
from fedray.core import method
from fedray.models import Inputs, Pixels
from fedray.models.prompted import PromptedClip, check_depth, unit


class VisualPromptClip(PromptedClip):
    """A CLIP with prompts in the first blocks of its image tower, and fixed texts."""

    reads = Pixels

    def make_prompts(self, hparams: Any) -> None:
        depth = hparams.depth or self.clip.vision.layers
        check_depth(depth, self.clip.vision.layers)
        self.visual = self.prompt(depth, hparams.length, self.clip.vision.width)

    def image_features(self, x: Inputs) -> Tensor:
        return unit(self.encode(x, self.visual.unbind()))

    def text_features(self) -> Tensor:
        return self.fixed_texts()


@method("vpt", "VPT", "Jia et al., ECCV 2022, arXiv:2203.12119")
class VPT(PromptAveraging):
    """FedAvg of prompts in the image tower."""

    clip_model: ClassVar[Any] = VisualPromptClip

    length: int = Field(8, ge=1, le=256)
    """p, tokens of each prompt. MaPLe's code: 8."""
    depth: int | None = Field(None, ge=1, le=64)
    """Number of blocks with prompts; null: all (VPT-deep, as in MaPLe's code); 1: prompts at
    the input only (VPT-shallow)."""
