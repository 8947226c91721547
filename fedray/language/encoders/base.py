"""The interface of text encoders, which map texts to vectors, and their registry.

Gradients reach word embeddings. An encoder is chosen by name, with typed parameters, and loaded on
first use.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedray.base.errors import UserError
from fedray.config import Entry
from fedray.config.registry import Registry

_log = logging.getLogger(__name__)

BATCH = 2048
"""Maximal number of tokens per batch of an encoder; bounds memory."""


@dataclass(frozen=True)
class Tokens:
    """Tokenised texts, padded to a common length n.

    Attributes:
        ids: token ids [T, n], int64.
        mask: [T, n], bool; True where a token is part of the text.
        read: [T], int64; the position whose output represents the text, or -1 if the outputs of all
            positions are averaged.
    """

    ids: Tensor
    mask: Tensor
    read: Tensor

    @cached_property
    def shortest(self) -> int:
        """The number of tokens of the shortest text, special tokens included."""
        return int(self.mask.sum(1).min())

    def widened(self, slots: int) -> Tokens:
        """Return tokens whose first `slots` positions count as part of every text, for prompts.

        Added positions have id 0. The positions in `read` do not change.
        """
        if slots <= self.shortest:
            return self
        more = max(slots - self.ids.shape[1], 0)
        ids, mask = F.pad(self.ids, (0, more)), F.pad(self.mask, (0, more))
        covered = torch.arange(ids.shape[1], device=mask.device) < slots
        return Tokens(ids, mask | covered, self.read)

    def batches(self, most: int = BATCH) -> list[Tensor]:
        """Divide the texts into batches of about equal length and at most `most` tokens.

        Returns:
            The numbers of the texts of each batch, int64; shortest texts first.
        """
        lengths = self.columns(self.mask)
        order = lengths.argsort(stable=True)
        starts, used = [], most
        for place, length in enumerate(lengths[order].tolist()):
            if used + length > most:
                starts.append(place)
                used = 0
            used += length
        return list(order.tensor_split(starts[1:]))

    def to(self, device: torch.device) -> Tokens:
        """Return the tokens on a device."""
        ids, mask, read = (tensor.to(device) for tensor in (self.ids, self.mask, self.read))
        return Tokens(ids, mask, read)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, texts: Tensor | slice) -> Tokens:
        """Return the tokens of some texts, cut after the longest of them."""
        mask = self.mask[texts]
        longest = int(self.columns(mask).max())
        return Tokens(self.ids[texts, :longest], mask[:, :longest], self.read[texts])

    @staticmethod
    def columns(mask: Tensor) -> Tensor:
        """Return the number of positions up to the last token of each text: [T, n] to [T]."""
        return (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)


class TowerPart(NamedTuple):
    """The last blocks of a BERT, and their inputs for T texts.

    Attributes:
        tensors: the weights by transformers' names, blocks counted from the first of the part
            ("encoder.layer.0.output.dense.bias"). For a whole tower also the embeddings, reduced to
            the words that occur in the texts.
        start: outputs of the lower blocks [T, n, w]; for a whole tower the rows of word embeddings,
            int64 [T, n].
        mask: [T, n], bool; True where a position belongs to its text.
        shape: settings that do not follow from the tensors, float64 [5]: epsilon of the layer
            norms, attention heads, position in `bert.ACTIVATIONS`, 1 if a text's output is the mean
            over its positions and 0 for the first position, texts per class.
    """

    tensors: Mapping[str, Tensor]
    start: Tensor
    mask: Tensor
    shape: Tensor


class TextEncoder(ABC):
    """A frozen language model that maps texts to vectors.

    Attributes:
        dim: d, the width of its output.
        identity: a text with the family and a hash of the content (weights, vocabulary, options);
            encoders of equal identity compute equal features.
    """

    dim: int
    identity: str

    @abstractmethod
    def features(self, texts: Sequence[str]) -> Tensor:
        """Return outputs [T, d] for texts without prompts."""

    def weights(self) -> Iterable[Tensor]:
        """Return the weights; empty for an encoder without weights."""
        return ()

    def to(self, device: torch.device) -> Self:
        """Move the weights, if any, to a device."""
        return self

    def part(self, texts: Sequence[str], blocks: int | None) -> TowerPart:
        """Return the tower's last blocks and their inputs, for methods that train them.

        Args:
            texts: T texts.
            blocks: number of last blocks; None for the whole tower, embeddings included.

        Raises:
            UserError: if the encoder is no BERT, or has fewer blocks.
        """
        raise UserError(
            f"{type(self).__name__} cannot be trained in part, unlike a BERT; set "
            "algorithm.blocks=0, or text.encoder to minilm, bert or align"
        )


class TokenEncoder(TextEncoder):
    """A text encoder that reads tokens; prompts can replace their word embeddings.

    Parameters need no gradients, and dropout is off.
    """

    @property
    @abstractmethod
    def token_width(self) -> int:
        """d', the width of a word embedding."""

    @property
    @abstractmethod
    def limit(self) -> int:
        """The maximal number of tokens of a text, special tokens included."""

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenise T texts, on the encoder's device."""

    @abstractmethod
    def embed(self, tokens: Tokens) -> Tensor:
        """Return word embeddings [T, n, d'] before positions are added: g0 of FedTSP."""

    @abstractmethod
    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        """Return outputs [T, d] for word embeddings [T, n, d'], differentiable: g1 of FedTSP.

        Args:
            embeddings: the output of `embed`, possibly with prompts.
            tokens: the tokens of the texts; they define which positions are attended and read.
        """

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenize(texts)
        batches = tokens.batches()
        parts = [self.encode(self.embed(tokens[batch]), tokens[batch]) for batch in batches]
        return torch.cat(parts)[torch.cat(batches).argsort()]


