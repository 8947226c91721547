"""The interface of text encoders (words in, vectors out, gradients to the words' vectors).

Also their registry: an encoder is chosen by name, with typed parameters, and loaded when needed.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedray.config import Component, Frozen, parameters
from fedray.errors import UserError
from fedray.registry import Registry

if TYPE_CHECKING:
    from fedray.language.encoders.bert_blocks import TowerPart

_log = logging.getLogger(__name__)

BATCH = 2048
"""Tokens that go through an encoder at once; bounds memory, and what a cache must hold."""


@dataclass(frozen=True)
class Tokens:
    """Tokenised texts, padded to a common length n.

    Attributes:
        ids: token ids [T, n], int64.
        mask: [T, n], bool; True where a token is part of the text.
        read: [T], int64; the position whose output represents the text, -1 where all of the
            text's positions are averaged.
        cut: which texts are longer than the encoder reads.
    """

    ids: Tensor
    mask: Tensor
    read: Tensor
    cut: tuple[int, ...] = ()

    @cached_property
    def shortest(self) -> int:
        """The number of tokens of the shortest text, special tokens included."""
        return int(self.mask.sum(1).min())

    def widened(self, slots: int) -> Tokens:
        """These tokens with the first `slots` positions part of every text, for what is put there.

        Positions that are added have the id 0; what is read stays where it was.
        """
        if slots <= self.shortest:
            return self
        more = max(slots - self.ids.shape[1], 0)
        ids, mask = F.pad(self.ids, (0, more)), F.pad(self.mask, (0, more))
        covered = torch.arange(ids.shape[1], device=mask.device) < slots
        return Tokens(ids, mask | covered, self.read)

    def batches(self, most: int = BATCH) -> list[Tensor]:
        """The texts in batches of at most so many tokens, those of about equal length together.

        Returns:
            Of each batch its texts, int64; shortest texts first.
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
        """These tokens on a device."""
        ids, mask, read = (tensor.to(device) for tensor in (self.ids, self.mask, self.read))
        return Tokens(ids, mask, read, self.cut)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, texts: Tensor | slice) -> Tokens:
        """Some of the texts, cut behind the longest of them."""
        mask = self.mask[texts]
        longest = int(self.columns(mask).max())
        return Tokens(self.ids[texts, :longest], mask[:, :longest], self.read[texts])

    @staticmethod
    def columns(mask: Tensor) -> Tensor:
        """How many positions reach to each text's last: [T, n] gives [T]."""
        return (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)


class TextEncoder(ABC):
    """A frozen language model: no parameter has a gradient, dropout is off.

    Attributes:
        dim: d, the width of its output.
        identity: names family and content (weights, vocabulary, options); equal identities give
            equal features.
    """

    dim: int
    identity: str

    @property
    @abstractmethod
    def token_width(self) -> int:
        """d', the width of a word embedding."""

    @property
    @abstractmethod
    def limit(self) -> int:
        """The most tokens that it reads, special ones included."""

    @property
    def kept_bytes(self) -> int | None:
        """Bytes of activations that a token leaves behind for the backward pass, about.

        None where nobody knows: long batches of texts are then computed again in that pass.
        """
        return None

    @abstractmethod
    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Tokenise T texts; the tokens are on the encoder's device."""

    @abstractmethod
    def embed(self, tokens: Tokens) -> Tensor:
        """Word embeddings [T, n, d'], before positions are added: g0 of FedTSP."""

    @abstractmethod
    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        """Outputs [T, d] for word embeddings [T, n, d'], differentiable: g1 of FedTSP.

        Args:
            embeddings: from `embed`, some of them replaced by prompts.
            tokens: the tokens they were made of; they decide which positions are attended and read.
        """

    @abstractmethod
    def to(self, device: torch.device) -> Self:
        """Move the weights."""

    def part(self, texts: Sequence[str], blocks: int | None) -> TowerPart:
        """The tower's last blocks and what they start from, for methods that train them.

        Args:
            texts: T texts.
            blocks: how many of the last blocks; None for the whole tower, embeddings included.

        Raises:
            UserError: when the tower is of another kind than BERT's, or has fewer blocks.
        """
        raise UserError(
            f"{type(self).__name__} cannot be trained in part, only a BERT's tower can: set "
            "algorithm.blocks=0, or text.encoder to minilm, bert or align"
        )

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> Tensor:
        """Outputs [T, d] for texts as they are."""
        tokens = self.tokenize(texts)
        batches = tokens.batches()
        parts = [self.encode(self.embed(tokens[batch]), tokens[batch]) for batch in batches]
        return torch.cat(parts)[torch.cat(batches).argsort()]


