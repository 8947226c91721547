"""From a resolved experiment to the objects of a run, the same in every process that takes part."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from platform import node
from typing import TYPE_CHECKING

import torch

from fedray.config import DataConfig, Experiment, content_of, files_of, parameters
from fedray.core import (
    Algorithm,
    Gate,
    HyperParameters,
    Schedule,
    Server,
    Setting,
    TrainingConfig,
    algorithms,
)
from fedray.data import FederatedData, ImageSet, build_partition, federate, load_images
from fedray.data.augment import build_augmentation
from fedray.data.configurable import build
from fedray.data.evolution import build_evolution, with_phases
from fedray.data.federated import StreamFor, with_global_test
from fedray.data.partitions import AnyPartition
from fedray.data.validation import hold_out
from fedray.errors import UserError
from fedray.evaluation.measures.class_sizes import majority_classes
from fedray.evaluation.metrics import DataFacts, check_domains
from fedray.federation import Plan
from fedray.models import is_dense
from fedray.plugins import use
from fedray.runtime.cache import shared
from fedray.runtime.models import ModelProvider, model_provider
from fedray.runtime.privacy import privacy_of
from fedray.streams import Streams

if TYPE_CHECKING:
    from fedray.language.tower import TextTower


@dataclass(frozen=True)
class Assembly:
    """The parts of one run.

    Attributes:
        experiment: what was asked for, resolved.
        given: who owns which images, where it is not what the experiment says.
    """

    experiment: Experiment
    given: FederatedData | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        use(self.experiment.plugins)

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
        return self.given or load_data(self.experiment)

    @cached_property
    def identity(self) -> str:
        """Hash of all that determines the numbers, the data's content included."""
        return self.experiment.identity(self.data.images.sha256)

    @cached_property
    def files(self) -> dict[str, str]:
        """Return content hashes of the files that the experiment names, by key."""
        return {key: content_of(path) for key, path in files_of(self.experiment).items()}

    @cached_property
    def pinned(self) -> Experiment:
        """The experiment for processes on other nodes, which must find the same images there."""
        data = self.experiment.data.model_copy(update={"sha256": self.data.images.sha256})
        return self.experiment.model_copy(update={"data": data})

    @cached_property
    def models(self) -> ModelProvider:
        """Where the clients' models come from."""
        return model_provider(self.experiment, self.algorithm, self.data, self.streams)

    @cached_property
    def setting(self) -> Setting:
        """What both sides know."""
        e = self.experiment
        training = TrainingConfig(
            epochs=e.local_epochs,
            batch_size=e.batch_size,
            lr=e.lr,
            optimizer=build(e.optimizer, "optimizer", "optimizer"),
            clip_grad_norm=e.clip_grad_norm,
            shuffle=e.shuffle,
            drop_last=e.drop_last,
            precision=e.precision,
            augment=build_augmentation(e.data.augment),
        )
        return Setting(
            class_names=self.data.class_names,
            feature_dim=e.model.feature_dim,
            rounds=e.rounds,
            clients=e.data.clients,
            training=training,
            seed=e.seed,
            finetune_epochs=e.finetune_epochs,
            top_k=e.evaluation.top_k,
            phases=tuple(first for first, _ in self.data.later),
        )

    @cached_property
    def schedule(self) -> Schedule:
        """The clients' learning rate over rounds."""
        component = self.experiment.lr_schedule
        schedule: Schedule = build(component, "learning rate schedule", "lr_schedule")
        return schedule

    def lr(self, round_: int) -> float:
        """The clients' learning rate in a round; before the first that of the first."""
        return self.schedule(self.setting.training.lr, max(round_, 1), self.setting.rounds)

    @cached_property
    def algorithm(self) -> Algorithm:
        """The method, ready to step."""
        component = self.experiment.algorithm
        hparams = parameters(component, "algorithm", "algorithm")
        assert isinstance(hparams, HyperParameters)
        return algorithms.get(component.name)(hparams, self.setting)

    @cached_property
    def gate(self) -> Gate:
        """What every payload passes."""
        wire = self.experiment.wire
        _, channels, height, width = self.data.images.images.shape
        axes = {
            "C": self.setting.num_classes,
            "d": self.setting.feature_dim,
            "N": self.setting.clients,
            "channels": channels,
            "height": height,
            "width": width,
        }
        return Gate(
            axes,
            uploads=self.algorithm.uploads,
            downloads=self.algorithm.downloads,
            up_bits=wire.up_bits,
            down_bits=wire.down_bits,
            privacy=privacy_of(self.experiment),
        )

    @cached_property
    def plan(self) -> Plan:
        """The round loop's keys."""
        e = self.experiment
        return Plan(
            rounds=e.rounds,
            clients=e.data.clients,
            participation=e.participation,
            eval_every=e.eval_every,
            faults=e.faults,
            facts=[(first, self._facts(data)) for first, data in self.data.phases],
            lr=self.lr if self.schedule.changes else None,
            finetune_epochs=e.finetune_epochs,
            join=e.join,
            revertible=e.checkpoint_every > 1,
            select=e.report.select,
        )

    def _facts(self, data: FederatedData) -> DataFacts:
        return DataFacts(
            domains=data.client_domains() or {},
            majority=majority_classes(data.train_histogram()),
            dense_classes=self.setting.class_names if self.models.dense else (),
        )

    def server(self, device: torch.device) -> Server:
        """The server's side before the first round, with the text tower if the method needs it."""
        models = self.models
        tower = text_tower(self.experiment, self.setting, device) if self._reads_text else None
        return Server(
            round=0,
            setting=self.setting,
            text=tower,
            device=device,
            initial=models.initial,
            architectures=models.architectures,
            empty=cache(models.empty),
        )

    @property
    def _reads_text(self) -> bool:
        return self.algorithm.requires.text


