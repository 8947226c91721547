"""IVLP: FedAvg of independent prompts in both towers of a CLIP.

Rasheed et al., "Fine-tuned CLIP Models are Efficient Video Learners", CVPR 2023, arXiv:2212.03640;
the baseline "independent V-L prompting" of MaPLe (Khattak et al., CVPR 2023, arXiv:2210.03117).
As in MaPLe's code (muzairkhattak/multimodal-prompt-learning, commit 69bce21,
trainers/independentVL.py), prompts of deeper blocks replace the outputs of the previous prompts.

    prompts of the image tower -> VisualPromptClip.image_features  (algorithms/prompts/vpt.py)
    prompts of the text tower -> IndependentClip.text_features
    averaging of all prompts -> combined_rows, mean_of (core/sums.py)

Deviations:
    - By default, images are not cropped randomly; see promptfl.py.
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from fedray.algorithms.prompts.vpt import VPT, VisualPromptClip
from fedray.core import method
from fedray.models.prompted import INIT_STD, check_depth, maple_template


class IndependentClip(VisualPromptClip):
    """A CLIP with prompts in the first blocks of both towers, which do not depend on each other."""

    def make_prompts(self, hparams: Any) -> None:
        super().make_prompts(hparams)
        length, depth = hparams.length, hparams.depth or self.clip.text.layers
        check_depth(depth, self.clip.text.layers)
        self.template = maple_template(length)
        self.text = nn.Parameter(torch.zeros(depth, length, self.clip.text.token_width))

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Set the first text prompt from words or noise; draw all others from N(0, 0.02²)."""
        super().initialise(generator)
        self.start(generator, self.text[0], self.hparams.words)
        self.text[1:].normal_(0.0, INIT_STD, generator=generator)

    def text_features(self) -> Tensor:
        first, *deep = self.text.unbind()
        return self.class_texts(self.template).encode(first, deep)


@method("ivlp", "IVLP", "Rasheed et al., CVPR 2023, arXiv:2212.03640")
class IVLP(VPT):
    """FedAvg of independent prompts in both towers."""

    clip_model = IndependentClip

    length: int = Field(2, ge=1, le=64)
    """Tokens of each prompt, in both towers. MaPLe's code: 2."""
    depth: int | None = Field(None, ge=1, le=64)
    """Number of blocks with prompts in each tower; null: all, as in MaPLe's code."""
    words: str | None = "a photo of a"
    """Words whose embeddings are the initial first text prompt; null: draw it from N(0,
    0.02²)."""
