"""A text tower whose last blocks learn, as tensors by name that clients can train and send.

The blocks below stay frozen; clients get their outputs and need no tower of their own. If the whole
tower learns, it begins with the word embeddings, of which the rows of words in the texts travel
alone: the others have no gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from fedray.language.encoders.bert_blocks import Bert, TowerShape
from fedray.language.prototypes import class_means

PREFIX = "text."
"""The beginning of the names of a tower's tensors; no model has such names."""


def class_embeddings(
    tensors: Mapping[str, Tensor], start: Tensor, mask: Tensor, shape: TowerShape
) -> Tensor:
    """Return the classes' text embeddings T [C, V] of unit length, differentiable in `tensors`.

    Each text's features, and their mean over a class's texts, are scaled to length 1, as
    `TextTower.frozen_prototypes` does.

    Args:
        tensors: the part that learns; names begin with `PREFIX`.
        start: see `TowerPart`.
        mask: see `TowerPart`.
        shape: see `TowerShape`.
    """
    named = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    features = Bert(named, shape, trained=True).read_from(start, mask)
    return F.normalize(class_means(F.normalize(features, dim=1), shape.k), dim=1)
