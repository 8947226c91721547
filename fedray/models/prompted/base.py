"""Base class of models whose parameters are prompts around a frozen CLIP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedray.errors import UserError
from fedray.language.encoders.openclip import NONE, Branches, Changes
from fedray.models.classifier import Classifier, ClassifierOutput
from fedray.models.clip.frozen import FrozenClip
from fedray.models.inputs import (
    ImageFeatures,
    Inputs,
    PatchEmbeddings,
    PatchFeatures,
    Pixels,
    values_of,
)
from fedray.models.prompted.texts import PHOTO, ClassTexts, check_distinct, placeholders, unit


@dataclass(frozen=True, slots=True, eq=False)
class TextOutput(ClassifierOutput):
    """Logits, and the text features with which they were computed.

    Attributes:
        text: what `PromptedClip.text_features` returned.
    """

    text: Tensor


class PromptedClip(Classifier, ABC):
    """Base of models with prompts around a frozen CLIP; the prompts are their only parameters.

    A subclass defines the prompts, their initial values, and their effect on text features and, if
    the model reads pixels, on image features. A model that changes nothing in the vision tower
    reads `ImageFeatures` or `PatchFeatures`, which can be computed once; it accepts `Pixels`, too.
    One that reads `Pixels` also accepts `PatchEmbeddings`.

    Args:
        clip: the frozen CLIP, which is not part of the module's state.
        names: the names of the classes that are trained on.
    """

    reads: type[Inputs] = ImageFeatures
    length_key = "algorithm.length"
    head: torch.nn.Module = torch.nn.Identity()

    def __init__(self, clip: FrozenClip, names: Sequence[str]) -> None:
        super().__init__()
        object.__setattr__(self, "clip", clip)  # not a submodule: frozen, shared, never sent
        self.names = check_distinct(clip.text, names)
        self._trained = tuple(range(len(names)))
        self._classes: tuple[int, ...] = self._trained
        self._cached: _CachedFeatures | None = None
        self._texts: dict[str, ClassTexts] = {}
        self._fixed: dict[str, Tensor] = {}
        self._scope: tuple[Sequence[int], Tensor] | None = None

    clip: FrozenClip

    def __getstate__(self) -> dict[str, object]:
        """Leave the cached features out of copies, whose prompts are other tensors."""
        return {**vars(self), "_cached": None}

    @abstractmethod
    def initialise(self, generator: torch.Generator) -> None:
        """Set the initial values of all prompts, drawn from `generator`."""

    @abstractmethod
    def text_features(self) -> Tensor:
        """Return unit text features of the classes in scope: [K, d], or another shape."""

    def add_classes(self, names: Sequence[str]) -> None:
        """Add classes that are not trained on but may be predicted."""
        self.names = check_distinct(self.clip.text, [*self.names, *names])

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes in scope, which are the columns of the logits."""
        return self._classes

    @property
    def scope(self) -> Tensor:
        """The classes in scope, int64 [K], on the device."""
        if self._scope is None or self._scope[0] != self._classes:
            device = self.clip.vision.std.device
            self._scope = (self._classes, torch.tensor(self._classes, device=device))
        return self._scope[1]

    @contextmanager
    def class_subset(self, classes: Sequence[int] | None) -> Iterator[None]:
        """Predict among these classes within the block; None for the classes trained on."""
        before = self._classes
        self._classes = self._trained if classes is None else tuple(classes)
        try:
            yield
        finally:
            self._classes = before

    def class_texts(self, template: str = PHOTO) -> ClassTexts:
        """Return the texts of the classes in scope."""
        if template not in self._texts:
            texts = ClassTexts(self.clip.text, self.names, template, self.length_key)
            self._texts[template] = texts
        return self._texts[template].class_subset(self._classes)

    def texts_after(self, context: Tensor) -> Tensor:
        """Return unit text features [K, d] of the classes in scope after a context, as CoOp's.

        Args:
            context: tokens [m, w] before every class name; of G contexts [G, m, w], the result is
                [G, K, d].
        """
        return self.class_texts(placeholders(context.shape[-2])).encode(context)

    @torch.no_grad()
    def fixed_texts(self, template: str = PHOTO) -> Tensor:
        """Return unit text features [K, d] of the classes in scope without prompts."""
        if template not in self._fixed:
            device = self.clip.vision.std.device
            with torch.autocast(device.type, enabled=False):  # the caller must not affect the cache
                texts = [template.format(name) for name in self.names]
                features = unit(self.clip.text.features(texts))
            self._fixed[template] = features
        return self._fixed[template][self.scope]

    def texts(self) -> Tensor:
        """Return text features; without gradients, they are cached until a prompt changes.

        A prompt is recognised by its tensor and version: `torch.func.functional_call` replaces the
        tensor, and training changes the version.
        """
        prompts = list(self.parameters())
        if torch.is_grad_enabled() or any(map(torch.is_inference, prompts)):  # without versions
            return self.text_features()
        is_autocast = torch.is_autocast_enabled(self.scope.device.type)
        key = (self._classes, is_autocast, *((id(p), p._version) for p in prompts))
        if self._cached is None or self._cached.key != key:
            self._cached = _CachedFeatures(key, prompts, self.text_features())
        return self._cached.features

    def image_features(self, x: Inputs) -> Tensor:
        """Return unit image features [B, d] or patch features [B, M, d].

        Raises:
            TypeError: if the input is neither `Pixels` nor of the type that the model reads.
        """
        return unit(self.encode(x))

    def encode(
        self,
        x: Inputs,
        prompts: Sequence[Tensor] = (),
        weights: Changes = NONE,
        branches: Branches = NONE,
    ) -> Tensor:
        """Return image features [B, d] or patch features [B, M, d], before they are scaled.

        They are differentiable in pixels, prompts and additions, which a model that reads `Pixels`
        can have.

        Args:
            x: the images.
            prompts: prompts of the first blocks, see `VisionTower.encode`.
            weights: changes of the tower's parameters by name, see `Changes`.
            branches: parallel adapters by the names of modules, see `Branches`.
        """
        if self.reads is not Pixels and not isinstance(x, Pixels):
            return values_of(x, self.reads, Pixels)
        values, vision = values_of(x, Pixels, PatchEmbeddings), self.clip.vision
        embedded = vision.embed(values) if isinstance(x, Pixels) else values
        if prompts or weights or branches:
            return vision.encode_prompted(embedded, prompts, weights, branches)
        image, patches = vision.encode(embedded)
        return patches if self.reads is PatchFeatures else image

    def logits(self, image: Tensor, text: Tensor) -> Tensor:
        """Return exp(logit_scale) times the cosines of [..., B, d] and [..., K, d]: [..., B, K]."""
        return scaled_products(image, text, self.clip.scale)

    def forward(self, x: Inputs) -> ClassifierOutput:
        """Return a `TextOutput` with logits over the class subset."""
        image, text = self.image_features(x), self.texts()
        return TextOutput(image, self.logits(image, text), text)


class _CachedFeatures(NamedTuple):
    """Text features of prompts; the prompts stay alive, so that no other tensor has their id."""

    key: tuple[object, ...]
    prompts: Sequence[Tensor]
    features: Tensor


def check_depth(depth: int, *layers: int) -> None:
    """Raise a UserError if a tower has fewer blocks than `depth`."""
    if depth > (most := min(layers)):
        raise UserError(
            f"algorithm.depth={depth}, but a tower of model.clip has only {most} blocks; set "
            f"algorithm.depth to {most} or less"
        )


def scaled_products(image: Tensor, text: Tensor, scale: float) -> Tensor:
    """Return `scale` times the inner products of [..., B, d] and [..., K, d]: [..., B, K].

    Computed in float32, also under autocast. In bfloat16, cosines have about three digits, and a
    scale of 100 turns that into errors of half a logit.
    """
    with torch.autocast(image.device.type, enabled=False):
        return scale * image.float() @ text.float().mT
