"""Text encoders by name, what they make of texts, and small ones with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedray.config import component
from fedray.language.encoders import EncoderChoice, TokenEncoder


def choose(name: str, **params: Any) -> EncoderChoice:
    """Return the choice of an encoder with these parameters."""
    return component("text encoder", name, key="text.encoder", **params).build()


def run(encoder: TokenEncoder, texts: Sequence[str]) -> Tensor:
    """Return the outputs for texts, through their word embeddings."""
    tokens = encoder.tokenize(texts)
    return encoder.encode(encoder.embed(tokens), tokens)


def save_bert(folder: Path, words: Sequence[str], positions: int, width: int = 16) -> Path:
    """Write a BERT with random weights and these pieces of words; return its folder."""
    from transformers import BertConfig, BertModel, BertTokenizer

    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    BertTokenizer(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * width,
        max_position_embeddings=positions,
        initializer_range=0.5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    return folder