def load_data(experiment: Experiment) -> FederatedData:
    """Read an experiment's images and partition them; what this process has dealt it deals once.

    Raises:
        UserError: when the data is not there, or cannot serve the clients or the method.
    """
    images = _images(experiment)
    keys = experiment.data.model_dump_json(exclude={"sha256", "verified_since"}, by_alias=True)
    also = experiment.seed, experiment.evaluation.global_test, _plugins(experiment)
    key = ("data", images.sha256, keys, *also)
    data = shared.get(key, lambda: _dealt(experiment, images))
    _check_enough(experiment, data)
    return data


def deal(experiment: Experiment, images: ImageSet) -> FederatedData:
    """Like `load_data`, with images that are there already; of pixels nothing is asked.

    Raises:
        UserError: when the images cannot serve the clients or the method.
    """
    data = _dealt(experiment, images)
    _check_enough(experiment, data)
    return data


def _plugins(experiment: Experiment) -> tuple[str, ...]:
    """What names in an experiment may mean besides fedray's own, by their hashes."""
    return tuple(plugin.sha256 for plugin in experiment.plugins)


def read_images(keys: DataConfig) -> ImageSet:
    """The images that an experiment's `data` names, whatever they hold.

    Raises:
        UserError: when they are not there, or not as they should be.
    """
    return load_images(
        keys.source,
        Path(keys.root) if keys.root else None,
        image_size=keys.image_size,
        channels=keys.channels,
        download=keys.download,
        split=keys.split,
        verified_since=keys.verified_since,
        resize=keys.resize,
        classes=keys.classes,
    )


def _images(experiment: Experiment) -> ImageSet:
    """An experiment's images: those that it was pinned to, with masks if the models need some."""
    keys = experiment.data
    images = read_images(keys)
    if keys.sha256 is not None and images.sha256 != keys.sha256:
        raise UserError(
            f"data.root={keys.root} on {node()} holds images or labels with the content hash "
            f"{images.sha256[:12]}, expected {keys.sha256[:12]} (data.sha256): another copy of the "
            "data, or one that was changed; make it the same"
        )
    if _predicts_pixels(experiment) and images.masks is None:
        raise UserError(
            f"model.group={experiment.model.group} predicts every pixel, but "
            f"data.source={keys.source.name} has no masks; set data.source to shapes or "
            "mask_folder, or model.group to a model for whole images"
        )
    return images


