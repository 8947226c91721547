"""The texts of classes, with prompts inserted."""

from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.base.errors import UserError, shown
from fedray.language.distinct import equal_tokens, refuse_equal
from fedray.language.encoders import TokenEncoder, Tokens
from fedray.language.encoders.openclip import NONE, Branches, Changes, OpenClipText
from fedray.language.names import check_words

PHOTO = "a photo of a {}."
PHOTO_WORDS = 4
"""Words of `PHOTO` before the class name."""


def check_distinct(encoder: OpenClipText, names: Sequence[str]) -> tuple[str, ...]:
    """Return class names as words, with blanks for underscores.

    Raises:
        UserError: if one is no word, or the encoder reads two of them as the same tokens.
    """
    check_words(names, "rename the classes of the data")
    words = tuple(name.replace("_", " ") for name in names)
    pair = equal_tokens(encoder.tokens(words))
    refuse_equal(pair, words, "the CLIP of model.clip", "rename one of them")
    return words


class ClassTexts:
    """One text per class, tokenised and embedded once.

    Args:
        encoder: the frozen text tower.
        names: the names of K classes.
        template: the text, with {} for the class name.
        key: the experiment's key for the length of prompts, for messages.
    """

    def __init__(
        self,
        encoder: OpenClipText,
        names: Sequence[str],
        template: str = PHOTO,
        key: str = "algorithm.length",
    ) -> None:
        self.encoder, self.names, self.template, self.key = encoder, tuple(names), template, key
        self.tokens = encoder.tokenize([template.format(name) for name in self.names])
        with torch.no_grad():
            self.embeddings = encoder.embed(self.tokens)

    def encode(
        self,
        context: Tensor | None = None,
        deep: Sequence[Tensor] = (),
        weights: Changes = NONE,
        branches: Branches = NONE,
    ) -> Tensor:
        """Return unit text features under prompts and additions, differentiable in them.

        Args:
            context: tokens [l, w] that replace positions 1..l of every text, or G such contexts
                [G, l, w], which run as one batch; None for texts without prompts.
            deep: prompts [l, w] of later blocks (MaPLe).
            weights: changes of the tower's parameters by name, see `Changes`.
            branches: parallel adapters by the names of modules, see `Branches`.

        Returns:
            [K, d], or [G, K, d] for groups.

        Raises:
            UserError: if a text is too short for the prompts and the name.
        """
        if context is None:
            return unit(self.encoder.encode(self.embeddings, self.tokens, (), weights, branches))
        self._check_room(context.shape[-2])
        length = context.shape[-2]
        encoder, start = self.encoder, self.embeddings[:1, :1]
        groups = context if context.dim() == 3 else context.unsqueeze(0)
        if encoder.shares_prefixes and not branches:
            starts = start.expand(len(groups), -1, -1)
            prefixes = torch.cat([starts, groups.to(start.dtype)], dim=1)
            suffixes = self.embeddings[:, 1 + length :]
            features = encoder.encode_after(prefixes, suffixes, self.tokens, deep, weights)
        else:
            read, times = self.tokens, len(groups)
            ids, mask = read.ids.repeat(times, 1), read.mask.repeat(times, 1)
            tokens = Tokens(ids, mask, read.read.repeat(times))
            inserted = insert(self.embeddings, groups)
            features = encoder.encode(inserted, tokens, deep, weights, branches)
        return unit(features).reshape(*context.shape[:-2], len(self.names), -1)

    def _check_room(self, length: int) -> None:
        """Raise a UserError if `length` tokens leave no room for a class name."""
        room = int(self._free.min())
        if length > room:
            name = shown(self.names[int(self._free.argmin())])
            raise UserError(
                f"{self.key}={length} leaves no room for the class name {name} in the "
                f"{self.encoder.limit} tokens that the CLIP of model.clip reads; shorten the name, "
                f"or set {self.key} to {max(room, 0)} or less"
            )

    @cached_property
    def _free(self) -> Tensor:
        """The number of tokens of each text besides the start, the end and the class name [K]."""
        texts = self.encoder.tokens([self.template.format(name) for name in self.names])
        names = self.encoder.tokens(self.names)  # with start and end tokens
        return texts.mask.sum(1) - names.mask.sum(1)


def insert(embeddings: Tensor, context: Tensor) -> Tensor:
    """Replace positions 1..l of K texts [K, n, w] by each of G contexts [G, l, w]: [G*K, n, w]."""
    groups, length, _ = context.shape
    prompts = context.to(embeddings.dtype).repeat_interleave(len(embeddings), dim=0)
    whole = embeddings.repeat(groups, 1, 1)
    return torch.cat([whole[:, :1], prompts, whole[:, 1 + length :]], dim=1)


def placeholders(length: int) -> str:
    """Return CoOp's template: `length` words to be replaced, then the class name."""
    return "X " * length + "{}."


def maple_template(length: int) -> str:
    """Return `PHOTO`, of which `length` words are replaced, or `placeholders` if it has fewer."""
    return PHOTO if length <= PHOTO_WORDS else placeholders(length)


def word_embeddings(encoder: TokenEncoder, words: str, length: int) -> Tensor:
    """Return the embeddings [length, w] of the first tokens of a text after the start token.

    Raises:
        UserError: if the text has fewer tokens.
    """
    tokens = encoder.tokenize([words])
    count = tokens.shortest - 2
    if length > count:
        raise UserError(
            f"algorithm.length={length}, but '{words}' has only {count} tokens; "
            f"set algorithm.length to {count} or less, or algorithm.words to a longer text, or to "
            "null for random prompts"
        )
    with torch.no_grad():
        return encoder.embed(tokens)[0, 1 : 1 + length].clone()


def unit(features: Tensor) -> Tensor:
    """Scale features [..., d] to unit length, in float32."""
    return F.normalize(features.float(), dim=-1)
