"""Build the objects of a run from an experiment, identically in every process that takes part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from fedray.base.errors import UserError
from fedray.base.streams import Streams
from fedray.config import DataConfig, Experiment, content_of, files_of, keys_without_effect
from fedray.config.plugins import use
from fedray.core import (
    Algorithm,
    Gate,
    Privacy,
    Schedule,
    Server,
    Setting,
    TrainingConfig,
    algorithms,
)
from fedray.data import FederatedData, ImageSet, ReadOptions, load_images
from fedray.data.evolution import federate_phases
from fedray.data.federated import with_global_test
from fedray.data.public import PublicData
from fedray.evaluation.measures import majority_classes
from fedray.evaluation.metrics import DataFacts
from fedray.evaluation.splits import split_names
from fedray.federation import Plan
from fedray.models import buffer_names, frozen_parameters
from fedray.runtime.compatibility import check_data, check_masks
from fedray.runtime.models import BackboneModels, ModelProvider, PromptedModels, feature_width

if TYPE_CHECKING:
    from fedray.language.tower import TextTower

V = TypeVar("V")


@dataclass(frozen=True)
class Assembly:
    """The parts of one run.

    Attributes:
        experiment: the resolved experiment.
        replacement: the clients' images, used instead of those that the experiment describes.
    """

    experiment: Experiment
    replacement: FederatedData | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        use(self.experiment.plugins)

    @cached_property
    def streams(self) -> Streams:
        """Return the random streams of the experiment's seed."""
        return Streams(self.experiment.seed)

    @cached_property
    def data(self) -> FederatedData:
        """Return the clients' images, mapped from this node's cache."""
        return self.replacement or load_data(self.experiment)

    @cached_property
    def identity(self) -> str:
        """Return the hash of everything that determines the numbers, including the images."""
        return self.experiment.identity(self.data.images.sha256)

    @cached_property
    def models(self) -> ModelProvider:
        """Return the clients' models."""
        kind = PromptedModels if self.algorithm.requires.prompts else BackboneModels
        return kind(self.experiment, self.algorithm, self.data, self.streams)

    @cached_property
    def model_numbers(self) -> int:
        """Return the number of parameters of the largest model, at least 1."""
        empty = map(self.models.empty, set(self.models.architectures))
        return max(1, *(sum(p.numel() for p in model.parameters()) for model in empty))

    @cached_property
    def setting(self) -> Setting:
        """Return the `Setting`: the facts and keys that the server and all clients know."""
        e = self.experiment
        training = TrainingConfig(
            epochs=e.local_epochs,
            batch_size=e.batch_size,
            lr=e.lr,
            optimizer=e.optimizer.build(),
            clip_grad_norm=e.clip_grad_norm,
            shuffle=e.shuffle,
            drop_last=e.drop_last,
            precision=e.precision,
            augment=e.data.augment.build(),
        )
        return Setting(
            class_names=self.data.class_names,
            feature_dim=feature_width(e, self.data.images),
            rounds=e.rounds,
            clients=e.data.clients,
            training=training,
            streams=self.streams,
            finetune_epochs=e.finetune_epochs,
            top_k=e.evaluation.top_k,
            phases=tuple(first for first, _ in self.data.later),
        )

    @cached_property
    def schedule(self) -> Schedule:
        """Return the clients' learning rate over rounds."""
        schedule: Schedule = self.experiment.lr_schedule.build()
        return schedule

    def lr(self, round_: int) -> float:
        """Return the clients' learning rate in a round; round 0 uses that of round 1."""
        return self.schedule(self.setting.training.lr, max(round_, 1), self.setting.rounds)

    @cached_property
    def algorithm(self) -> Algorithm:
        """Return the method."""
        method: Algorithm = self.experiment.algorithm.build()
        return method.with_setting(self.setting)

    @cached_property
    def gate(self) -> Gate:
        """Return the gate that checks and counts payloads."""
        keys, models = self.experiment.privacy, self.models
        _, channels, height, width = self.data.images.images.shape
        axes = {
            "C": self.setting.num_classes,
            "d": self.setting.feature_dim,
            "N": self.setting.clients,
            "channels": channels,
            "height": height,
            "width": width,
        }
        empty = [models.empty(architecture) for architecture in {*models.architectures}]
        statistics, privacy = frozenset[str]().union(*map(buffer_names, empty)), None
        if keys.mode != "none":
            assert keys.clip_norm is not None
            if keys.noise_multiplier and any(map(frozen_parameters, empty)):
                raise UserError(
                    f"privacy.mode={keys.mode} adds noise to all weights, also to those that a "
                    "network freezes; set privacy.mode=none, or train all layers"
                )
            noise, seed = keys.noise_multiplier, self.experiment.seed
            privacy = Privacy(keys.mode, keys.clip_norm, noise, seed, statistics)
        up_bits = self.experiment.wire.up_bits
        return Gate(axes, up_bits=up_bits, privacy=privacy, statistics=statistics)

    @cached_property
    def plan(self) -> Plan:
        """Return the round loop's settings."""
        trains = "lr" not in keys_without_effect(self.experiment)
        facts = [(first, self._facts(data)) for first, data in self.data.phases]
        lr = self.lr if self.schedule.changes and trains else None
        return Plan(self.experiment, facts, lr)

    def _facts(self, data: FederatedData) -> DataFacts:
        clients, late = self.experiment.data.clients, self.experiment.join.clients
        return DataFacts(
            splits=split_names(data),
            domains=data.client_domains() or {},
            majority=majority_classes(data.train_histogram()),
            dense_classes=self.setting.class_names if self.models.dense else (),
            top_k=self.setting.top_k,
            newcomers=range(clients - late, clients),
            select=self.experiment.report.select,
        )

    def server(self, device: torch.device) -> Server:
        """Return the server before round 1, with the text tower if the method needs one."""
        models, requires = self.models, self.algorithm.requires
        tower: Any = text_tower(self.experiment, self.setting, device) if requires.text else None
        public: Any = models.public_samples(device) if requires.public else None
        return Server(
            round=0,
            setting=self.setting,
            tower=tower,
            device=device,
            initial=models.initial,
            architectures=models.architectures,
            empty=cache(models.empty),
            public=public,
        )