def _dealt(experiment: Experiment, images: ImageSet) -> FederatedData:
    """Who owns which images, in every phase, and what everybody is tested on."""
    keys, rng_for = experiment.data, Streams(experiment.seed).numpy

    def dealt(partition: AnyPartition, streams: StreamFor, validated: bool) -> FederatedData:
        data = federate(
            images,
            partition,
            keys.clients,
            streams,
            test=keys.test,
            test_fraction=keys.test_fraction,
            samples=keys.samples,
            test_samples=keys.test_samples,
            imbalance=keys.imbalance,
            shots=keys.shots,
            novel=keys.novel,
            every_domain=keys.every_domain,
        )
        if validated and keys.validation_fraction is not None:
            data = hold_out(data, keys.validation_fraction, streams)
        return data

    first = dealt(build_partition(keys.partition), rng_for, True)
    data = with_phases(first, build_evolution(keys.evolution), dealt, rng_for)
    return with_global_test(data) if experiment.evaluation.global_test else data


def _predicts_pixels(experiment: Experiment) -> bool:
    method = algorithms.get(experiment.algorithm.name)
    return not method.requires.prompts and is_dense(experiment.model.group)


def _check_enough(experiment: Experiment, data: FederatedData) -> None:
    method = algorithms.get(experiment.algorithm.name)
    if data.images.domains is not None:
        check_domains(data.images.domains.names)
    if len(data.class_names) < 2:
        raise UserError(
            f"data.source={experiment.data.source.name}: there is one class, "
            f"{', '.join(data.class_names)}; a classifier needs two"
        )
    if method.requires.validation and data.validation is None:
        raise UserError(
            f"{method.name}'s clients need validation images, and data.partition="
            f"{experiment.data.partition.name} gives them none; set data.validation_fraction, for "
            "example 0.2, or data.partition=dominant_class"
        )
    if method.requires.validation:
        _check_everybody_validates(method.name, data)
    if experiment.early_stopping.patience is not None and not _may_choose(experiment, data):
        raise UserError(
            f"early_stopping.patience={experiment.early_stopping.patience} looks at validation "
            "images, and nobody has any; set data.validation_fraction, for example 0.1, or "
            "report.select=test, which looks at the test"
        )
    k, classes = experiment.evaluation.top_k, len(data.class_names)
    if k is not None and k >= classes:
        raise UserError(
            f"evaluation.top_k={k} of {classes} classes is always right; lower it to "
            f"{classes - 1} or less, or leave it out"
        )
    smallest = min(len(indices) for _, phase in data.phases for indices in phase.train)
    if experiment.drop_last and smallest < experiment.batch_size:
        raise UserError(
            f"drop_last=true leaves a client with {smallest} training images no batch of "
            f"batch_size={experiment.batch_size}; lower batch_size to {smallest} or set "
            "drop_last=false"
        )


def _may_choose(experiment: Experiment, data: FederatedData) -> bool:
    """Whether there are images that may choose: as `report.select` says."""
    return experiment.report.select == "test" or data.validation is not None


def _check_everybody_validates(method: str, data: FederatedData) -> None:
    for _, phase in data.phases:
        for client, part in enumerate(phase.validation or ()):
            if not len(part):
                raise UserError(
                    f"client {client} has no validation image, and {method}'s clients each need "
                    "one; raise data.validation_fraction, lower data.clients or raise "
                    "data.partition.min_samples"
                )


def text_tower(experiment: Experiment, setting: Setting, device: torch.device) -> TextTower:
    """The text encoder of an experiment with its classes' texts; frozen, so that runs share it.

    Raises:
        UserError: when names or descriptions do not fit the classes, or the weights are not there.
    """
    from fedray.language.encoders import encoder_choice
    from fedray.language.names import names_for
    from fedray.language.styles import class_texts, text_style
    from fedray.language.tower import TextTower

    keys, names = experiment.text, setting.class_names
    if keys.names is not None:
        names = names_for(keys.names, names)
    texts = class_texts(text_style(keys.style), names, keys.descriptions, keys.template)
    choice = encoder_choice(keys.encoder)
    written = tuple(text for texts_of_class in texts for text in texts_of_class)
    made_of = (choice.name, repr(choice.params), choice.identity(), len(texts), written)
    where = str(device), torch.get_num_threads()
    key = ("text", *made_of, *where, _plugins(experiment))
    return shared.get(key, lambda: TextTower(choice, texts, device))
