"""BERT's arithmetic on texts of different lengths, without padding; its weights frozen or trained.

The positions of all texts form one matrix [N, w], with texts of equal length next to each other:
linear maps, layer norms and activations see no padding, and attention is computed at once for all
texts of one length, without a mask. Where the first position represents a text, the last block is
computed at that position alone. Outputs and gradients agree with transformers' BertModel to 1e-5 of
their size. Dropout is left out.

Devlin et al., "BERT", NAACL 2019: blocks of attention and two linear maps, each with its residual
and, behind it, layer norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.language.encoders.base import same_bits
from fedray.language.encoders.frozen import FrozenLinear

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
"""Activations by transformers' names."""
WORDS = "embeddings.word_embeddings.weight"
PROJECTION = "projection"
_POSITIONS = "embeddings.position_embeddings.weight"
_TYPES = "embeddings.token_type_embeddings.weight"
_ATTENTION = "attention.self."


@dataclass(frozen=True)
class TowerShape:
    """The settings of a BERT's tower that no tensor shows.

    Attributes:
        heads: number of attention heads.
        eps: epsilon of the layer norms.
        activation: between the two linear maps, a name of `ACTIVATIONS`.
        mean: True if a text is read as the mean over its positions, else at the first.
        k: texts per class.
    """

    heads: int
    eps: float
    activation: str
    mean: bool
    k: int = 1

    def numbers(self) -> Tensor:
        """Return the settings as a float64 tensor [5], which can be sent and stored."""
        activation = list(ACTIVATIONS).index(self.activation)
        rest = [float(number) for number in (self.heads, activation, self.mean, self.k)]
        return torch.tensor([self.eps, *rest], dtype=torch.float64)

    @classmethod
    def of(cls, numbers: Tensor) -> TowerShape:
        """Return the settings that `numbers` encoded."""
        eps, heads, activation, mean, k = numbers.tolist()
        return cls(int(heads), eps, list(ACTIVATIONS)[int(activation)], bool(mean), int(k))


class TowerPart(NamedTuple):
    """The last blocks of a BERT, and their inputs for T texts.

    Attributes:
        tensors: their weights by transformers' names ("encoder.layer.11.output.dense.bias"); of a
            whole tower the embeddings too, with the rows of words that occur in the texts alone.
        start: outputs of the blocks below [T, n, w]; of a whole tower row numbers of the word
            embeddings, int64 [T, n].
        mask: [T, n], bool; True where a position belongs to its text.
        shape: see `TowerShape`.
    """

    tensors: Mapping[str, Tensor]
    start: Tensor
    mask: Tensor
    shape: TowerShape


@dataclass(frozen=True)
class Packing:
    """The places of the positions of T texts, sorted by length.

    Attributes:
        order: the texts by length, shortest first [T].
        rows: the place of each position in the padded texts [T*n], as [N].
        positions: the number of each position in its text [N].
        groups: (number of texts, their length) of each length, in this order.
    """

    order: Tensor
    rows: Tensor
    positions: Tensor
    groups: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, mask: Tensor) -> Packing:
        """Return the packing of texts padded behind their end; mask [T, n], True for tokens."""
        lengths = mask.sum(1)
        order = lengths.argsort(stable=True)
        padded = mask.shape[1]
        counted = torch.arange(padded, device=mask.device)
        inside = (counted < lengths[order].unsqueeze(1)).flatten()
        rows = (order.unsqueeze(1) * padded + counted).flatten()[inside]
        positions = counted.repeat(len(mask))[inside]
        groups = tuple((len(list(texts)), n) for n, texts in groupby(lengths[order].tolist()))
        return cls(order, rows, positions, groups)

    def firsts(self) -> Tensor:
        """Return the places of the first positions of the texts [T]."""
        return (self.positions == 0).nonzero().squeeze(1)

    def unsorted(self, features: Tensor) -> Tensor:
        """Return features [T, d] in the order of the texts before packing."""
        return features[self.order.argsort()]


