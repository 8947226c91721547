"""From a typed experiment to the objects of a run, the same in every process that takes part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedray.algorithms import Algorithm, algorithms
from fedray.algorithms.base import Server
from fedray.client import LocalTraining, Samples, Setting, Tensors
from fedray.comm import Gate
from fedray.config import (
    DataConfig,
    Experiment,
    MissingRoot,
    Tree,
    load_experiment,
    override,
    parse_assignments,
    read_experiment,
    validate,
)
from fedray.data import FederatedData, federate, load_images
from fedray.data.partitions import partitions
from fedray.data.sources import sources
from fedray.data.validation import hold_out
from fedray.errors import UserError, nearest
from fedray.evaluation import majority_classes
from fedray.federation import Plan
from fedray.models import (
    Classifier,
    architectures,
    build,
    check_pretrained,
    is_dense,
    load_pretrained,
    skeleton,
)
from fedray.streams import Streams

if TYPE_CHECKING:
    from fedray.language.encoders import EncoderSpec
    from fedray.language.tower import TextTower
    from fedray.models.clip import ClipSpec, PromptedClip

PROMPTED = "prompted_clip"
"""The one architecture of prompt methods."""


def resolve(name: str, assignments: Iterable[str] = ()) -> Experiment:
    """Read an experiment by name or file, lay presets and `key=value` assignments on it, check it.

    Order: the file, then the method's preset, then the assignments.

    Raises:
        UserError: with one sentence about the first thing that is wrong.
    """
    return from_tree(read_experiment(name), parse_assignments(assignments))


def from_tree(tree: Tree, pairs: Iterable[tuple[str, Any]] = ()) -> Experiment:
    """Like `resolve`, from a tree and parsed assignments.

    A preset is what it sets and leaves no name behind: the experiment's own tree, read again, is
    the same experiment.
    """
    pairs = list(pairs)
    asked = _override_all(tree, pairs)
    chosen = asked.get("algorithm", {})
    if isinstance(chosen, dict) and chosen.get("preset") is not None:
        presets = algorithms.get(str(chosen.get("name"))).presets(asked)
        preset = str(chosen["preset"])
        if preset not in presets:
            raise UserError(
                f"algorithm.preset: {chosen.get('name')} has no preset '{preset}'."
                f"{nearest(preset, presets)}"
            )
        asked = _override_all(_override_all(asked, presets[preset].items()), pairs)
        asked["algorithm"].pop("preset")
    try:
        experiment = load_experiment(asked)
    except MissingRoot as error:
        data = asked["data"]
        source = sources.get(data.get("source", DataConfig().source))()
        raise UserError(f"{error}{source.whence(Path(data['root']))}") from None
    check_components(experiment)
    return experiment


def _override_all(tree: Tree, pairs: Iterable[tuple[str, Any]]) -> Tree:
    for key, value in pairs:
        tree = override(tree, key, value)
    return tree


def check_components(experiment: Experiment) -> None:
    """Validate what is looked up by name: hyper-parameters, partition, encoder.

    Raises:
        UserError: with one sentence about the first thing that is wrong.
    """
    hyperparameters(experiment)
    encoder_spec(experiment)
    clip_spec(experiment)
    method = algorithms.get(experiment.algorithm.name)
    if experiment.finetune_epochs > 0 and not method.has_head:
        raise UserError(
            f"finetune_epochs={experiment.finetune_epochs} trains heads, but {method.name}'s "
            "models have none; set finetune_epochs=0"
        )
    chosen = experiment.data.partition
    validate(partitions.get(chosen.name).Params, chosen.params, "data.partition")
    if experiment.data.novel and not method.prompted:
        raise UserError(
            f"data.novel=true asks for classes that nobody trained on, but {method.name}'s models "
            "know no others; set data.novel=false, or choose a method of prompts around a CLIP"
        )
    models = architectures(experiment.model.group, experiment.data.clients)
    if is_dense(experiment.model.group):
        _check_dense(experiment, method)
    if method.prompted:
        if experiment.model.pretrained is not None:
            raise UserError(
                f"model.pretrained={experiment.model.pretrained} is for backbones, but "
                f"{method.name} has prompts around model.clip; remove model.pretrained"
            )
        return
    if experiment.model.pretrained is not None:
        check_pretrained(experiment.model.pretrained, models)


def _check_dense(experiment: Experiment, method: type[Algorithm]) -> None:
    group = experiment.model.group
    if not method.dense:
        raise UserError(
            f"model.group={group} predicts every pixel, which "
            f"algorithm={method.name} cannot: it is defined for one label an image; choose "
            f"algorithm={' or '.join(dense_methods())}, or a model.group for whole images"
        )
    if experiment.data.augment != "none":
        raise UserError(
            f"data.augment={experiment.data.augment} moves images but not their masks, which "
            f"model.group={group} learns from; set data.augment=none"
        )


def dense_methods() -> list[str]:
    """The names of the methods that predict pixels."""
    return [name for name in algorithms.names() if algorithms.get(name).dense]


def hyperparameters(experiment: Experiment) -> Any:
    """The method's validated hyper-parameters."""
    chosen = experiment.algorithm
    return validate(algorithms.get(chosen.name).HParams, chosen.params, "algorithm")


