"""BERT's arithmetic on texts of different lengths, without padding.

The positions of all texts stand one behind the other, [N, w], texts of equal length next to each
other: linear maps, layer norms and activations see no padding, attention is computed at once for
the texts of one length, without a mask. Where one position represents a text, the last block is
computed there alone. These are transformers' sums: outputs and gradients agree with its BertModel
to 1e-5 of their size.

Devlin et al., "BERT", NAACL 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedray.language.activations import ACTIVATIONS
from fedray.language.encoders.frozen import FrozenLinear

_EMBEDDINGS = "embeddings."
_KINDS = ("weight", "bias")
_PARTS = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "mixed": "attention.output.dense",
    "first": "attention.output.LayerNorm",
    "inner": "intermediate.dense",
    "outer": "output.dense",
    "second": "output.LayerNorm",
}
"""What a block's weights are called here, and by transformers."""


@dataclass(frozen=True)
class BertShape:
    """What of a BERT is no tensor.

    Attributes:
        layers: how many blocks.
        heads: of the attention.
        eps: of layer norms.
        activation: between the two linear maps, a name of `ACTIVATIONS`.
    """

    layers: int
    heads: int
    eps: float
    activation: str


@dataclass(frozen=True)
class Packing:
    """Where the positions of T texts stand when those of equal length are next to each other.

    Attributes:
        order: the texts by length, shortest first [T].
        rows: each position's place in [T*n], which has padding [N].
        positions: each position's number in its text [N].
        groups: (texts, tokens of each), in this order.
    """

    order: Tensor
    rows: Tensor
    positions: Tensor
    groups: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, mask: Tensor) -> Packing:
        """Of texts padded behind their end; the mask [T, n] is True where a token is a text's."""
        lengths = mask.sum(1)
        order = lengths.argsort(stable=True)
        padded = mask.shape[1]
        counted = torch.arange(padded, device=mask.device)
        inside = (counted < lengths[order].unsqueeze(1)).flatten()
        rows = (order.unsqueeze(1) * padded + counted).flatten()[inside]
        positions = counted.repeat(len(mask))[inside]
        groups = tuple((len(list(each)), n) for n, each in groupby(lengths[order].tolist()))
        return cls(order, rows, positions, groups)

    @property
    def sizes(self) -> list[int]:
        """How many positions each group has."""
        return [texts * length for texts, length in self.groups]

    def firsts(self) -> Tensor:
        """Where the first position of each text stands [T]."""
        return (self.positions == 0).nonzero().squeeze(1)

    def unsorted(self, features: Tensor) -> Tensor:
        """The texts' features [T, d] in their own order again."""
        return features[self.order.argsort()]


class PackedBert(nn.Module):
    """A frozen BERT without its pooler.

    Args:
        tensors: its weights by transformers' names.
        shape: see `BertShape`.
    """

    def __init__(self, tensors: Mapping[str, Tensor], shape: BertShape) -> None:
        super().__init__()
        self.shape = shape
        named = {name: tensors[_EMBEDDINGS + name] for name in _embedding_names()}
        self.words, self.positions, self.types, weight, bias = map(_frozen, named.values())
        self.norm_weight, self.norm_bias = weight, bias
        prefixes = (f"encoder.layer.{i}." for i in range(shape.layers))
        self.blocks = nn.ModuleList(_Block(tensors, prefix, shape) for prefix in prefixes)
        self.eval()

    @property
    def width(self) -> int:
        """The width of hidden states, and of word embeddings."""
        return int(self.words.shape[1])

    @property
    def kept_bytes(self) -> int:
        """Bytes of activations that a token leaves behind for the backward pass."""
        each = 6 * self.width + self._blocks[0].inner
        return self.shape.layers * each * self.words.element_size()

    @property
    def _blocks(self) -> list[_Block]:
        return [block for block in self.blocks if isinstance(block, _Block)]

    def embed(self, words: Tensor, positions: Tensor) -> Tensor:
        """Word embeddings with types, positions and layer norm: [..., w] to [..., w].

        Args:
            words: word embeddings.
            positions: their numbers in the text [...].
        """
        hidden = words + self.types[0] + self.positions[positions]
        return F.layer_norm(
            hidden, hidden.shape[-1:], self.norm_weight, self.norm_bias, self.shape.eps
        )

    def read(self, embeddings: Tensor, mask: Tensor, mean: bool) -> Tensor:
        """Outputs [T, w] for word embeddings [T, n, w], differentiable.

        Args:
            embeddings: before types and positions.
            mask: which positions are the texts' [T, n]; the others are behind them.
            mean: average a text's positions; else take the first.
        """
        packing = Packing.of(mask)
        packed = embeddings.flatten(0, 1)[packing.rows]
        hidden = self.embed(packed, packing.positions)
        for block in self._blocks[: None if mean else -1]:
            hidden = block(hidden, packing)
        if not mean:
            return packing.unsorted(self._blocks[-1].at_first(hidden, packing))
        parts = zip(torch.split(hidden, packing.sizes), packing.groups, strict=True)
        return packing.unsorted(torch.cat([h.view(*group, -1).mean(1) for h, group in parts]))

    def outputs(self, ids: Tensor, mask: Tensor, blocks: int) -> Tensor:
        """Hidden states [T, n, w] behind the first blocks; zero where there is padding.

        Args:
            ids: token ids [T, n].
            mask: which positions are the texts' [T, n].
            blocks: how many blocks.
        """
        packing = Packing.of(mask)
        hidden = self.embed(self.words[ids.flatten()[packing.rows]], packing.positions)
        for block in self._blocks[:blocks]:
            hidden = block(hidden, packing)
        padded = hidden.new_zeros(mask.numel(), self.width)
        padded[packing.rows] = hidden
        return padded.view(*mask.shape, self.width)

    def by_name(self) -> dict[str, Tensor]:
        """The weights by transformers' names."""
        own = (self.words, self.positions, self.types, self.norm_weight, self.norm_bias)
        found = dict(zip((_EMBEDDINGS + name for name in _embedding_names()), own, strict=True))
        for index, block in enumerate(self._blocks):
            for name, tensor in block.by_name().items():
                found[f"encoder.layer.{index}.{name}"] = tensor
        return {name: tensor.detach() for name, tensor in found.items()}