class EncoderChoice(Entry, ABC):
    """A kind of text encoder with its parameters, before any weights are loaded.

    Subclasses are the entries of `encoders`; the first line of a docstring describes the entry.
    """

    cached: ClassVar[bool] = True
    """Whether features are cached on disk; False if computing them is as fast."""

    @abstractmethod
    def identity(self) -> str:
        """Return `build().identity` without loading weights.

        Raises:
            UserError: as `build`.
        """

    @property
    def per_class(self) -> bool:
        """True if all texts of a class have one vector, as in some controls."""
        return False

    def width(self) -> int | None:
        """Return `build().dim`, or None if the width is unknown before the weights are loaded.

        Raises:
            UserError: as `build`.
        """
        return None

    def check(self, texts: Sequence[str]) -> None:
        """Raise a UserError if the encoder cannot embed all texts; loads no weights."""

    @abstractmethod
    def build(self) -> TextEncoder:
        """Load the encoder, frozen, on the CPU.

        Raises:
            UserError: if a package or weights are missing, with what to install or pass.
        """


encoders: Registry[type[EncoderChoice]] = Registry("text encoder", "fedray.language.encoders")


def pick(hidden: Tensor, read: Tensor) -> Tensor:
    """Return the output of each text at one position: [T, n, w] and positions [T] to [T, w]."""
    return hidden[torch.arange(len(hidden), device=hidden.device), read]


def same_bits(device: torch.device) -> AbstractContextManager[None]:
    """Use no fused attention kernels on a GPU, because their gradients vary between runs."""
    return sdpa_kernel(SDPBackend.MATH) if device.type == "cuda" else nullcontext()


def freeze(module: torch.nn.Module) -> None:
    """Switch off the gradients of parameters, and dropout."""
    module.requires_grad_(False).eval()


def warn_cut(texts: Sequence[str], is_cut: Sequence[bool], limit: int) -> None:
    """Warn of texts that were cut after `limit` tokens."""
    cut = [text for text, cuts in zip(texts, is_cut, strict=True) if cuts]
    if cut:
        _log.warning(
            "%d of %d texts have more than the %d tokens that the text encoder reads and are cut, "
            "for example '%s'",
            len(cut),
            len(texts),
            limit,
            cut[0],
        )
