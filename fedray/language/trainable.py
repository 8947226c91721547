"""A text tower whose last blocks are trained, as tensors by name that clients can train and send.

The lower blocks stay frozen; clients get their outputs and need no tower. If the whole tower is
trained, only those rows of the word embeddings are sent that occur in the texts, since all other
rows have no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedray.language.encoders.base import same_bits
from fedray.language.encoders.bert import ACTIVATIONS, WORDS, attended, pooled
from fedray.language.prototypes import mean_of_texts

PREFIX = "text."
"""Prefix of the names of a tower's tensors; no image model has such names."""


def class_embeddings(
    tensors: Mapping[str, Tensor], start: Tensor, mask: Tensor, shape: Tensor
) -> Tensor:
    """Return the classes' text embeddings T [C, V] of unit length, differentiable in `tensors`.

    Each text's features, and their mean over the texts of a class, are scaled to length 1, as by
    `TextTower.frozen_prototypes`.

    Args:
        tensors: the trained part of the tower; names begin with `PREFIX`.
        start: see `TowerPart`, as `mask` and `shape`.
        mask: [T, n].
        shape: [5].
    """
    named = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    features = F.normalize(text_features(named, start, mask, shape), dim=1)
    return F.normalize(mean_of_texts(features, int(shape[4])), dim=1)


def text_features(
    named: Mapping[str, Tensor], start: Tensor, mask: Tensor, shape: Tensor
) -> Tensor:
    """Return the outputs [T, d] of a `TowerPart`, differentiable in its tensors."""
    layers = {name.split(".")[2] for name in named if name.startswith("encoder.layer.")}
    inner, width = named["encoder.layer.0.intermediate.dense.weight"].shape
    eps, heads, activation, mean, _ = shape.tolist()
    bert = _bert(len(layers), width, inner, eps, int(heads), ACTIVATIONS[int(activation)])
    with same_bits(start.device):
        hidden = start
        if WORDS in named:
            hidden = _run(
                bert, "embeddings.", named, inputs_embeds=F.embedding(start, named[WORDS])
            )
        hidden = _run(bert, "encoder.", named, hidden, attended(mask, hidden)).last_hidden_state
    features = pooled(hidden, mask, bool(mean))
    if "projection.weight" not in named:
        return features
    return F.linear(features, named["projection.weight"], named["projection.bias"])


def _run(
    bert: nn.Module, part: str, named: Mapping[str, Tensor], *args: Tensor, **kwargs: Tensor
) -> Any:
    """Run a part of a BERT with these tensors for its own."""
    own = {name.removeprefix(part): t for name, t in named.items() if name.startswith(part)}
    return functional_call(bert.get_submodule(part.rstrip(".")), own, args, kwargs)


@lru_cache(maxsize=4)
def _bert(
    layers: int, width: int, inner: int, eps: float, heads: int, activation: str
) -> nn.Module:
    """Return a BERT of these sizes, whose weights are always replaced."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=1,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        hidden_act=activation,
        layer_norm_eps=eps,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        bert: nn.Module = BertModel(config, add_pooling_layer=False)
    return bert