def encoder_spec(experiment: Experiment) -> EncoderSpec:
    """The validated choice of the text encoder."""
    from fedray.language.encoders import EncoderSpec

    chosen = experiment.text.encoder
    return validate(EncoderSpec, {"name": chosen.name, **chosen.params}, "text.encoder")


def clip_spec(experiment: Experiment) -> ClipSpec:
    """The validated choice of the frozen CLIP."""
    from fedray.models.clip import ClipSpec

    chosen = experiment.model.clip
    return validate(ClipSpec, {"name": chosen.name, **chosen.params}, "model.clip")


@dataclass(frozen=True)
class Assembly:
    """The parts of one run.

    Attributes:
        experiment: what was asked for.
    """

    experiment: Experiment

    @cached_property
    def streams(self) -> Streams:
        """Random streams under the experiment's seed."""
        return Streams(self.experiment.seed)

    @cached_property
    def data(self) -> FederatedData:
        """Images, mapped from this node's cache, and who owns which.

        Raises:
            UserError: when the data is not there or cannot serve so many clients.
        """
        e = self.experiment
        images = load_images(
            e.data.source,
            Path(e.data.root) if e.data.root else None,
            image_size=e.data.image_size,
            channels=e.data.channels,
            download=e.data.download,
            split=e.data.split,
        )
        if self.dense and images.masks is None:
            raise UserError(
                f"model.group={e.model.group} predicts every pixel, but "
                f"data.source={e.data.source} has no masks; set data.source to shapes or "
                "mask_folder, or model.group to a model for whole images"
            )
        data = federate(
            images,
            e.data.partition.name,
            e.data.partition.params,
            e.data.clients,
            e.data.test_fraction,
            e.data.samples,
            self.streams.numpy,
            test=e.data.test,
            test_samples=e.data.test_samples,
            imbalance=e.data.imbalance,
            shots=e.data.shots,
            novel=e.data.novel,
        )
        if e.data.validation_fraction is not None:
            data = hold_out(data, e.data.validation_fraction, self.streams.numpy)
        method = algorithms.get(e.algorithm.name)
        if method.needs_validation and data.validation is None:
            raise UserError(
                f"{method.name}'s clients need validation images, and data.partition="
                f"{e.data.partition.name} gives them none; set data.validation_fraction, for "
                "example 0.2, or data.partition=dominant_class"
            )
        smallest = min(len(own) for own in data.train)
        if e.drop_last and smallest < e.batch_size:
            raise UserError(
                f"drop_last=true leaves a client with {smallest} training images no batch of "
                f"batch_size={e.batch_size}; lower batch_size to {smallest} or set drop_last=false"
            )
        return data

    @cached_property
    def dense(self) -> bool:
        """Whether the models predict every pixel."""
        method = algorithms.get(self.experiment.algorithm.name)
        return not method.prompted and is_dense(self.experiment.model.group)

    @cached_property
    def targets(self) -> np.ndarray:
        """What models predict: the labels int64 [n], or the masks uint8 [n, H, W]."""
        masks = self.data.images.masks
        return masks if self.dense and masks is not None else self.data.images.labels

    @cached_property
    def architectures(self) -> tuple[str, ...]:
        """Each client's architecture."""
        if self.algorithm.prompted:
            return (PROMPTED,) * self.experiment.data.clients
        return architectures(self.experiment.model.group, self.experiment.data.clients)

    @cached_property
    def setting(self) -> Setting:
        """What both sides know."""
        e = self.experiment
        training = LocalTraining(
            epochs=e.local_epochs,
            batch_size=e.batch_size,
            lr=e.lr,
            momentum=e.momentum,
            weight_decay=e.weight_decay,
            shuffle=e.shuffle,
            drop_last=e.drop_last,
            precision=e.precision,
            augment=e.data.augment,
        )
        return Setting(
            class_names=self.data.class_names,
            feature_dim=e.model.feature_dim,
            rounds=e.rounds,
            clients=e.data.clients,
            training=training,
            seed=e.seed,
            finetune_epochs=e.finetune_epochs,
        )

    @cached_property
    def algorithm(self) -> Algorithm:
        """The method, ready to step."""
        chosen = algorithms.get(self.experiment.algorithm.name)
        return chosen(hyperparameters(self.experiment), self.setting)

    @cached_property
    def gate(self) -> Gate:
        """What every payload passes."""
        wire = self.experiment.wire
        axes = {"C": self.setting.num_classes, "d": self.setting.feature_dim}
        return Gate(
            axes,
            self.streams,
            up_bits=wire.up_bits,
            down_bits=wire.down_bits,
            clip_norm=wire.clip_norm,
            noise_multiplier=wire.noise_multiplier,
        )

    @cached_property
    def plan(self) -> Plan:
        """The round loop's knobs."""
        e = self.experiment
        domains = self.data.client_domains() or {}
        return Plan(
            e.rounds,
            e.data.clients,
            e.participation,
            e.eval_every,
            e.faults,
            domains,
            e.finetune_epochs,
            majority_classes(self.data.train_histogram()),
            self.setting.class_names if self.dense else (),
            e.join,
        )

    @cached_property
    def shape(self) -> dict[str, Any]:
        """What every model is built for."""
        images = self.data.images.images
        return {
            "channels": images.shape[1],
            "image_size": images.shape[2],
            "num_classes": self.setting.num_classes if self.algorithm.has_head else 0,
            "feature_dim": self.setting.feature_dim,
            "hidden": self.experiment.model.projector,
        }

    def initial(self, architecture: str, client: int = 0) -> Tensors:
        """Initial weights: a function of the seed and, unless `model.init=shared`, the client.

        With `model.pretrained` the backbone's are those.

        Raises:
            UserError: when the pre-trained weights cannot be had or do not fit.
        """
        shared = self.experiment.model.init == "shared"
        random = self.streams.torch(f"weights/{architecture}", client=0 if shared else client + 1)
        if self.algorithm.prompted:
            prompted = self._prompted(torch.device("cpu"))
            prompted.initialise(random)
            model: Classifier = prompted
        else:
            model = build(architecture, **self.shape, generator=random)
        if self.experiment.model.pretrained is not None:
            backbone = model.get_submodule("extractor.backbone")
            load_pretrained(backbone, architecture, self.experiment.model.pretrained)
        return {
            name: tensor.detach()
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }

    def empty(self, architecture: str, device: torch.device | None = None) -> Classifier:
        """A model of an architecture without weights of its own, to load states into.

        Raises:
            UserError: when it cannot be built for these images.
        """
        device = device or torch.device("cpu")
        if self.algorithm.prompted:
            return self._prompted(device)
        return skeleton(architecture, **self.shape).to(device)

    def _prompted(self, device: torch.device) -> PromptedClip:
        from fedray.models.clip import load_clip

        half = self.experiment.precision == "bfloat16" and device.type == "cuda"
        clip = load_clip(clip_spec(self.experiment), device, half=half)
        size = self.data.images.shape[-1]
        if size != clip.vision.image_size:
            raise UserError(
                f"the images have {size}x{size} pixels, but the CLIP of model.clip sees "
                f"{clip.vision.image_size}x{clip.vision.image_size}; set "
                f"data.image_size={clip.vision.image_size}"
            )
        model = self.algorithm.prompts(clip, self.setting.class_names).to(device)
        model.add_classes(self.data.novel_names)
        return model

    def samples(self, device: torch.device) -> Callable[[np.ndarray], Samples]:
        """A way from indices to samples: images, or what a frozen tower makes of them.

        Frozen features are computed once per node, for the images that the run uses; augmented
        images have none that could be kept.
        """
        images = self.data.images
        model = self._prompted(device) if self.algorithm.prompted else None
        augmented = self.experiment.data.augment != "none"
        if model is None or model.reads == "images" or augmented:
            return partial(Samples, images.images, self.targets)
        from fedray.models.clip import load_clip
        from fedray.models.clip.features import frozen_features

        used = self.data.used
        clip = load_clip(clip_spec(self.experiment), device)  # in float32, whatever trains
        features = frozen_features(clip, images, used, model.reads, device)
        labels = np.asarray(images.labels)[used]
        return lambda index: Samples(features, labels, np.searchsorted(used, index))

    def server(self, device: torch.device) -> Server:
        """The server's side before the first round, with the text tower if the method needs it."""
        tower = self.text_tower(device)
        empty = cache(self.empty)
        return Server(0, self.setting, tower, device, self.initial, self.architectures, empty)

    def text_tower(self, device: torch.device) -> TextTower | None:
        """The text tower, or None when the method needs none.

        Raises:
            UserError: when a class has no description.
        """
        if not self.algorithm.needs_text:
            return None
        from fedray.language.descriptions import WITHOUT_DESCRIPTIONS, load_descriptions, texts
        from fedray.language.tower import TextTower

        text = self.experiment.text
        descriptions = None
        names = self.setting.class_names
        if text.names is not None:
            if len(text.names) != len(names):
                raise UserError(
                    f"text.names gives {len(text.names)} names for {len(names)} classes; give one "
                    "for each, in the order of the labels"
                )
            names = text.names
        if text.style not in WITHOUT_DESCRIPTIONS:
            if text.descriptions is None:
                raise UserError(
                    f"text.style={text.style} needs text.descriptions: a shipped name "
                    "(digits, cifar10, ...) or a JSON file; or set text.style=handcrafted"
                )
            descriptions = load_descriptions(text.descriptions, names)
        own = texts(descriptions, names, text.style, text.template)
        return TextTower(encoder_spec(self.experiment), own, device)


def pick_device(gpus: float) -> torch.device:
    """CUDA when a share was asked for and is really there, else the CPU.

    On CUDA the deterministic kernels are chosen: the same experiment gives the same numbers.
    """
    if gpus > 0 and torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)
        return torch.device("cuda")
    return torch.device("cpu")