class Bert:
    """A BERT without its pooler, with a projection where it has one, or its last blocks.

    Args:
        tensors: its weights by transformers' names.
        shape: see `TowerShape`.
        trained: let gradients reach the weights. Frozen weights are laid out once for the
            processor (`FrozenLinear`).
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], shape: TowerShape, *, trained: bool = False
    ) -> None:
        self.tensors, self.shape, self.trained = dict(tensors), shape, trained
        layers = {int(name.split(".")[2]) for name in tensors if name.startswith("encoder.layer.")}
        self.blocks = [f"encoder.layer.{layer}." for layer in sorted(layers)]
        self._maps: dict[tuple[str, ...], FrozenLinear] = {}

    @property
    def width(self) -> int:
        """The width of hidden states, and of word embeddings."""
        return self.tensors[WORDS].shape[1]

    @property
    def positions(self) -> int:
        """The longest text that has position embeddings."""
        return len(self.tensors[_POSITIONS])

    @property
    def dim(self) -> int:
        """The width of the outputs."""
        projection = self.tensors.get(f"{PROJECTION}.weight")
        return self.width if projection is None else len(projection)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.tensors[WORDS].device

    @property
    def kept_bytes(self) -> int:
        """Bytes of activations that a token leaves behind for the backward pass."""
        inner = len(self.tensors[f"{self.blocks[0]}intermediate.dense.weight"])
        size = self.tensors[WORDS].element_size()
        return len(self.blocks) * (6 * self.width + inner) * size

    def to(self, device: torch.device) -> Self:
        """Move the weights."""
        self.tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}
        self._maps.clear()
        return self

    def embed(self, words: Tensor, positions: Tensor) -> Tensor:
        """Add types and positions to word embeddings and normalise: [..., w] to [..., w].

        Args:
            words: word embeddings.
            positions: their numbers in the text [...].
        """
        hidden = words + self.tensors[_TYPES][0] + self.tensors[_POSITIONS][positions]
        return self._norm("embeddings.LayerNorm", hidden)

    def read(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        """Return outputs [T, d] for word embeddings [T, n, w], differentiable.

        Args:
            embeddings: before types and positions.
            mask: True for the positions of a text [T, n]; the others are behind them.
        """
        packing = Packing.of(mask)
        words = embeddings.flatten(0, 1)[packing.rows]
        return self._read(self.embed(words, packing.positions), packing)

    def read_from(self, start: Tensor, mask: Tensor) -> Tensor:
        """Return outputs [T, d] for the inputs of a part, see `TowerPart`."""
        packing = Packing.of(mask)
        inputs = start.flatten(0, 1)[packing.rows]
        if WORDS in self.tensors:
            inputs = self.embed(F.embedding(inputs, self.tensors[WORDS]), packing.positions)
        return self._read(inputs, packing)

    def states(self, ids: Tensor, mask: Tensor, blocks: int) -> Tensor:
        """Return hidden states [T, n, w] behind the first blocks; zero where there is padding.

        Args:
            ids: token ids [T, n].
            mask: True for the positions of a text [T, n].
            blocks: how many blocks.
        """
        packing = Packing.of(mask)
        words = self.tensors[WORDS][ids.flatten()[packing.rows]]
        hidden = self.embed(words, packing.positions)
        with same_bits(hidden.device):
            for block in self.blocks[:blocks]:
                hidden = self._block(block, hidden, packing)
        padded = hidden.new_zeros(mask.numel(), self.width)
        padded[packing.rows] = hidden
        return padded.view(*mask.shape, self.width)

    def _read(self, hidden: Tensor, packing: Packing) -> Tensor:
        """Return outputs [T, d] of all blocks for the input [N, w] of the first."""
        *lower, last = self.blocks
        with same_bits(hidden.device):
            for block in lower:
                hidden = self._block(block, hidden, packing)
            if self.shape.mean:
                hidden = self._block(last, hidden, packing)
                parts = torch.split(hidden, [texts * length for texts, length in packing.groups])
                pairs = zip(parts, packing.groups, strict=True)
                output = torch.cat([part.view(*group, -1).mean(1) for part, group in pairs])
            else:
                output = self._block_at_first(last, hidden, packing)
        output = packing.unsorted(output)
        if f"{PROJECTION}.weight" not in self.tensors:
            return output
        return F.linear(output, *(self.tensors[f"{PROJECTION}.{k}"] for k in ("weight", "bias")))

    def _block(self, block: str, hidden: Tensor, packing: Packing) -> Tensor:
        """Run one block: [N, w] to [N, w]."""
        names = (f"{block}{_ATTENTION}{name}" for name in ("query", "key", "value"))
        q, k, v = (self._per_head(x, packing.groups) for x in self._linear(hidden, *names))
        return self._behind(block, hidden, q, k, v)

    def _block_at_first(self, block: str, hidden: Tensor, packing: Packing) -> Tensor:
        """Run one block at the first positions of the texts alone: [N, w] to [T, w]."""
        first = hidden[packing.firsts()]
        [query] = self._linear(first, f"{block}{_ATTENTION}query")
        q = self._per_head(query, [(texts, 1) for texts, _ in packing.groups])
        names = (f"{block}{_ATTENTION}{name}" for name in ("key", "value"))
        k, v = (self._per_head(x, packing.groups) for x in self._linear(hidden, *names))
        return self._behind(block, first, q, k, v)

    def _behind(
        self, block: str, x: Tensor, q: list[Tensor], k: list[Tensor], v: list[Tensor]
    ) -> Tensor:
        """Return the outputs [M, w] at positions x, whose queries attend to all of their text."""
        attended = map(F.scaled_dot_product_attention, q, k, v)
        mixed = torch.cat([part.transpose(1, 2).flatten(0, 1).flatten(1) for part in attended])
        [added] = self._linear(mixed, f"{block}attention.output.dense")
        first = self._norm(f"{block}attention.output.LayerNorm", added + x)
        [inner] = self._linear(first, f"{block}intermediate.dense")
        [outer] = self._linear(ACTIVATIONS[self.shape.activation](inner), f"{block}output.dense")
        return self._norm(f"{block}output.LayerNorm", outer + first)

    def _per_head(self, x: Tensor, groups: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Split [N, w] into [t, heads, n, w/heads] for each group of t texts of length n."""
        parts = torch.split(x, [texts * length for texts, length in groups])
        pairs = zip(parts, groups, strict=True)
        return [part.view(*group, self.shape.heads, -1).transpose(1, 2) for part, group in pairs]

    def _linear(self, x: Tensor, *names: str) -> Sequence[Tensor]:
        """Return the outputs of linear maps of the same input."""
        weights, biases = ([self.tensors[f"{n}.{k}"] for n in names] for k in ("weight", "bias"))
        if self.trained:
            return [F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
        if names not in self._maps:
            self._maps[names] = FrozenLinear(weights, biases)
        return self._maps[names](x).chunk(len(names), dim=1)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.shape.eps)


def bert_sizes(config: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the size of each tensor of a BERT without its pooler, by transformers' names.

    Args:
        config: transformers' configuration.
    """
    w, inner = config["hidden_size"], config["intermediate_size"]
    sizes: dict[str, tuple[int, ...]] = {
        WORDS: (config["vocab_size"], w),
        _POSITIONS: (config["max_position_embeddings"], w),
        _TYPES: (config["type_vocab_size"], w),
    }
    norms = ["embeddings.LayerNorm"]
    for layer in range(config["num_hidden_layers"]):
        block = f"encoder.layer.{layer}."
        maps = {f"{_ATTENTION}{name}": (w, w) for name in ("query", "key", "value")}
        maps |= {"attention.output.dense": (w, w)}
        maps |= {"intermediate.dense": (inner, w), "output.dense": (w, inner)}
        for name, size in maps.items():
            sizes |= {f"{block}{name}.weight": size, f"{block}{name}.bias": size[:1]}
        norms += [f"{block}attention.output.LayerNorm", f"{block}output.LayerNorm"]
    return sizes | {f"{norm}.{kind}": (w,) for norm in norms for kind in ("weight", "bias")}
