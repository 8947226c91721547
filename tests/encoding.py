"""Text encoders by name, and what they make of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedray.config import component
from fedray.language.encoders import EncoderChoice, TokenEncoder


def choose(name: str, **params: Any) -> EncoderChoice[Any]:
    """Return the choice of an encoder with these parameters."""
    return component("text encoder", name, key="text.encoder", **params).build()


def run(encoder: TokenEncoder, texts: Sequence[str]) -> Tensor:
    """Return the outputs for texts, through their word embeddings."""
    tokens = encoder.tokenize(texts)
    return encoder.encode(encoder.embed(tokens), tokens)