def load_data(experiment: Experiment) -> FederatedData:
    """Read an experiment's images and partition them; runs of this process share the result.

    Raises:
        UserError: when the data is missing, or cannot serve the clients or the method.
    """
    keys, plugins = image_keys(experiment), _plugin_hashes(experiment)
    images, random = read_images(keys), Streams(experiment.seed).numpy("public")
    check_masks(experiment, images)
    scope = experiment.seed, experiment.evaluation.global_test, plugins
    parts = keys.partition.params, keys.evolution.params
    contents = [content_of(path) for part in parts for path in files_of(part).values()]
    key = images.sha256, keys.model_dump_json(by_alias=True), *scope, *contents
    data = shared("data", key, partial(_partition, experiment, images))
    public: PublicData = experiment.data.public.build()
    other = public.read(data.images, keys, random)  # of another source, if one is named
    data = data if other is None else replace(data, public=other)
    check_data(experiment, data)
    return data


def _partition(experiment: Experiment, images: ImageSet) -> FederatedData:
    """Assign training and test images to every client, in every phase."""
    data = federate_phases(images, experiment.data, Streams(experiment.seed).numpy)
    return with_global_test(data) if experiment.evaluation.global_test else data


def _plugin_hashes(experiment: Experiment) -> tuple[str, ...]:
    """Return the plug-ins' hashes, part of cache keys because plug-ins give names their meaning."""
    return tuple(plugin.sha256 for plugin in experiment.plugins)


def image_keys(experiment: Experiment) -> DataConfig:
    """Return an experiment's `data`, scaled by default as the CLIP of a prompt method expects."""
    keys = experiment.data
    prompts = algorithms.get(experiment.algorithm.name).requires.prompts
    if keys.resize is not None or keys.image_size is None or not prompts:
        return keys
    return keys.model_copy(update={"resize": experiment.model.clip.build().resize()})


def read_images(keys: DataConfig) -> ImageSet:
    """Read the images that an experiment's `data` names."""
    return load_images(
        keys.source,
        Path(keys.root) if keys.root else None,
        ReadOptions(keys.image_size, keys.channels, keys.resize, keys.classes, keys.split),
        download=keys.download,
    )


def text_tower(experiment: Experiment, setting: Setting, device: torch.device) -> TextTower:
    """Return the frozen text encoder with the classes' texts; runs of this process share it.

    Raises:
        UserError: when names or descriptions do not fit the classes, or the weights are missing.
    """
    from fedray.language.names import check_words, names_for
    from fedray.language.styles import class_texts
    from fedray.language.tower import TextTower

    keys, names = experiment.text, setting.class_names
    if keys.names is not None:
        names = names_for(keys.names, names)
    else:
        check_words(names, "give them names with text.names={FOLDER: NAME, ...}")
    texts = class_texts(keys.style.build(), names, keys.descriptions, keys.template)
    choice, insists = keys.encoder.build(), keys.names is not None
    content = choice.name, repr(choice), choice.identity(), (*map(tuple, texts),), insists
    environment = str(device), torch.get_num_threads(), _plugin_hashes(experiment)
    make = partial(TextTower, choice, texts, device, insists=insists)
    return shared("text", (content, environment), make)


# --- what consecutive runs of one process share ---------------------------------------------------

SHARED = 4
_values = defaultdict[str, dict[Hashable, Any]](dict)  # least recently used first


def shared(kind: str, key: Hashable, make: Callable[[], V]) -> V:
    """Return the value of a key, which callers must not change; call `make` if it is missing.

    Args:
        kind: the kind of value; the last `SHARED` of each kind are kept.
        key: everything that determines the value.
        make: returns a new value; nothing is stored if it raises an error.
    """
    values = _values[kind]
    value: V = values.pop(key) if key in values else make()
    values[key] = value
    while len(values) > SHARED:
        del values[next(iter(values))]
    return value


def forget_shared() -> None:
    """Remove all values."""
    _values.clear()
