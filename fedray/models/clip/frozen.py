"""A frozen CLIP, split so that prompts can be inserted into both towers; open_clip is unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, Self

import torch

from fedray.errors import UserError
from fedray.language.encoders.base import freeze
from fedray.language.encoders.openclip import OpenClipText, check_text_tower
from fedray.language.encoders.openclip_weights import WeightSource, draw, fill
from fedray.models.clip.sources import MODEL_DEFAULT, ClipChoice
from fedray.models.clip.transformers_text import TransformersText
from fedray.models.clip.vision import VisionTower

__all__ = ["FrozenClip", "load_clip"]

OPENAI_PIXELS = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}
"""Mean and standard deviation of each channel, of pixels in [0, 1], in OpenAI's CLIP."""


class FrozenClip:
    """A CLIP whose weights never change.

    Args:
        source: where it comes from.

    Attributes:
        text: its text tower.
        vision: its vision tower.
        scale: exp(logit_scale), what cosines are multiplied with.
        dim: d, width of the joint space.
        identity: names architecture and content of the weights.

    Raises:
        UserError: when the weights are not there, or a tower cannot take prompts.
    """

    def __init__(self, source: WeightSource) -> None:
        model = _build(source)
        preprocessing = {**OPENAI_PIXELS, **source.preprocessing()}
        freeze(model)
        self.identity = source.identity
        self.scale = float(model.logit_scale.exp())
        self.vision = VisionTower(model.visual, preprocessing["mean"], preprocessing["std"])
        self.dim = self.vision.dim
        kind = TransformersText if hasattr(model.text, "config") else OpenClipText
        self.text: OpenClipText | TransformersText = kind(
            model.text, source.tokenizer(), source.identity
        )
        self._model = model

    @property
    def towers(self) -> dict[str, torch.nn.Module]:
        """Its modules, to be counted."""
        return {"image tower": self._model.visual, "text tower": self._model.text}

    def to(self, device: torch.device) -> Self:
        """Move the weights."""
        self.text.to(device)
        self.vision.to(device)
        return self

    def in_half(self) -> Self:
        """Keep the weights of linear maps and convolutions in bfloat16; layer norms stay float32.

        The towers then compute under autocast, whoever calls them; prompts stay float32.
        """
        for module in self._model.modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Conv2d):
                module.to(torch.bfloat16)
        return self


@lru_cache(maxsize=2)
def load_clip(
    choice: ClipChoice[Any],
    device: torch.device,
    *,
    half: bool = False,
    written: tuple[int, ...] = (),
) -> FrozenClip:
    """The CLIP of `model.clip` on a device; one process holds it once.

    Args:
        choice: which.
        device: where it computes.
        half: see `FrozenClip.in_half`.
        written: see `ClipChoice.written`.

    Raises:
        UserError: as `FrozenClip`.
    """
    del written  # tells files from those that lay there before
    clip = FrozenClip(choice.source()).to(device)
    return clip.in_half() if half else clip


def _build(source: WeightSource) -> Any:
    """An `open_clip` CustomTextCLIP with the weights of `source`, in float32."""
    import open_clip

    config = source.config()
    text, vision = config["text_cfg"], config["vision_cfg"]
    foreign = bool(text.get("hf_model_name"))
    if not foreign:
        check_text_tower(source, text, config)
    _check_vision_tower(source, vision)
    if foreign:
        text = {**text, "hf_model_pretrained": False}  # its weights are in the file
    # A tower from transformers makes tables on the way that must be real.
    with nullcontext() if foreign else torch.device("meta"):
        model: Any = open_clip.CustomTextCLIP(
            config["embed_dim"],
            vision_cfg=vision,
            text_cfg=text,
            quick_gelu=config.get("quick_gelu", False),
        )
    if source.weights is None:
        _draw_all(model, source.seed, foreign)
    else:
        fill(model, source)
    if not foreign and model.text.attn_mask is not None:
        model.text.attn_mask = model.text.build_causal_mask()
    return model


def _check_vision_tower(source: WeightSource, vision: Mapping[str, Any]) -> None:
    """Refuse a vision tower that prompts cannot enter."""
    if vision.get("timm_model_name"):
        kind = "a timm model"
    elif isinstance(vision["layers"], list | tuple):
        kind = "a ResNet"
    elif vision.get("attentional_pool") or vision.get("pool_type", "tok") == "none":
        kind = "a tower with attentional pooling"
    else:
        return
    raise UserError(
        f"{source.key}.model={source.model} sees through {kind}, which prompts cannot enter "
        f"here; give a vision transformer, for example {MODEL_DEFAULT}"
    )


def _draw_all(model: Any, seed: int, foreign: bool) -> None:
    if foreign:
        raise UserError(
            "model.clip.pretrained=random is for models with open_clip's own text tower; give "
            "weights"
        )
    draw(model, seed)
    with torch.no_grad():
        model.logit_scale.fill_(torch.tensor(1 / 0.07).log())
