"""A model whose parameters are prompts, around a CLIP that stays as it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from fedray.errors import UserError
from fedray.language.encoders import TextEncoder, Tokens
from fedray.language.encoders.openclip import OpenClipText
from fedray.models.classifier import Classifier, ClassifierOutput
from fedray.models.clip.frozen import FrozenClip

__all__ = ["ClassTexts", "PromptedClip", "Stage", "insert", "placeholders", "word_embeddings"]

Stage: TypeAlias = Literal["images", "features", "patches"]
"""What a model reads: images [B, channels, S, S], or what the frozen vision tower makes of them:
image features [B, d], or patch features [B, M, d]."""

PHOTO = "a photo of a {}."


class ClassTexts:
    """One text for each class, tokenised and embedded once.

    Args:
        encoder: the frozen text tower.
        names: of K classes.
        template: with {} for the name.
        key: of the experiment, that says how long prompts are.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        names: Sequence[str],
        template: str = PHOTO,
        key: str = "algorithm.length",
    ) -> None:
        self.encoder = encoder
        self.names = tuple(names)
        self.template = template
        self.key = key
        self.tokens = encoder.tokenize([template.format(name) for name in self.names])
        with torch.no_grad():
            self.embeddings = encoder.embed(self.tokens)
        self._parts: dict[Sequence[int], ClassTexts] = {}

    def __len__(self) -> int:
        return len(self.names)

    def among(self, classes: Sequence[int]) -> ClassTexts:
        """The texts of some classes, in this order; cut to what they need."""
        if classes not in self._parts:
            names = [self.names[c] for c in classes]
            self._parts[classes] = ClassTexts(self.encoder, names, self.template, self.key)
        return self._parts[classes]

    def encode(self, context: Tensor | None = None, deep: Sequence[Tensor] = ()) -> Tensor:
        """Unit text features under prompts, differentiable in them.

        Args:
            context: tokens [l, w] that replace positions 1..l of every text, or groups of them
                [G, l, w], which run as one batch; None for the texts as they are.
            deep: prompts of later blocks [l, w] (MaPLe).

        Returns:
            [K, d], or [G, K, d] for groups.

        Raises:
            UserError: when a text has no room for the prompts and the name.
        """
        if context is None:
            return _unit(self.encoder.encode(self.embeddings, self.tokens))
        length = context.shape[-2]
        if length > self._room:
            raise UserError(
                f"{self.key}={length} leaves no room for the names of the classes in the texts "
                f"that the CLIP of model.clip reads; set {self.key} to {self._room} or less"
            )
        groups = context if context.dim() == 3 else context.unsqueeze(0)
        features = _unit(self._encode(groups, length, deep))
        return features if context.dim() == 2 else features.reshape(len(groups), len(self), -1)

    def _encode(self, groups: Tensor, length: int, deep: Sequence[Tensor]) -> Tensor:
        encoder = self.encoder
        if isinstance(encoder, OpenClipText) and encoder.shares_prefixes:
            start = self.embeddings[:1, :1].expand(len(groups), -1, -1)
            prefixes = torch.cat([start, groups.to(start.dtype)], dim=1)
            return encoder.encode_after(
                prefixes, self.embeddings[:, 1 + length :], self.tokens, deep
            )
        inserted, tokens = insert(self.embeddings, groups), self._repeated(len(groups))
        if deep:
            if not isinstance(encoder, OpenClipText):
                raise UserError(
                    "prompts of depth > 1 cannot enter a text tower from transformers; set depth=1"
                )
            return encoder.encode(inserted, tokens, deep)
        return encoder.encode(inserted, tokens)

    def _repeated(self, groups: int) -> Tokens:
        own = self.tokens
        return Tokens(
            own.ids.repeat(groups, 1), own.mask.repeat(groups, 1), own.read.repeat(groups)
        )

    @cached_property
    def _room(self) -> int:
        """How many tokens of every text are neither its start, nor its end, nor the name."""
        names = self.encoder.tokenize(self.names)  # each with its start and its end
        return max(0, int((self.tokens.mask.sum(1) - names.mask.sum(1)).min()))


def insert(embeddings: Tensor, context: Tensor) -> Tensor:
    """Put groups of prompts behind the start token of every text.

    Args:
        embeddings: of K texts [K, n, w].
        context: [G, l, w]; replaces positions 1..l.

    Returns:
        [G*K, n, w], group by group.
    """
    groups, length, _ = context.shape
    texts = len(embeddings)
    own = context.to(embeddings.dtype).repeat_interleave(texts, dim=0)
    whole = embeddings.repeat(groups, 1, 1)
    return torch.cat([whole[:, :1], own, whole[:, 1 + length :]], dim=1)


