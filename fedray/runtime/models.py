"""Build a run's models: image backbones, or prompts around a frozen CLIP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from fedray.base.errors import UserError
from fedray.base.streams import Streams, torch_seeded
from fedray.config import Experiment
from fedray.core import AuxiliaryMethod, Samples, Tensors, algorithms
from fedray.core.client import CPU, named_tensors
from fedray.data import FederatedData
from fedray.data.imageset import ImageSet
from fedray.data.public import PublicSet
from fedray.models import (
    Classifier,
    Pixels,
    assign_architectures,
    build,
    group_of,
    initialise,
    is_dense,
    own_width,
    start_from_pretrained,
)

if TYPE_CHECKING:
    from fedray.language.encoders import EncoderChoice
    from fedray.models.clip import FrozenClip
    from fedray.models.prompted import PromptedClip

SampleMaker: TypeAlias = Callable[[np.ndarray], Samples]
"""A function from indices, int64 [n], to samples."""

PROMPTED = "prompted_clip"
"""The architecture of prompt methods; after a slash, the size if it depends on the client."""


@dataclass
class ModelProvider(ABC):
    """The models of one run's clients.

    Attributes:
        experiment: the experiment.
        algorithm: its method.
        data: the clients' images.
        streams: the random streams.
        architectures: each client's architecture.
        dense: True if the models predict every pixel.
    """

    experiment: Experiment
    algorithm: Any
    data: FederatedData
    streams: Streams
    architectures: tuple[str, ...] = ()
    dense: bool = False

    @abstractmethod
    def __post_init__(self) -> None:
        """Assign the architectures."""

    def _generator(self, architecture: str, client: int) -> torch.Generator:
        shared = self.experiment.model.init == "shared"
        return self.streams.torch(f"weights/{architecture}", client=0 if shared else client + 1)

    def initial(self, architecture: str, client: int = 0) -> Tensors:
        """Return initial weights; unless model.init=shared, they also depend on the client."""
        return named_tensors(self._model(architecture, CPU, client))

    def empty(self, architecture: str, device: torch.device = CPU) -> Classifier:
        """Return a model of an architecture with placeholder weights, to load states into."""
        return self._model(architecture, device)

    @abstractmethod
    def _model(self, name: str, device: torch.device, client: int | None = None) -> Classifier:
        """Return a model with a client's initial weights, or with placeholder weights."""

    @abstractmethod
    def samples(
        self, device: torch.device, *, augmented: bool = False, public: PublicSet | None = None
    ) -> SampleMaker:
        """Return a function from indices to model inputs.

        Args:
            device: the device of the model.
            augmented: whether the inputs will be augmented.
            public: the images to read, by default the clients'.
        """

    def public_samples(self, device: torch.device) -> Samples:
        """Return the public images, which the experiment has."""
        public = self.data.public
        assert public is not None
        return self.samples(device, public=public)(public.index)


def feature_width(experiment: Experiment, images: ImageSet) -> int:
    """Return the feature width d.

    This is `model.feature_dim`, else the text encoder's width, else the common width of all models.

    Raises:
        UserError: if `model.feature_dim` is not set and the models' widths differ.
    """
    model, requires = experiment.model, algorithms.get(experiment.algorithm.name).requires
    if model.feature_dim is not None:
        return model.feature_dim
    if requires.text:
        choice: EncoderChoice = experiment.text.encoder.build()
        width = choice.width()
        return choice.build().dim if width is None else width
    if requires.prompts:
        return 0  # the CLIP of model.clip defines its widths
    if model.projector is not None:
        return model.projector
    widths = {
        name: own_width(name, channels=images.shape[0], image_size=images.shape[1])
        for name in group_of(model.group).members
    }
    if len({*widths.values()}) > 1:
        raise UserError(
            f"the models of model.group={model.group} have features of several widths ({widths}); "
            "set model.feature_dim to one width, to which features are averaged or repeated"
        )
    return next(iter(widths.values()))