class TokenlessEncoder(TextEncoder):
    """An encoder that has a vector for a text, and reads no tokens that prompts could replace.

    Args:
        name: what `text.encoder` calls it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._device = torch.device("cpu")

    @abstractmethod
    def features(self, texts: Sequence[str]) -> Tensor:
        """Vectors [T, d] for texts, on the encoder's device."""

    def to(self, device: torch.device) -> Self:
        """Answer on `device`."""
        self._device = device
        return self

    def _no_tokens(self) -> NoReturn:
        raise UserError(
            f"text.encoder={self._name} reads no tokens, so that there is nothing to put "
            "prompts into; set algorithm.prompt_length=0, or text.encoder=minilm"
        )

    @property
    def token_width(self) -> int:
        """Refused: there are no tokens."""
        self._no_tokens()

    @property
    def limit(self) -> int:
        """Refused: there are no tokens."""
        self._no_tokens()

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Refused: there are no tokens."""
        self._no_tokens()

    def embed(self, tokens: Tokens) -> Tensor:
        """Refused: there are no tokens."""
        self._no_tokens()

    def encode(self, embeddings: Tensor, tokens: Tokens) -> Tensor:
        """Refused: there are no tokens."""
        self._no_tokens()


P = TypeVar("P", bound=Frozen)


@dataclass(frozen=True)
class EncoderChoice(ABC, Generic[P]):
    """A kind of text encoder with its parameters, before any weights are loaded.

    Subclasses are the entries of `encoders`; their docstring's first line is their description.

    Attributes:
        name: what `text.encoder` calls it.
        Params: the type of its parameters.
        paper: its source, or "-".
        promptable: whether its encoder reads tokens, which prompts can replace; without, only
            `TextEncoder.features` answers.
        cached: whether its features are worth a file: not where computing them is as fast.
        params: the parameters.
    """

    name: ClassVar[str]
    Params: ClassVar[type[Frozen]]
    paper: ClassVar[str]
    promptable: ClassVar[bool] = True
    cached: ClassVar[bool] = True

    params: P

    @abstractmethod
    def identity(self) -> str:
        """What `build().identity` would be; looks at the weights, does not load them.

        Raises:
            UserError: as `build`.
        """

    def content(self) -> str:
        """Names the content of its files alone, as far as the encoder can tell it apart.

        Raises:
            UserError: as `build`.
        """
        return self.identity()

    @property
    def per_class(self) -> bool:
        """Whether a class has one vector, whatever its texts say: only some controls."""
        return False

    def width(self) -> int | None:
        """d, what `build().dim` would be, where it can be known without loading weights.

        Raises:
            UserError: as `build`.
        """
        return None

    def check(self, texts: Sequence[str]) -> None:
        """Check, without loading weights, that the encoder can have features of all these texts.

        Raises:
            UserError: when it cannot.
        """
        del texts

    @abstractmethod
    def build(self) -> TextEncoder:
        """Load the encoder, frozen, on the CPU.

        Raises:
            UserError: when its package or weights are not there, with what to install or pass.
        """


encoders: Registry[type[EncoderChoice[Any]]] = Registry("text encoder", "fedray.language.encoders")


def encoder_choice(component: Component, key: str = "text.encoder") -> EncoderChoice[Any]:
    """The text encoder that a component names, with its validated parameters.

    Args:
        component: name and parameters.
        key: the key that holds it, for messages.

    Raises:
        UserError: when there is no such encoder, or a parameter is unknown or out of bounds.
    """
    params = parameters(component, "text encoder", key)
    return encoders.get(component.name)(params)


def pick(hidden: Tensor, read: Tensor) -> Tensor:
    """Of each text the output at one position: [T, n, w] and [T] give [T, w]."""
    return hidden[torch.arange(len(hidden), device=hidden.device), read]


@contextmanager
def same_bits(device: torch.device) -> Iterator[None]:
    """On a GPU, attention by plain products: the fused kernels' gradients vary from run to run."""
    if device.type == "cuda":
        with sdpa_kernel(SDPBackend.MATH):
            yield
    else:
        yield


def as_stored(weight: Tensor) -> AbstractContextManager[Any]:
    """Autocast where weights are kept in bfloat16; else the arithmetic of the caller."""
    if weight.dtype == torch.bfloat16:
        return torch.autocast(weight.device.type, torch.bfloat16)
    return nullcontext()


def freeze(module: torch.nn.Module) -> None:
    """Switch off gradients of parameters, and dropout."""
    module.requires_grad_(False).eval()


def too_long(texts: Sequence[str], lengths: Sequence[int], limit: int) -> tuple[int, ...]:
    """Find, and say, which texts are longer than the encoder reads."""
    cut = tuple(i for i, length in enumerate(lengths) if length > limit)
    warn_cut(texts, cut, limit)
    return cut


def warn_cut(texts: Sequence[str], cut: Sequence[int], limit: int) -> None:
    """Say that some texts are longer than the encoder reads."""
    if cut:
        _log.warning(
            "%d of %d texts have more than the %d tokens that the text encoder reads and are cut "
            "there, for example '%s'",
            len(cut),
            len(texts),
            limit,
            texts[cut[0]],
        )