class _Block(nn.Module):
    """Attention and two linear maps, each with its residual and, behind it, layer norm."""

    def __init__(self, tensors: Mapping[str, Tensor], prefix: str, shape: BertShape) -> None:
        super().__init__()
        self.shape = shape
        for own, name in _PARTS.items():
            for kind in _KINDS:
                tensor = _frozen(tensors[f"{prefix}{name}.{kind}"])
                self.register_parameter(f"{own}_{kind}", tensor)
        self.inner = len(tensors[f"{prefix}{_PARTS['inner']}.weight"])
        self._maps: dict[tuple[torch.device, tuple[str, ...]], FrozenLinear] = {}

    def forward(self, hidden: Tensor, packing: Packing) -> Tensor:
        """[N, w] to [N, w]."""
        parts = self._linear(hidden, "query", "key", "value").chunk(3, dim=1)
        q, k, v = (self._per_head(part, packing.groups) for part in parts)
        return self._behind(hidden, q, k, v)

    def at_first(self, hidden: Tensor, packing: Packing) -> Tensor:
        """The outputs at the texts' first positions alone: [N, w] to [T, w]."""
        asking = hidden[packing.firsts()]
        ones = tuple((texts, 1) for texts, _ in packing.groups)
        q = self._per_head(self._linear(asking, "query"), ones)
        parts = self._linear(hidden, "key", "value").chunk(2, dim=1)
        k, v = (self._per_head(part, packing.groups) for part in parts)
        return self._behind(asking, q, k, v)

    def by_name(self) -> dict[str, nn.Parameter]:
        """The weights by transformers' names, without the block's own beginning."""
        names = ((own, name, kind) for own, name in _PARTS.items() for kind in _KINDS)
        return {f"{name}.{kind}": getattr(self, f"{own}_{kind}") for own, name, kind in names}

    def _behind(self, x: Tensor, q: list[Tensor], k: list[Tensor], v: list[Tensor]) -> Tensor:
        """The outputs [M, w] at positions x, whose queries attend to all of their text's keys."""
        attended = map(F.scaled_dot_product_attention, q, k, v)
        mixed = torch.cat([part.transpose(1, 2).flatten(0, 1).flatten(1) for part in attended])
        first = self._norm("first", self._linear(mixed, "mixed") + x)
        inner = ACTIVATIONS[self.shape.activation](self._linear(first, "inner"))
        return self._norm("second", self._linear(inner, "outer") + first)

    def _per_head(self, x: Tensor, groups: Sequence[tuple[int, int]]) -> list[Tensor]:
        """[N, w] as a tensor [t, heads, n, w/heads] for each group of t texts of length n."""
        parts = torch.split(x, [texts * length for texts, length in groups])
        heads = self.shape.heads
        pairs = zip(parts, groups, strict=True)
        return [part.view(*group, heads, -1).transpose(1, 2) for part, group in pairs]

    def _linear(self, x: Tensor, *parts: str) -> Tensor:
        """The outputs of parts that have the same inputs, one behind the other."""
        key = (x.device, parts)
        if key not in self._maps:
            weights, biases = ([getattr(self, f"{p}_{kind}") for p in parts] for kind in _KINDS)
            self._maps[key] = FrozenLinear(weights, biases)
        return self._maps[key](x)

    def _norm(self, own: str, x: Tensor) -> Tensor:
        weight, bias = getattr(self, f"{own}_weight"), getattr(self, f"{own}_bias")
        return F.layer_norm(x, x.shape[1:], weight, bias, self.shape.eps)


def bert_names(layers: int) -> list[str]:
    """What transformers calls the weights of a BERT without its pooler."""
    inside = [f"{name}.{kind}" for name in _PARTS.values() for kind in _KINDS]
    blocks = [f"encoder.layer.{i}.{name}" for i in range(layers) for name in inside]
    return [*(_EMBEDDINGS + name for name in _embedding_names()), *blocks]


def _embedding_names() -> tuple[str, ...]:
    tables = ("word_embeddings", "position_embeddings", "token_type_embeddings")
    return (*(f"{name}.weight" for name in tables), "LayerNorm.weight", "LayerNorm.bias")


def _frozen(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
