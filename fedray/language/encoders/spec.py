"""Which text encoder: a typed choice, and the way from the choice to the encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, StrictBool, model_validator

from fedray.config import Frozen

if TYPE_CHECKING:
    from fedray.language.encoders.base import TextEncoder

_USED_BY = {
    "model": ("bert", "openclip"),
    "path": ("bert", "openclip", "vectors"),
    "pretrained": ("openclip",),
    "pooling": ("minilm", "bert"),
    "bert_compat": ("bert",),
    "dim": ("random", "orthogonal"),
    "seed": ("random", "orthogonal", "openclip"),
}


class EncoderSpec(Frozen):
    """A text encoder; `text.encoder` of an experiment is its name or a mapping of these keys."""

    name: Literal["minilm", "bert", "openclip", "vectors", "random", "orthogonal"]
    """minilm: all-MiniLM-L6-v2 out of an installed package, d = 384, needs no download;
    bert: BERT or a relative, from the hub or a folder; openclip: a CLIP text tower, by tag or
    file; vectors: word vectors out of a file; random, orthogonal: controls without language."""
    model: str | None = Field(None, min_length=1)
    """bert: a name on the hub, default bert-base-uncased; openclip: an architecture, default
    ViT-B-32-quickgelu, or hf-hub:ORGANISATION/NAME."""
    path: str | None = Field(None, min_length=1)
    """bert: a folder with config, tokenizer and weights; openclip: a file of weights, or a folder
    with open_clip_config.json. Instead of the hub. vectors: a file in GloVe's or word2vec's text
    format, .gz or not."""
    pretrained: str | None = Field(None, min_length=1)
    """openclip: a tag of open_clip (openai, laion2b_s34b_b79k, ...), or random for weights drawn
    from `seed`, which know no language."""
    pooling: Literal["cls", "mean"] | None = None
    """minilm, bert: read the first position, or the mean of all; default mean for minilm, cls for
    bert (FedTSP)."""
    bert_compat: StrictBool = False
    """bert: as the official FedTSP code does it: positions, types and layer norm are applied
    twice, and padding is attended."""
    dim: int | None = Field(None, ge=2, le=8192)
    """random, orthogonal: width of the vectors; default 384."""
    seed: int = Field(0, ge=0)
    """random, orthogonal, openclip with pretrained=random: what the numbers are drawn from."""

    @model_validator(mode="after")
    def _possible(self) -> EncoderSpec:
        for key, users in _USED_BY.items():
            chosen = getattr(self, key)
            if chosen != type(self).model_fields[key].default and self.name not in users:
                raise ValueError(
                    f"{key}={chosen} is for {' and '.join(users)}, not for {self.name}; "
                    f"remove text.encoder.{key}"
                )
        if self.name == "bert" and self.model and self.path:
            raise ValueError(
                "has both model and path; keep text.encoder.path for a local folder, "
                "or text.encoder.model for the hub"
            )
        if self.name == "openclip" and self.path and self.pretrained:
            raise ValueError(
                "has both pretrained and path; keep text.encoder.path for a local file, "
                "or text.encoder.pretrained for a tag"
            )
        if self.name == "vectors" and self.path is None:
            raise ValueError("vectors needs text.encoder.path, a file of word vectors")
        if self.bert_compat and self.pooling == "mean":
            raise ValueError(
                "bert_compat=true reads the first position; remove text.encoder.pooling=mean"
            )
        if self.seed and self.name == "openclip" and self.pretrained != "random":
            raise ValueError(
                "seed is for text.encoder.pretrained=random; pretrained weights have no seed"
            )
        return self


def build_encoder(spec: EncoderSpec) -> TextEncoder:
    """Load the encoder, frozen, on the CPU.

    Raises:
        UserError: when its package or weights are not there, with what to install or pass.
    """
    if spec.name in ("random", "orthogonal"):
        from fedray.language.encoders.controls import ControlEncoder

        return ControlEncoder(spec)
    if spec.name == "vectors":
        from fedray.language.encoders.vectors import VectorsEncoder

        return VectorsEncoder(spec)
    if spec.name == "openclip":
        from fedray.language.encoders.openclip import OpenClipEncoder

        return OpenClipEncoder(spec)
    from fedray.language.encoders.bert import BertEncoder

    return BertEncoder(spec)


def encoder_identity(spec: EncoderSpec) -> str:
    """What `build_encoder(spec).identity` would be; looks at the weights, does not load them.

    Raises:
        UserError: as `build_encoder`.
    """
    if spec.name in ("random", "orthogonal"):
        from fedray.language.encoders import controls

        return controls.identity(spec)
    if spec.name == "vectors":
        from fedray.language.encoders import vectors

        return vectors.identity(spec)
    if spec.name == "openclip":
        from fedray.language.encoders import openclip

        return openclip.find(spec).identity
    from fedray.language.encoders import bert

    return bert.identity(spec, bert.locate(spec))
