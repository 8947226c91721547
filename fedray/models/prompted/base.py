"""Base class of models whose parameters are prompts around a frozen CLIP."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from fedray.base.errors import UserError
from fedray.language.encoders.openclip import NONE, Branches, Changes
from fedray.models.classifier import Classifier, ClassifierOutput
from fedray.models.clip.frozen import FrozenClip
from fedray.models.init import initialise
from fedray.models.inputs import ImageFeatures, Inputs, PatchFeatures, Pixels, values_of
from fedray.models.prompted.texts import (
    PHOTO,
    ClassTexts,
    check_distinct,
    placeholders,
    unit,
    word_embeddings,
)

INIT_STD = 0.02
"""Standard deviation of random initial prompts, as in all official codes."""
MOST_SUBSETS = 32
"""Maximal number of cached subsets of classes: those of some clients and of tests."""


@dataclass(frozen=True, slots=True, eq=False)
class TextOutput(ClassifierOutput):
    """Logits, and the text features with which they were computed, by `text_features`."""

    text: Tensor


class PromptedClip(Classifier, ABC):
    """Base of models with prompts around a frozen CLIP; the prompts are their only parameters.

    A subclass makes the prompts, and defines their effect on text features and, if the model reads
    pixels, on image features. A model that changes nothing in the vision tower reads
    `ImageFeatures` or `PatchFeatures`, which can be computed once; it accepts `Pixels`, too.

    Args:
        clip: the frozen CLIP, which is not part of the module's state.
        names: the names of the classes that are trained on.
        hparams: the method's hyper-parameters, which the model reads by name: `length`, ...

    Attributes:
        classes: the classes in scope, which are the columns of the logits.
        scope: the same, int64 [K], on the device.
    """

    reads: type[Inputs] = ImageFeatures
    length_key = "algorithm.length"
    head: nn.Module = nn.Identity()
    clip: FrozenClip
    classes: tuple[int, ...]
    scope: Tensor

    def __init__(self, clip: FrozenClip, names: Sequence[str], hparams: Any = None) -> None:
        super().__init__()
        object.__setattr__(self, "clip", clip)  # not a submodule: frozen, shared, never sent
        self.hparams = hparams
        self.names = check_distinct(clip.text, names)
        self._trained = tuple(range(len(names)))
        self._prompts: list[tuple[nn.Parameter, str | None, float]] = []
        self._texts: dict[tuple[str, tuple[int, ...]], ClassTexts] = {}
        self._fixed: dict[str, Tensor] = {}
        self._cached: tuple[object, Sequence[Tensor], Tensor] | None = None
        self._predict_among(self._trained)
        self.make_prompts(hparams)

    def make_prompts(self, hparams: Any) -> None:
        """Set the model's parameters as attributes: prompts by `prompt`, layers, or parameters."""

    def __getstate__(self) -> dict[str, object]:
        """Leave the cached features out of copies, whose versions of prompts begin anew."""
        return {**vars(self), "_cached": None}

    def prompt(self, *shape: int, words: str | None = None, noise: float = 0.0) -> nn.Parameter:
        """Return a prompt [..., m, w], and note its initial values, see `start`."""
        prompt = nn.Parameter(torch.zeros(*shape))
        self._prompts.append((prompt, words, noise))
        return prompt

    @torch.no_grad()
    def initialise(self, generator: torch.Generator) -> None:
        """Set the initial values: of prompts, then of layers, by the rules of `init.initialise`.

        Other parameters keep the values of `make_prompts`, which draws under a seed of the run.
        """
        for prompt, words, noise in self._prompts:
            self.start(generator, prompt, words, noise)
        for layers in self.children():
            initialise(layers, generator, strict=False)

    @torch.no_grad()
    def start(
        self, generator: torch.Generator, prompt: Tensor, words: str | None, noise: float = 0.0
    ) -> None:
        """Set a prompt [..., m, w] to the embeddings of words; None: draw it from N(0, 0.02²).

        Normal noise of the standard deviation `noise` is added to words.
        """
        if words is None:
            prompt.normal_(0.0, INIT_STD, generator=generator)
            return
        prompt.copy_(word_embeddings(self.clip.text, words, prompt.shape[-2]))
        if noise:
            prompt.add_(torch.empty_like(prompt).normal_(0.0, noise, generator=generator))

    @abstractmethod
    def text_features(self) -> Tensor:
        """Return unit text features of the classes in scope: [K, d], or another shape."""

    def add_classes(self, names: Sequence[str]) -> None:
        """Add classes that are not trained on but may be predicted."""
        self.names = check_distinct(self.clip.text, [*self.names, *names])

    @contextmanager
    def class_subset(self, classes: Sequence[int] | None) -> Iterator[None]:
        """Predict among these classes within the block; None for the classes trained on."""
        before = self.classes
        self._predict_among(self._trained if classes is None else tuple(classes))
        try:
            yield
        finally:
            self._predict_among(before)

    def _predict_among(self, classes: tuple[int, ...]) -> None:
        self.classes = classes
        self.scope = torch.tensor(classes, device=self.clip.vision.std.device)

    def class_texts(self, template: str = PHOTO) -> ClassTexts:
        """Return the texts of the classes in scope; the last `MOST_SUBSETS` are cached."""
        key = template, self.classes
        texts = self._texts.pop(key, None)
        if texts is None:
            names = [self.names[c] for c in self.classes]
            texts = ClassTexts(self.clip.text, names, template, self.length_key)
        self._texts[key] = texts
        if len(self._texts) > MOST_SUBSETS:
            del self._texts[next(iter(self._texts))]
        return texts

    def texts_after(self, context: Tensor) -> Tensor:
        """Return unit text features [K, d] of the classes in scope after a context [m, w] (CoOp).

        Of G contexts [G, m, w], the result is [G, K, d].
        """
        return self.class_texts(placeholders(context.shape[-2])).encode(context)

    @torch.no_grad()
    def fixed_texts(self, template: str = PHOTO) -> Tensor:
        """Return unit text features [K, d] of the classes in scope without prompts."""
        if template not in self._fixed:
            with torch.autocast(self.scope.device.type, enabled=False):  # as for every caller
                texts = [template.format(name) for name in self.names]
                self._fixed[template] = unit(self.clip.text.features(texts))
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
        key = self.classes, is_autocast, [prompt._version for prompt in prompts]
        cached = self._cached
        if cached is None or cached[0] != key or not all(map(is_, cached[1], prompts)):
            cached = self._cached = key, prompts, self.text_features()
        return cached[2]

    def image_features(self, x: Inputs) -> Tensor:
        """Return unit image features [B, d] or patch features [B, M, d]."""
        return unit(self.encode(x))

    def encode(
        self,
        x: Inputs,
        prompts: Sequence[Tensor] = (),
        weights: Changes = NONE,
        branches: Branches = NONE,
    ) -> Tensor:
        """Return image features [B, d] or patch features [B, M, d], before they are scaled.

        They are differentiable in pixels, prompts and additions (see `VisionTower.encode`,
        `Changes`, `Branches`), which a model that reads `Pixels` can have.
        """
        if self.reads is not Pixels and not isinstance(x, Pixels):
            return values_of(x, self.reads, Pixels)
        vision = self.clip.vision
        embedded = vision.embed(values_of(x, Pixels))
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
