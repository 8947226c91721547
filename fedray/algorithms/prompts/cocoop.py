"""CoCoOp in federated form: FedAvg of a context and of a small network that shifts it by the image.

Zhou et al., "Conditional Prompt Learning for Vision-Language Models", CVPR 2022, arXiv:2203.05557.
Official code: github.com/KaiyangZhou/CoOp, commit ff61507c, which is not federated. In federated
form (FLiP, github.com/0-ml/flip, commit ec3a848b), the server averages context and network.

    shift pi = h(x) by the meta-net -> ConditionalClip.shifts
    contexts v_m + pi of each image -> ConditionalClip.contexts
    probabilities of an image from its own texts -> ConditionalClip.forward

Deviations:
    - The official code trains on one image at a time, for memory: a batch encodes B K texts.
      `batch_size=1` does the same.
    - The meta-net's hidden layer has d/16 units, at least one.
    - By default, images are not cropped randomly; see promptfl.py.
    - Checked against the official code; the paper's text was not at hand.
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from fedray.algorithms.prompts.prompt_averaging import ContextMethod, PromptAveraging
from fedray.core import method
from fedray.models import ClassifierOutput, Inputs, undrawn_linear
from fedray.models.prompted import ContextClip

MOST_TEXTS = 4096
"""Texts that are encoded at once; bounds the memory of tests."""


class ConditionalClip(ContextClip):
    """A CLIP whose context is shifted by a function of the image.

    `text_features` are those of the context alone.
    """

    def make_prompts(self, hparams: Any) -> None:
        super().make_prompts(hparams)
        hidden = max(1, self.clip.dim // 16)
        self.first = undrawn_linear(self.clip.dim, hidden)
        self.second = undrawn_linear(hidden, self.clip.text.token_width)

    def shifts(self, image: Tensor) -> Tensor:
        """Return pi = h(x) [B, d_t] of unit image features [B, d]."""
        shifts: Tensor = self.second(self.first(image).relu())
        return shifts

    def contexts(self, image: Tensor) -> Tensor:
        """Return the contexts v + pi of each image [B, m, d_t]."""
        return self.context + self.shifts(image).unsqueeze(1)

    def forward(self, x: Inputs) -> ClassifierOutput:
        """Return image features and the logits of each image under its own context."""
        image = self.image_features(x)
        parts = torch.split(image, max(1, MOST_TEXTS // len(self.classes)))
        rows = [self.logits(p[:, None], self.texts_after(self.contexts(p))) for p in parts]
        return ClassifierOutput(image, torch.cat(rows).squeeze(1))


@method("cocoop", "CoCoOp", "Zhou et al., CVPR 2022, arXiv:2203.05557")
class CoCoOp(PromptAveraging, ContextMethod):
    """FedAvg of a context and of a network that shifts it by the image."""

    clip_model = ConditionalClip

    length: int = Field(4, ge=1, le=64)
    """m, tokens of the context. Official scripts: 4."""
    words: str | None = "a photo of a"
    """Words whose embeddings are the initial context; null: draw it from N(0, 0.02²). Official
    scripts: a photo of a."""