class BackboneModels(ModelProvider):
    """Backbones of `model.group`, with a head unless the method needs none.

    With an `AuxiliaryMethod`, each backbone is joined with its auxiliary model.
    """

    def __post_init__(self) -> None:
        keys, method = self.experiment.model, self.algorithm
        self.architectures = assign_architectures(keys.group, self.experiment.data.clients)
        self.dense = is_dense(keys.group)
        channels, image_size, _ = self.data.images.shape
        self._shape: dict[str, Any] = {
            "channels": channels,
            "image_size": image_size,
            "num_classes": len(self.data.class_names) if method.requires.head else 0,
            "feature_dim": method.setting.feature_dim,
            "hidden": keys.projector,
            "imagenet": keys.pretrained is not None,
        }

    def _model(self, name: str, device: torch.device, client: int | None = None) -> Classifier:
        """Return random weights, where they fit those of `model.pretrained`; or zeros."""
        own = self._classifier(name, self._shape, client)
        if not isinstance(self.algorithm, AuxiliaryMethod):
            return own.to(device)
        shape = {**self._shape, "feature_dim": self.algorithm.auxiliary_dim()}
        auxiliary = self._classifier(self.architectures[0], shape, client)
        model = self.algorithm.with_auxiliary(own, auxiliary)
        if client is None:
            for parameter in model.joint.parameters():
                parameter.data.zero_()
        else:
            initialise(model.joint, self._generator(f"{name}/joint", client))
        return model.to(device)

    def _classifier(self, name: str, shape: dict[str, Any], client: int | None) -> Classifier:
        if client is None:
            return build(name, **shape)
        model = build(name, **shape, generator=self._generator(name, client))
        if (pretrained := self.experiment.model.pretrained) is not None:
            start_from_pretrained(model.get_submodule("extractor"), name, pretrained)
        return model

    def samples(
        self, device: torch.device, *, augmented: bool = False, public: PublicSet | None = None
    ) -> SampleMaker:
        """Return a function to pixels with labels or, for dense prediction, with masks."""
        if public is not None:
            return partial(Samples, public.images.images, public.labels)
        images = self.data.images
        masks = images.masks if self.dense else None
        labels = images.labels if masks is None else masks
        return partial(Samples, images.images, labels)


class PromptedModels(ModelProvider):
    """A prompt method's models: its prompts around the CLIP of `model.clip`."""

    def __post_init__(self) -> None:
        sizes = map(self.algorithm.size, range(self.experiment.data.clients))
        self.architectures = tuple(f"{PROMPTED}/{size}" if size else PROMPTED for size in sizes)

    def samples(
        self, device: torch.device, *, augmented: bool = False, public: PublicSet | None = None
    ) -> SampleMaker:
        """Return a function to pixels, or to the frozen tower's features, computed once per node.

        Features of augmented images cannot be cached, so training on augmented images reads pixels.
        """
        images, labels, used = self.data.images, self.data.images.labels, self.data.used
        if public is not None:
            images, labels, used = public.images, public.labels, public.index
        inputs = self._model(self.architectures[0], device).reads
        if inputs is Pixels or augmented:
            return partial(Samples, images.images, labels)
        from fedray.models.clip.features import frozen_features

        features = frozen_features(self._clip(device), images, used, inputs, device)
        labels = np.asarray(labels)[used]
        return lambda index: Samples(features, labels, np.searchsorted(used, index), inputs)

    def _clip(self, device: torch.device) -> FrozenClip:
        from fedray.models.clip import load_clip

        choice = self.experiment.model.clip.build()
        return load_clip(choice, device, choice.written)

    def _model(self, name: str, device: torch.device, client: int | None = None) -> PromptedClip:
        """Return the prompted CLIP, with random prompts for a client."""
        seed, clip, size = 0, self._clip(device), int(name.partition("/")[2] or 0)
        _, height, width = self.data.images.shape
        if (height, width) != (clip.vision.image_size,) * 2:
            raise UserError(
                f"the images have {width}x{height} pixels, but the CLIP of model.clip reads "
                f"{clip.vision.image_size}x{clip.vision.image_size}; set "
                f"data.image_size={clip.vision.image_size}"
            )
        if client is not None:
            seed = self._generator(f"{PROMPTED}/constructors", client).initial_seed()
        with torch_seeded(seed, CPU):
            sized: PromptedClip = self.algorithm.sized_model(clip, self.data.class_names, size)
            model = sized.to(device)
            model.add_classes(self.data.novel_names)
        if client is not None:
            model.initialise(self._generator(PROMPTED, client))
        return model