def placeholders(length: int) -> str:
    """CoOp's template: so many words to be replaced, then the name."""
    return "X " * length + "{}."


def word_embeddings(encoder: TextEncoder, words: str, length: int) -> Tensor:
    """The embeddings [length, w] of the first tokens of a text, start token not counted.

    Raises:
        UserError: when the text has fewer.
    """
    tokens = encoder.tokenize([words])
    room = tokens.shortest - 2
    if length > room:
        raise UserError(
            f"algorithm.length={length}, but '{words}' has {room} tokens to start prompts from; "
            f"set algorithm.length to {room} or less, or algorithm.words to a longer text, or to "
            "null for random prompts"
        )
    with torch.no_grad():
        return encoder.embed(tokens)[0, 1 : 1 + length].clone()


class PromptedClip(Classifier, ABC):
    """Prompts around a frozen CLIP; its parameters and buffers are the prompts alone.

    A method says which prompts there are, how they start, and what they do to the text features
    (and, where `reads` is "images", to the image features).

    Args:
        clip: the frozen CLIP; it is not part of the module's state.
        names: of the classes that are trained on.
    """

    reads: Stage = "features"
    length_key = "algorithm.length"
    head: torch.nn.Module = torch.nn.Identity()

    def __init__(self, clip: FrozenClip, names: Sequence[str]) -> None:
        super().__init__()
        object.__setattr__(self, "clip", clip)  # not a submodule: frozen, shared, never sent
        self.names = tuple(name.replace("_", " ") for name in names)
        self._trained = tuple(range(len(names)))
        self._scope: tuple[int, ...] = self._trained
        self._kept: tuple[object, Tensor] | None = None
        self._texts: dict[str, ClassTexts] = {}
        self._fixed: dict[str, Tensor] = {}

    clip: FrozenClip

    @abstractmethod
    def initialise(self, generator: torch.Generator) -> None:
        """Give every prompt its initial value, drawn from `generator`."""

    @abstractmethod
    def text_features(self) -> Tensor:
        """Unit text features of the classes in scope, [K, d] or as the method needs them."""

    def add_classes(self, names: Sequence[str]) -> None:
        """Make more classes known, which are not trained on but may be asked for."""
        self.names += tuple(name.replace("_", " ") for name in names)

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes in scope: what the columns of the logits mean."""
        return self._scope

    @contextmanager
    def among(self, classes: Sequence[int] | None) -> Iterator[None]:
        """Predict among these classes; None for those that are trained on."""
        before = self._scope
        self._scope = self._trained if classes is None else tuple(classes)
        try:
            yield
        finally:
            self._scope = before

    def class_texts(self, template: str = PHOTO) -> ClassTexts:
        """The texts of the classes in scope."""
        if template not in self._texts:
            texts = ClassTexts(self.clip.text, self.names, template, self.length_key)
            self._texts[template] = texts
        return self._texts[template].among(self._scope)

    @torch.no_grad()
    def fixed_texts(self, template: str = PHOTO) -> Tensor:
        """Unit text features [K, d] of the classes in scope without prompts, computed once."""
        if template not in self._fixed:
            device = self.clip.vision.std.device
            with torch.autocast(device.type, enabled=False):  # the same whoever asks first
                texts = [template.format(name) for name in self.names]
                self._fixed[template] = _unit(self.clip.text.features(texts))
        return self._fixed[template][list(self._scope)]

    def texts(self) -> Tensor:
        """Text features; without gradients they are kept until a prompt changes."""
        if torch.is_grad_enabled():
            return self.text_features()
        key = (self._scope, tuple(prompt._version for prompt in self.parameters()))
        if self._kept is None or self._kept[0] != key:
            self._kept = (key, self.text_features())
        return self._kept[1]

    def image_features(self, inputs: Tensor) -> Tensor:
        """Unit features [B, d], or of patches [B, M, d], of images or of frozen features."""
        if inputs.dim() == 4:
            with torch.no_grad():  # no prompt enters here
                encoded = self.clip.vision.encode(self.clip.vision.embed(inputs))
            inputs = encoded[self.reads == "patches"]
        return _unit(inputs)

    def logits(self, image: Tensor, text: Tensor) -> Tensor:
        """exp(logit_scale) times the cosines of [B, d] and [K, d]: [B, K]."""
        return self.clip.scale * image @ text.T

    def forward(self, x: Tensor) -> ClassifierOutput:
        """Image features and logits among the classes in scope, for what the model `reads`."""
        image = self.image_features(x)
        return ClassifierOutput(image, self.logits(image, self.texts()))


def _unit(features: Tensor) -> Tensor:
    return F.normalize(features.float(), dim=-1)
