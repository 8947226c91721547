"""BERT on texts of different lengths without padding, with frozen or trained weights.

The positions of all texts form one matrix [N, w], sorted by the length of texts. Linear maps, layer
norms and activations thus process no padding, and attention is computed at once for all texts of
one length, without a mask. If the first position represents a text, the last block is computed at
that position alone. Outputs and gradients agree with transformers' BertModel to 1e-5 of their size.
There is no dropout.

Devlin et al., "BERT", NAACL 2019: blocks of attention and two linear maps, each with a residual
connection and followed by layer norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.language.encoders.frozen import FrozenLinear
from fedray.language.encoders.kernels import same_bits

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
}
"""Activation functions by their names in transformers."""
WORDS = "embeddings.word_embeddings.weight"
PROJECTION = "projection"
_POSITIONS = "embeddings.position_embeddings.weight"
_TYPES = "embeddings.token_type_embeddings.weight"
_ATTENTION = "attention.self."


@dataclass(frozen=True)
class TowerShape:
    """The settings of a BERT that do not follow from its tensors.

    Attributes:
        heads: number of attention heads.
        eps: epsilon of the layer norms.
        activation: the activation between the two linear maps, a key of `ACTIVATIONS`.
        mean: True if a text's output is the mean over its positions, False for the first position.
        k: texts per class.
    """

    heads: int
    eps: float
    activation: str
    mean: bool
    k: int = 1

    def numbers(self) -> Tensor:
        """Encode the settings as a float64 tensor [5], which can be sent and stored."""
        activation = list(ACTIVATIONS).index(self.activation)
        integers = [float(number) for number in (self.heads, activation, self.mean, self.k)]
        return torch.tensor([self.eps, *integers], dtype=torch.float64)

    @classmethod
    def of(cls, numbers: Tensor) -> TowerShape:
        """Decode the settings that `numbers` encoded."""
        eps, heads, activation, mean, k = numbers.tolist()
        return cls(int(heads), eps, list(ACTIVATIONS)[int(activation)], bool(mean), int(k))


class TowerPart(NamedTuple):
    """The last blocks of a BERT, and their inputs for T texts.

    Attributes:
        tensors: the weights by transformers' names ("encoder.layer.11.output.dense.bias"). For a
            whole tower also the embeddings, reduced to the words that occur in the texts.
        start: outputs of the lower blocks [T, n, w]; for a whole tower the rows of word embeddings,
            int64 [T, n].
        mask: [T, n], bool; True where a position belongs to its text.
        shape: see `TowerShape`.
    """

    tensors: Mapping[str, Tensor]
    start: Tensor
    mask: Tensor
    shape: TowerShape


@dataclass(frozen=True)
class Packing:
    """The layout of the N positions of T texts, sorted by the length of texts.

    Attributes:
        order: the numbers of the texts, shortest first [T].
        rows: the row of each position among the T*n positions of the padded texts [N].
        positions: the position within its text [N].
        groups: (number of texts, length) of each length, in ascending order.
    """

    order: Tensor
    rows: Tensor
    positions: Tensor
    groups: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, mask: Tensor) -> Packing:
        """Return the packing of texts padded at their ends; mask [T, n], True for tokens."""
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
        """Return the indices of the first positions of the texts [T]."""
        return (self.positions == 0).nonzero().squeeze(1)

    def unsorted(self, features: Tensor) -> Tensor:
        """Return features [T, d] in the original order of the texts."""
        return features[self.order.argsort()]


class Bert:
    """A BERT without pooler, or its last blocks, optionally with a projection.

    Args:
        tensors: the weights by transformers' names.
        shape: see `TowerShape`.
        trained: True if weights need gradients; frozen weights are laid out for the processor once
            (`FrozenLinear`).

    Attributes:
        half: whether frozen linear maps compute in bfloat16; set it before the first pass.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], shape: TowerShape, *, trained: bool = False
    ) -> None:
        self.tensors, self.shape, self.trained = dict(tensors), shape, trained
        layers = {int(name.split(".")[2]) for name in tensors if name.startswith("encoder.layer.")}
        self.blocks = [f"encoder.layer.{layer}." for layer in sorted(layers)]
        self.half = False
        self._maps: dict[tuple[str, ...], FrozenLinear] = {}

    @property
    def width(self) -> int:
        """The width of hidden states, and of word embeddings."""
        return self.tensors[WORDS].shape[1]

    @property
    def positions(self) -> int:
        """The number of position embeddings, which limits the length of texts."""
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
        """Estimated bytes of activations per token that are stored for the backward pass."""
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
            positions: their positions in the texts [...].
        """
        hidden = words + self.tensors[_TYPES][0] + self.tensors[_POSITIONS][positions]
        return self._norm("embeddings.LayerNorm", hidden)

    def read(self, embeddings: Tensor, mask: Tensor) -> Tensor:
        """Return outputs [T, d] for word embeddings [T, n, w], differentiable.

        Args:
            embeddings: word embeddings, before types and positions are added.
            mask: True for the positions of a text [T, n]; padding follows them.
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
        """Return the hidden states [T, n, w] after the first blocks; zero for padding.

        Args:
            ids: token ids [T, n].
            mask: True for the positions of a text [T, n].
            blocks: number of blocks.
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
        """Return the outputs [T, d] of all blocks, given the input [N, w] of the first block."""
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
        return self._attend(block, hidden, q, k, v)

    def _block_at_first(self, block: str, hidden: Tensor, packing: Packing) -> Tensor:
        """Run one block at the first positions of the texts alone: [N, w] to [T, w]."""
        first = hidden[packing.firsts()]
        [query] = self._linear(first, f"{block}{_ATTENTION}query")
        q = self._per_head(query, [(texts, 1) for texts, _ in packing.groups])
        names = (f"{block}{_ATTENTION}{name}" for name in ("key", "value"))
        k, v = (self._per_head(x, packing.groups) for x in self._linear(hidden, *names))
        return self._attend(block, first, q, k, v)

    def _attend(
        self, block: str, x: Tensor, q: list[Tensor], k: list[Tensor], v: list[Tensor]
    ) -> Tensor:
        """Return a block's outputs [M, w] at positions x, whose queries attend to their texts."""
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
        """Return the outputs of several linear maps of one input."""
        weights, biases = ([self.tensors[f"{n}.{k}"] for n in names] for k in ("weight", "bias"))
        if self.trained:
            return [F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
        if names not in self._maps:
            self._maps[names] = FrozenLinear(weights, biases, half=self.half)
        return self._maps[names](x).chunk(len(names), dim=1)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.shape.eps)


def bert_sizes(config: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of a BERT without pooler, by transformers' names.

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
