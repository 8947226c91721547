"""A frozen CLIP, taken apart so that prompts can go into both towers; open_clip is not changed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedray.config import Frozen
from fedray.errors import UserError
from fedray.language.encoders import TextEncoder, Tokens
from fedray.language.encoders.base import as_stored, freeze, same_bits
from fedray.language.encoders.openclip import OpenClipText, check_text_tower, run_blocks
from fedray.language.encoders.openclip_weights import Source, draw, fill, locate

__all__ = ["ClipSpec", "FrozenClip", "VisionTower", "clip_source", "load_clip", "small_clip_folder"]

MODEL_DEFAULT = "ViT-B-16-quickgelu"


class ClipSpec(Frozen):
    """A CLIP model; `model.clip` of an experiment is its name or a mapping of these keys."""

    name: Literal["small", "openclip"] = "small"
    """small: the CLIP for 32-pixel images that fedray brings; openclip: any model of open_clip."""
    model: str | None = Field(None, min_length=1)
    """openclip: an architecture, default ViT-B-16-quickgelu, or hf-hub:ORGANISATION/NAME."""
    pretrained: str | None = Field(None, min_length=1)
    """openclip: a tag (openai, laion2b_s34b_b88k, ...), or random for weights from `seed`."""
    path: str | None = Field(None, min_length=1)
    """openclip: a file of weights (OpenAI's too), or a folder with open_clip_config.json."""
    seed: int = Field(0, ge=0)
    """openclip with pretrained=random: what the weights are drawn from."""

    @model_validator(mode="after")
    def _possible(self) -> ClipSpec:
        if self.name == "small" and (self.model or self.pretrained or self.path or self.seed):
            raise ValueError("small has no further keys; set model.clip.name=openclip to use them")
        if self.path and self.pretrained:
            raise ValueError(
                "has both pretrained and path; keep model.clip.path for a local file, or "
                "model.clip.pretrained for a tag"
            )
        return self


def small_clip_folder() -> Path:
    """Where the small CLIP that fedray brings lies: an open_clip folder."""
    return Path(__file__).parent / "small"


def clip_source(spec: ClipSpec) -> Source:
    """Find, or download, the CLIP that `model.clip` asks for.

    Raises:
        UserError: when architecture, tag or file do not exist, or do not belong together.
    """
    if spec.name == "small":
        spec = ClipSpec(name="openclip", path=str(small_clip_folder()))
    return locate(spec, "model.clip", MODEL_DEFAULT)


class VisionTower:
    """open_clip's vision transformer, with room for prompt tokens.

    Args:
        visual: an `open_clip` VisionTransformer with its weights.
        mean: of each channel, subtracted from images in [0, 1].
        std: of each channel.
    """

    def __init__(self, visual: Any, mean: Sequence[float], std: Sequence[float]) -> None:
        self._visual = visual
        self.mean = torch.tensor(mean).view(3, 1, 1)
        self.std = torch.tensor(std).view(3, 1, 1)
        self.image_size = int(visual.image_size[0])
        self.width = int(visual.conv1.out_channels)
        self.dim = int(visual.output_dim)
        self.patches = int(visual.grid_size[0] * visual.grid_size[1])

    @property
    def layers(self) -> int:
        """The number of blocks."""
        return len(self._visual.transformer.resblocks)

    def embed(self, images: Tensor) -> Tensor:
        """Class token and patches after the first layer norm: [B, 1+M, w].

        Args:
            images: [B, channels, S, S] in [-1, 1]; grey ones are repeated to three channels.
        """
        pixels = (images + 1) / 2
        normalised = (pixels.expand(-1, 3, -1, -1) - self.mean) / self.std
        with as_stored(self._visual.conv1.weight):
            embedded: Tensor = self._visual._embeds(normalised)
        return embedded

    def encode(self, embedded: Tensor, prompts: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """Image features [B, d] and patch features [B, M, d], both projected, not normalised.

        Args:
            embedded: from `embed` [B, 1+M, w].
            prompts: tokens [B, l, w] or [l, w]: the first are appended behind the patches, without
                position; the i-th replace them at the input of block i (MaPLe).
        """
        visual, hidden, length = self._visual, embedded, 0
        with same_bits(embedded.device), as_stored(visual.conv1.weight):
            if prompts:
                hidden, length = self._appended(embedded, prompts[0])
                blocks = visual.transformer.resblocks
                hidden = run_blocks(blocks, hidden, prompts[1:], -length)
            else:
                hidden = visual.transformer(hidden)
            pooled, patches = visual._pool(hidden[:, : hidden.shape[1] - length])
            return pooled @ visual.proj, patches @ visual.proj

    def encode_prompted(self, embedded: Tensor, prompts: Sequence[Tensor]) -> Tensor:
        """Image features [B, d] alone, as `encode` gives them.

        Where they come from the class token, the last block is computed at that token alone.
        """
        visual = self._visual
        *blocks, last = visual.transformer.resblocks
        if not self._reads_class_token or len(prompts) > len(blocks):
            return self.encode(embedded, prompts)[0]
        with same_bits(embedded.device), as_stored(visual.conv1.weight):
            hidden, length = self._appended(embedded, prompts[0])
            hidden = run_blocks(blocks, hidden, prompts[1:], -length)
            normed = last.ln_1(hidden)
            x = hidden[:, :1] + last.ls_1(last.attention(normed[:, :1], normed, normed))
            x = x + last.ls_2(last.mlp(last.ln_2(x)))
            features: Tensor = visual._pool(x)[0] @ visual.proj
        return features

    @property
    def _reads_class_token(self) -> bool:
        block = type(self._visual.transformer.resblocks[-1]).__name__
        return self._visual.pool_type == "tok" and block == "ResidualAttentionBlock"

    def _appended(self, embedded: Tensor, prompt: Tensor) -> tuple[Tensor, int]:
        """A prompt behind the patches [B, 1+M+l, w], and its length."""
        first = self._visual.ln_pre(prompt.to(embedded.dtype))
        whole = torch.cat([embedded, first.expand(len(embedded), -1, -1)], dim=1)
        return whole, prompt.shape[-2]

    def to(self, device: torch.device) -> Self:
        """Move the weights."""
        self._visual.to(device)
        self.mean, self.std = self.mean.to(device), self.std.to(device)
        return self


class TransformersText(TextEncoder):
    """A text tower from transformers inside an open_clip model.

    Padding behind the longest text is cut off; the tower does not attend to padding, so the
    features stay.

    Args:
        tower: an `open_clip` HFTextEncoder with its weights.
        tokenizer: open_clip's tokenizer of the model.
        identity: see `TextEncoder`.
    """

    layers = 1  # for prompts: they enter at the input alone

    def __init__(self, tower: Any, tokenizer: Any, identity: str) -> None:
        self.identity = identity
        self.dim = int(tower.output_dim)
        self._tower = tower
        self._tokenizer = tokenizer
        freeze(tower)

    @property
    def token_width(self) -> int:
        """d', the width of a word embedding."""
        return int(self._words.embedding_dim)

    @property
    def _words(self) -> Any:
        return self._tower.transformer.get_input_embeddings()

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenise T texts, cut behind the longest."""
        ids: Tensor = self._tokenizer(list(texts))
        mask = ids != self._tower.config.pad_token_id
        longest = int(mask.sum(1).max())
        device = self._words.weight.device
        read = torch.zeros(len(ids), dtype=torch.int64, device=device)
        return Tokens(ids[:, :longest].to(device), mask[:, :longest].to(device), read)

    def embed(self, tokens: Tokens) -> Tensor:
        """Word embeddings [T, n, d']."""
        embedded: Tensor = self._words(tokens.ids)
        return embedded

    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        """Outputs [T, d], differentiable in `embeddings` [T, n, d']."""
        mask = tokens.mask.long()
        with same_bits(embeddings.device):
            out = self._tower.transformer(inputs_embeds=embeddings, attention_mask=mask)
        projected: Tensor = self._tower.proj(self._tower.pooler(out, mask))
        return projected

    def to(self, device: torch.device) -> Self:
        """Move the weights."""
        self._tower.to(device)
        return self


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

    def __init__(self, source: Source) -> None:
        model = _build(source)
        about = {**_OPENAI, **source.preprocessing()}
        freeze(model)
        self.identity = source.identity
        self.scale = float(model.logit_scale.exp())
        self.vision = VisionTower(model.visual, about["mean"], about["std"])
        self.dim = self.vision.dim
        kind = TransformersText if hasattr(model.text, "config") else OpenClipText
        self.text: OpenClipText | TransformersText = kind(
            model.text, source.tokenizer(), source.identity
        )
        self._model = model

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


_OPENAI = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}


@lru_cache(maxsize=2)
def load_clip(spec: ClipSpec, device: torch.device, *, half: bool = False) -> FrozenClip:
    """The CLIP of `model.clip` on a device; one process holds it once.

    Args:
        spec: which.
        device: where it computes.
        half: see `FrozenClip.in_half`.

    Raises:
        UserError: as `FrozenClip`.
    """
    clip = FrozenClip(clip_source(spec)).to(device)
    return clip.in_half() if half else clip


def _build(source: Source) -> Any:
    """An `open_clip` CustomTextCLIP with the weights of `source`, in float32."""
    import open_clip

    config = source.config()
    text, vision = config["text_cfg"], config["vision_cfg"]
    foreign = bool(text.get("hf_model_name"))
    if not foreign:
        check_text_tower(source, text, config)
    if vision.get("timm_model_name") or isinstance(vision["layers"], list | tuple):
        kind = "a timm model" if vision.get("timm_model_name") else "a ResNet"
    elif vision.get("attentional_pool") or vision.get("pool_type", "tok") == "none":
        kind = "a tower with attentional pooling"
    else:
        kind = ""
    if kind:
        raise UserError(
            f"{source.key}.model={source.model} sees through {kind}, which prompts cannot enter "
            f"here; give a vision transformer, for example {MODEL_DEFAULT}"
        )
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


def _draw_all(model: Any, seed: int, foreign: bool) -> None:
    if foreign:
        raise UserError(
            "model.clip.pretrained=random is for models with open_clip's own text tower; give "
            "weights"
        )
    draw(model, seed)
    with torch.no_grad():
        model.logit_scale.fill_(torch.tensor(1 / 0.07).log())
