"""Text towers of CLIP models, through open_clip, taken apart so that prompts can go in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from fedray.errors import UserError
from fedray.language.encoders.base import TextEncoder, Tokens, freeze, pick, same_bits, warn_cut
from fedray.language.encoders.openclip_weights import Source, draw, fill, locate
from fedray.language.encoders.spec import EncoderSpec

MODEL_DEFAULT = "ViT-B-32-quickgelu"
# A stand-in, since open_clip builds towers in pairs.
_SMALLEST_VISION = {"layers": 1, "width": 64, "head_width": 64, "patch_size": 16, "image_size": 16}


def find(spec: EncoderSpec) -> Source:
    """Where the text tower of `text.encoder` comes from.

    Raises:
        UserError: when architecture, tag or file do not exist, or do not belong together.
    """
    return locate(spec, "text.encoder", MODEL_DEFAULT)


class OpenClipText(TextEncoder):
    """open_clip's own kind of text tower.

    Token embeddings, then positions, the transformer, the final layer norm, one position,
    the projection: equal to `encode_text` when nothing is replaced. Where the tower is causal and
    reads the end token, texts are cut behind the last end token of all texts, which is exact.

    Args:
        tower: an `open_clip` TextTransformer with its weights.
        tokenizer: open_clip's tokenizer of the model.
        identity: see `TextEncoder`.
    """

    def __init__(self, tower: Any, tokenizer: Any, identity: str) -> None:
        self.identity = identity
        self._tower = tower
        self._tokenizer = tokenizer
        freeze(tower)
        projection = tower.text_projection
        if projection is None:
            self.dim = int(tower.width)
        elif isinstance(projection, torch.nn.Linear):
            self.dim = int(projection.out_features)
        else:
            self.dim = int(projection.shape[1])
        self._cuts = tower.attn_mask is not None and tower.pool_type in ("argmax", "eos")

    @property
    def token_width(self) -> int:
        """d', the width of a token embedding."""
        return int(self._tower.token_embedding.embedding_dim)

    @property
    def layers(self) -> int:
        """The number of blocks."""
        return len(self._tower.transformer.resblocks)

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenise T texts, cut behind the last end token where that is exact."""
        limit = int(self._tower.context_length)
        self._warn_cut(texts, limit)
        ids: Tensor = self._tokenizer(list(texts), context_length=limit)
        read = self._read(ids)
        if self._cuts:
            ids = ids[:, : int(read.max()) + 1]
            mask = torch.arange(ids.shape[1]) <= read.unsqueeze(1)
        else:
            mask = torch.ones_like(ids, dtype=torch.bool)
        device = self._tower.positional_embedding.device
        return Tokens(ids.to(device), mask.to(device), read.to(device))

    def embed(self, tokens: Tokens) -> Tensor:
        """Token embeddings [T, n, d'], without positions."""
        embedded: Tensor = self._tower.token_embedding(tokens.ids)
        return embedded

    def encode(self, embeddings: Tensor, tokens: Tokens, deep: Sequence[Tensor] = ()) -> Tensor:
        """Outputs [T, d], differentiable in `embeddings` [T, n, d'].

        The position that is read is that of the original text's end token, also where a prompt
        took its place.

        Args:
            embeddings: see `TextEncoder.encode`.
            tokens: see `TextEncoder.encode`.
            deep: prompts [l, d'], which replace positions 1..l at the input of block 1, 2, ...
                (MaPLe).
        """
        tower, n = self._tower, embeddings.shape[1]
        mask = None if tower.attn_mask is None else tower.attn_mask[:n, :n]
        hidden = embeddings + tower.positional_embedding[:n]
        with same_bits(embeddings.device):
            if deep:
                hidden = run_blocks(tower.transformer.resblocks, hidden, deep, 1, mask)
            else:
                hidden = tower.transformer(hidden, attn_mask=mask)
        output = pick(tower.ln_final(hidden), tokens.read)
        if isinstance(tower.text_projection, torch.nn.Linear):
            output = tower.text_projection(output)
        elif tower.text_projection is not None:
            output = output @ tower.text_projection
        return output

    def to(self, device: torch.device) -> Self:
        """Move the weights."""
        self._tower.to(device)
        return self

    def _read(self, ids: Tensor) -> Tensor:
        kind = self._tower.pool_type
        if kind == "argmax":
            return ids.argmax(1)  # the end token has the largest id
        if kind == "eos":
            is_end: Tensor = ids == self._tower.eos_id
            return is_end.int().argmax(1)
        return torch.full((len(ids),), ids.shape[1] - 1 if kind == "last" else 0)

    def _warn_cut(self, texts: Sequence[str], limit: int) -> None:
        import open_clip

        if isinstance(self._tokenizer, open_clip.SimpleTokenizer):  # others do not tell
            warn_cut(texts, [len(self._tokenizer.encode(text)) + 2 for text in texts], limit)


class OpenClipEncoder(OpenClipText):
    """The text tower of a CLIP model; its image tower is never built.

    Args:
        spec: openclip.

    Raises:
        UserError: when the weights are not there, or the tower is not open_clip's own kind.
    """

    def __init__(self, spec: EncoderSpec) -> None:
        source = find(spec)
        super().__init__(_build(source), source.tokenizer(), source.identity)


def run_blocks(
    blocks: torch.nn.ModuleList,
    hidden: Tensor,
    deep: Sequence[Tensor],
    start: int,
    mask: Tensor | None = None,
) -> Tensor:
    """Run [T, n, w] through a transformer's blocks, with prompts put in between (MaPLe).

    Args:
        blocks: open_clip's residual attention blocks, batch first.
        hidden: the input of block 0.
        deep: prompts [l, w] or [T, l, w]; the i-th replaces l positions at the input of block i+1.
        start: the first position that is replaced; negative counts from the end.
        mask: attention mask [n, n].
    """
    for index, block in enumerate(blocks):
        if 0 < index <= len(deep):
            prompt = deep[index - 1].to(hidden.dtype)
            own = prompt.expand(len(hidden), -1, -1)
            at = start % hidden.shape[1]
            hidden = torch.cat([hidden[:, :at], own, hidden[:, at + own.shape[1] :]], dim=1)
        hidden = block(hidden, attn_mask=mask)
    return hidden


def check_text_tower(source: Source, text: dict[str, Any], config: dict[str, Any]) -> None:
    """Refuse what `OpenClipText` cannot take apart.

    Raises:
        UserError: for a text tower of another kind than open_clip's own.
    """
    if text.get("hf_model_name") or text.get("embed_cls") or "multimodal_cfg" in config:
        kind = "a transformers text tower" if text.get("hf_model_name") else "a CoCa text tower"
        raise UserError(
            f"{source.key}.model={source.model} has {kind}, which prompts cannot enter here; give "
            "an architecture with open_clip's own, for example ViT-B-32-quickgelu"
        )
    if text.get("pool_type", "argmax") == "none":
        raise UserError(f"{source.key}.model={source.model} reads no position; give another model")


def _build(source: Source) -> Any:
    """An `open_clip` TextTransformer with the weights of `source`, in float32."""
    import open_clip

    config = source.config()
    check_text_tower(source, config["text_cfg"], config)
    with torch.device("meta"):  # neither memory nor random numbers
        tower: Any = open_clip.CustomTextCLIP(
            config["embed_dim"],
            vision_cfg=_SMALLEST_VISION,
            text_cfg=config["text_cfg"],
            quick_gelu=config.get("quick_gelu", False),
        ).text
    if source.weights is None:
        draw(tower, source.seed)
    else:
        fill(tower, source, "text.")
    if tower.attn_mask is not None:
        tower.attn_mask = tower.build_causal_mask()
    return tower
