"""Build a run's models: image backbones, or prompts around a frozen CLIP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from fedray.base.errors import UserError, warn_once
from fedray.base.streams import Streams, torch_seeded
from fedray.config import Experiment
from fedray.core import Algorithm, AuxiliaryMethod, Samples, Tensors, algorithms
from fedray.core.client import named_tensors
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

CPU = torch.device("cpu")
PROMPTED = "prompted_clip"
"""The architecture of prompt methods; after a slash, the size if it depends on the client."""


class ModelProvider(ABC):
    """The models of one run's clients.

    Attributes:
        architectures: each client's architecture.
        dense: True if the models predict every pixel.
    """

    architectures: tuple[str, ...]
    dense = False

    def __init__(
        self, experiment: Experiment, algorithm: Algorithm, data: FederatedData, streams: Streams
    ) -> None:
        self._experiment, self._data, self._streams = experiment, data, streams
        self._algorithm: Any = algorithm

    def _generator(self, architecture: str, client: int) -> torch.Generator:
        shared = self._experiment.model.init == "shared"
        return self._streams.torch(f"weights/{architecture}", client=0 if shared else client + 1)

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
        self, device: torch.device, *, training: bool = False, public: PublicSet | None = None
    ) -> SampleMaker:
        """Return a function from indices to model inputs.

        Args:
            device: the device of the model.
            training: whether the inputs will be augmented.
            public: the images to read, by default the clients'.
        """

    def public_samples(self, device: torch.device) -> Samples:
        """Return the public images, which the experiment has."""
        public = self._data.public
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
    channels, image_size, _ = images.shape
    widths = {
        name: own_width(name, channels=channels, image_size=image_size)
        for name in group_of(model.group).members
    }
    if len(set(widths.values())) > 1:
        listing = ", ".join(f"{name}: {width}" for name, width in widths.items())
        raise UserError(
            f"the models of model.group={model.group} have features of several widths ({listing}); "
            "set model.feature_dim to one width, to which features are averaged or repeated"
        )
    return next(iter(widths.values()))


class BackboneModels(ModelProvider):
    """Backbones of `model.group`, with a head unless the method needs none.

    With an `AuxiliaryMethod`, each backbone is joined with its auxiliary model.
    """

    def __init__(
        self, experiment: Experiment, algorithm: Algorithm, data: FederatedData, streams: Streams
    ) -> None:
        super().__init__(experiment, algorithm, data, streams)
        group = experiment.model.group
        self.architectures = assign_architectures(group, experiment.data.clients)
        self.dense = is_dense(group)
        channels, image_size, _ = data.images.shape
        self._shape: dict[str, Any] = {
            "channels": channels,
            "image_size": image_size,
            "num_classes": len(data.class_names) if algorithm.requires.head else 0,
            "feature_dim": algorithm.setting.feature_dim,
            "hidden": experiment.model.projector,
            "imagenet": experiment.model.pretrained is not None,
        }
        if experiment.model.projector is None:
            for architecture in dict.fromkeys(self.architectures):
                width = own_width(architecture, channels=channels, image_size=image_size)
                if width != (d := algorithm.setting.feature_dim):
                    how = "averaged" if width > d else "repeated"
                    of = f"the {width} features of {architecture}"
                    warn_once(f"{of} are {how} to model.feature_dim={d}")

    def _model(self, name: str, device: torch.device, client: int | None = None) -> Classifier:
        """Return random weights, where they fit those of `model.pretrained`; or zeros."""
        own = self._classifier(name, self._shape, client)
        if not isinstance(self._algorithm, AuxiliaryMethod):
            return own.to(device)
        shape = {**self._shape, "feature_dim": self._algorithm.auxiliary_dim()}
        auxiliary = self._classifier(self.architectures[0], shape, client)
        model = self._algorithm.with_auxiliary(own, auxiliary)
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
        if (pretrained := self._experiment.model.pretrained) is not None:
            start_from_pretrained(model.get_submodule("extractor"), name, pretrained)
        return model

    def samples(
        self, device: torch.device, *, training: bool = False, public: PublicSet | None = None
    ) -> SampleMaker:
        """Return a function to pixels with labels or, for dense prediction, with masks."""
        if public is not None:
            return partial(Samples, public.images.images, public.labels)
        images = self._data.images
        masks = images.masks if self.dense else None
        labels = images.labels if masks is None else masks
        return partial(Samples, images.images, labels)


class PromptedModels(ModelProvider):
    """A prompt method's models: its prompts around the CLIP of `model.clip`."""

    def __init__(
        self, experiment: Experiment, algorithm: Algorithm, data: FederatedData, streams: Streams
    ) -> None:
        super().__init__(experiment, algorithm, data, streams)
        sizes = map(self._algorithm.size, range(experiment.data.clients))
        self.architectures = tuple(f"{PROMPTED}/{size}" if size else PROMPTED for size in sizes)

    def samples(
        self, device: torch.device, *, training: bool = False, public: PublicSet | None = None
    ) -> SampleMaker:
        """Return a function to pixels, or to the frozen tower's features, computed once per node.

        Features of augmented images cannot be cached, so training on augmented images reads pixels.
        """
        images, labels, used = self._data.images, self._data.images.labels, self._data.used
        if public is not None:
            images, labels, used = public.images, public.labels, public.index
        inputs = self._model(self.architectures[0], device).reads
        augmented = not self._experiment.data.augment.build().is_identity
        if inputs is Pixels or (training and augmented):
            return partial(Samples, images.images, labels)
        from fedray.models.clip.features import frozen_features

        features = frozen_features(self._clip(device), images, used, inputs, device)
        labels = np.asarray(labels)[used]
        return lambda index: Samples(features, labels, np.searchsorted(used, index), inputs)

    def _clip(self, device: torch.device) -> FrozenClip:
        from fedray.models.clip import load_clip

        choice = self._experiment.model.clip.build()
        return load_clip(choice, device, choice.written)

    def _model(self, name: str, device: torch.device, client: int | None = None) -> PromptedClip:
        """Return the prompted CLIP, with random prompts for a client."""
        seed, clip, size = 0, self._clip(device), int(name.partition("/")[2] or 0)
        _, height, width = self._data.images.shape
        if (height, width) != (clip.vision.image_size,) * 2:
            raise UserError(
                f"the images have {width}x{height} pixels, but the CLIP of model.clip reads "
                f"{clip.vision.image_size}x{clip.vision.image_size}; set "
                f"data.image_size={clip.vision.image_size}"
            )
        if client is not None:
            seed = self._generator(f"{PROMPTED}/constructors", client).initial_seed()
        with torch_seeded(seed, CPU):
            sized: PromptedClip = self._algorithm.sized_model(clip, self._data.class_names, size)
            model = sized.to(device)
            model.add_classes(self._data.novel_names)
        if client is not None:
            model.initialise(self._generator(PROMPTED, client))
        return model
