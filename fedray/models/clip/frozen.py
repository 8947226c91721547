"""A frozen CLIP, split into two towers that accept prompts."""

from functools import lru_cache
from typing import Self

import torch

from fedray.config.registry import version_of
from fedray.language.encoders.base import freeze
from fedray.language.encoders.clip_weights import (
    WeightSource,
    build_clip,
    has_standard_blocks,
    other_tower,
)
from fedray.language.encoders.openclip import OpenClipText
from fedray.models.clip.sources import ClipChoice
from fedray.models.clip.vision import VisionTower

OPENAI_PIXELS = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}
"""Mean and standard deviation of each channel in OpenAI's CLIP, for pixels in [0, 1]."""


class FrozenClip:
    """A CLIP whose weights never change.

    Args:
        source: architecture and weights.

    Attributes:
        text: the text tower.
        vision: the vision tower.
        scale: exp(logit_scale), the factor of cosines.
        dim: d, the width of the joint space.
        identity: the architecture, a hash of the weights, and the version of the code.

    Raises:
        UserError: if the weights are missing, or a tower does not support prompts.
    """

    def __init__(self, source: WeightSource, version: int | str = 1) -> None:
        model = build_clip(source)
        visual = model.visual
        is_plain = has_standard_blocks(visual) and visual.attn_pool is None
        if not is_plain or visual.pool_type == "none":
            raise other_tower(source, "vision")
        if not source.weights:
            with torch.no_grad():
                model.logit_scale.fill_(torch.tensor(1 / 0.07).log())
        preprocessing = {**OPENAI_PIXELS, **source.preprocess}
        freeze(model)
        self.identity = f"{source.identity}, version {version}"
        self.scale = float(model.logit_scale.exp())
        self.vision = VisionTower(model.visual, preprocessing["mean"], preprocessing["std"])
        self.dim = self.vision.dim
        self.text = OpenClipText(model.text, source.tokenizer(), source.identity)
        self._model = model

    @property
    def towers(self) -> dict[str, torch.nn.Module]:
        """The modules of both towers, by name."""
        return {"image tower": self._model.visual, "text tower": self._model.text}

    def to(self, device: torch.device) -> Self:
        """Move the weights to a device."""
        self.text.to(device)
        self.vision.to(device)
        return self


@lru_cache(maxsize=2)
def load_clip(
    choice: ClipChoice, device: torch.device, written: tuple[int, ...] = ()
) -> FrozenClip:
    """Load the CLIP of `model.clip` on a device, once per process and `ClipChoice.written`."""
    del written
    return FrozenClip(choice.source(), version_of(type(choice))).to(device)
