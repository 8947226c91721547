"""A text tower whose last blocks learn: its tensors by name, and BERT's arithmetic on them.

What lies below the blocks that learn stays frozen and is computed once: clients get its outputs
and need no tower of their own. Where the whole tower learns, the word embeddings begin it, of which
only those that occur in the texts travel: the others have no gradient.

Devlin et al., "BERT", NAACL 2019: blocks of attention and two linear maps, each with its residual
and, behind it, layer norm. Dropout is left out: encoders are in evaluation mode here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.language.activations import ACTIVATIONS
from fedray.language.prototypes import class_means

PREFIX = "text."
"""What begins the names of a tower's tensors: no model has such names."""
_WORDS = PREFIX + "embeddings.word_embeddings.weight"
_PROJECTION = PREFIX + "projection"


@dataclass(frozen=True)
class TowerShape:
    """What of a tower is neither a weight nor a text.

    Attributes:
        heads: of the attention.
        eps: of layer norms.
        activation: between the two linear maps, a name of `ACTIVATIONS`.
        mean: whether a text is read as the mean over its positions, not at the first.
        k: texts per class.
    """

    heads: int
    eps: float
    activation: str
    mean: bool
    k: int

    def numbers(self) -> Tensor:
        """As a tensor of five numbers, which can travel and be kept."""
        activation = list(ACTIVATIONS).index(self.activation)
        rest = [float(number) for number in (self.heads, activation, self.mean, self.k)]
        return torch.tensor([self.eps, *rest], dtype=torch.float64)

    @classmethod
    def of(cls, numbers: Tensor) -> TowerShape:
        """What `numbers` made."""
        eps, heads, activation, mean, k = numbers.tolist()
        return cls(int(heads), eps, list(ACTIVATIONS)[int(activation)], bool(mean), int(k))


@dataclass(frozen=True)
class TrainableText:
    """A tower that learns, with the texts of C classes.

    Attributes:
        tensors: what learns, by name.
        start: outputs of what stays frozen [C*k, n, w], or positions in the word embeddings that
            learn, int64 [C*k, n].
        mask: [C*k, n], bool; True where a position belongs to its text.
        shape: see `TowerShape`.
    """

    tensors: Mapping[str, Tensor]
    start: Tensor
    mask: Tensor
    shape: TowerShape


def class_embeddings(
    tensors: Mapping[str, Tensor], start: Tensor, mask: Tensor, shape: TowerShape
) -> Tensor:
    """The classes' text embeddings T [C, V] of unit length, differentiable in `tensors`.

    Each text's features, and their mean over a class's texts, are scaled to length 1, as
    `TextTower.frozen_prototypes` does. Arguments as in `TrainableText`.
    """
    unit = F.normalize(text_features(tensors, start, mask, shape), dim=1)
    return F.normalize(class_means(unit, shape.k), dim=1)


def text_features(
    tensors: Mapping[str, Tensor], start: Tensor, mask: Tensor, shape: TowerShape
) -> Tensor:
    """Outputs [T, d] of a tower that learns; arguments as in `TrainableText`."""
    hidden = _embedded(tensors, start, shape) if _WORDS in tensors else start
    layers = [name.split(".")[3] for name in tensors if name.startswith(f"{PREFIX}encoder.")]
    for layer in dict.fromkeys(layers):
        hidden = bert_block(tensors, f"{PREFIX}encoder.layer.{layer}.", hidden, mask, shape)
    if shape.mean:
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        read = (hidden * weights).sum(1) / weights.sum(1)
    else:
        read = hidden[:, 0]
    if f"{_PROJECTION}.weight" in tensors:
        return F.linear(read, *_linear(tensors, _PROJECTION))
    return read


def bert_block(
    tensors: Mapping[str, Tensor], prefix: str, hidden: Tensor, mask: Tensor, shape: TowerShape
) -> Tensor:
    """One block of a BERT: [T, n, w] to [T, n, w].

    Args:
        tensors: by name.
        prefix: what begins this block's names.
        hidden: the block's input.
        mask: which positions are attended [T, n].
        shape: heads, activation and eps.
    """
    texts, length, width = hidden.shape

    def heads(name: str) -> Tensor:
        mapped = F.linear(hidden, *_linear(tensors, f"{prefix}attention.self.{name}"))
        return mapped.view(texts, length, shape.heads, -1).transpose(1, 2)

    scores = heads("query") @ heads("key").transpose(2, 3) / sqrt(width / shape.heads)
    scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
    mixed = (scores.softmax(-1) @ heads("value")).transpose(1, 2).reshape(texts, length, width)
    attended = F.linear(mixed, *_linear(tensors, f"{prefix}attention.output.dense"))
    hidden = _norm(tensors, f"{prefix}attention.output.LayerNorm", attended + hidden, shape)
    inner = F.linear(hidden, *_linear(tensors, f"{prefix}intermediate.dense"))
    outer = F.linear(
        ACTIVATIONS[shape.activation](inner), *_linear(tensors, f"{prefix}output.dense")
    )
    return _norm(tensors, f"{prefix}output.LayerNorm", outer + hidden, shape)


def _embedded(tensors: Mapping[str, Tensor], ids: Tensor, shape: TowerShape) -> Tensor:
    """Word, type and position embeddings and their layer norm: [T, n] to [T, n, w]."""
    embeddings = f"{PREFIX}embeddings."
    positions = tensors[f"{embeddings}position_embeddings.weight"][: ids.shape[1]]
    types = tensors[f"{embeddings}token_type_embeddings.weight"][0]
    hidden = F.embedding(ids, tensors[_WORDS]) + types + positions
    return _norm(tensors, f"{embeddings}LayerNorm", hidden, shape)


def _linear(tensors: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    return tensors[f"{name}.weight"], tensors[f"{name}.bias"]


def _norm(tensors: Mapping[str, Tensor], name: str, x: Tensor, shape: TowerShape) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], *_linear(tensors, name), eps=shape.eps)
