"""A text tower whose last blocks are trained, as tensors by name that clients can train and send.

The lower blocks stay frozen; clients get their outputs and need no tower. If the whole tower is
trained, only those rows of the word embeddings are sent that occur in the texts, since all other
rows have no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from fedray.language.encoders.bert_blocks import Bert, TowerShape
from fedray.language.prototypes import mean_of_texts

PREFIX = "text."
"""Prefix of the names of a tower's tensors; no image model has such names."""


def class_embeddings(
    tensors: Mapping[str, Tensor], start: Tensor, mask: Tensor, shape: TowerShape
) -> Tensor:
    """Return the classes' text embeddings T [C, V] of unit length, differentiable in `tensors`.

    Each text's features, and their mean over the texts of a class, are scaled to length 1, as by
    `TextTower.frozen_prototypes`.

    Args:
        tensors: the trained part of the tower; names begin with `PREFIX`.
        start: see `TowerPart`.
        mask: see `TowerPart`.
        shape: see `TowerShape`.
    """
    named = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    features = Bert(named, shape, trained=True).read_from(start, mask)
    return F.normalize(mean_of_texts(F.normalize(features, dim=1), shape.k), dim=1)
