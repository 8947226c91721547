"""The models that a run has kept, opened from its folder alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from fedray.config import Experiment, load_experiment, read_mapping
from fedray.core import Client, LocalContext, Samples, Skeleton
from fedray.data import FederatedData, ImageSet
from fedray.data.sources import sources
from fedray.errors import UserError, one_line
from fedray.records import RunFolder
from fedray.runtime.assembly import Assembly
from fedray.saved_models import ModelFacts, SavedModels, models_folder
from fedray.trained.images import Preprocessing
from fedray.trained.model import TrainedModel


class TrainedModels:
    """The models of one round of a run.

    Args:
        folder: the run's.
        kept: what it has kept of them.
        device: where they compute.

    Attributes:
        folder: the run's.
        assembly: the parts of the run, without its images.
    """

    def __init__(self, folder: Path, kept: SavedModels, device: torch.device) -> None:
        self.folder = folder
        self.device = device
        self._kept = kept
        self.assembly = without_data(read_without_data(folder), kept.facts)

    @property
    def facts(self) -> ModelFacts:
        """Return facts about the models: the round, how it was chosen, its metrics."""
        return self._kept.facts

    @property
    def class_names(self) -> Sequence[str]:
        """The classes that they choose from, in the order of the labels."""
        return self.assembly.setting.class_names

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """Describe how images become the models' input."""
        keys = self.assembly.experiment.data
        filter_ = keys.resize or sources.get(keys.source.name).resampling
        return Preprocessing(*self.facts.image, filter_, keys.resize is not None)

    @property
    def is_global(self) -> bool:
        """Return True if all clients predict with one model."""
        return self.facts.is_global

    def __len__(self) -> int:
        return self.facts.clients

    def model(self, client: int | None = None) -> TrainedModel:
        """Return one client's model, or the one that all clients share.

        Args:
            client: its id; None for the shared one.

        Raises:
            UserError: when there is no such client, or None is given and each has its own.
        """
        if client is None and not self.is_global:
            raise UserError(
                f"in {self.folder} every client has a model of its own; say whose, a client from 0 "
                f"to {len(self) - 1}"
            )
        if client is not None and not 0 <= client < len(self):
            raise UserError(f"{self.folder} has the clients 0 to {len(self) - 1}, not {client}")
        return TrainedModel(self, self._begun(client or 0))

    def _begun(self, client: int) -> LocalContext:
        context, algorithm = self._client(client), self.assembly.algorithm
        tested = self._kept[client]
        state = tested.state or algorithm.init_client(context)
        return algorithm.begin(context, state, tested.down)

    def _client(self, client: int) -> Client:
        """Return the client without images, with an empty model of its own."""
        models, data = self.assembly.models, self.assembly.data
        architecture = models.architectures[client]
        none = Samples(data.images.images, data.images.labels, np.zeros(0, np.int64))
        return Client(
            id=client,
            round=self.facts.round,
            setting=self.assembly.setting,
            train=none,
            architecture=architecture,
            skeleton=Skeleton(models.empty(architecture, self.device)),
            initial=partial(models.initial, architecture, client),
            device=self.device,
        )


def open_models(
    folder: Path, which: Literal["best", "last"] | None = None, device: str = "cpu"
) -> TrainedModels:
    """Open the models that a run has kept.

    Args:
        folder: the run's.
        which: of the best round or of the last; None: the best, or the last where none was chosen.
        device: where they are to compute, as PyTorch calls it.

    Raises:
        UserError: when there are none, or they are damaged, or there is no such device.
    """
    if which not in (None, "best", "last"):
        raise UserError(f"which={which!r} is neither 'best' nor 'last' (nor None)")
    best, last = (models_folder(folder, each) for each in ("best", "last"))
    wanted = {"best": [best], "last": [last], None: [best, last]}[which]
    found = next((place for place in wanted if place.is_dir()), None)
    if found is None and which == "last" and best.is_dir():
        found = best if _is_of_last_round(folder, best) else None
    if found is None:
        raise UserError(_why_there_are_none(folder, which))
    return TrainedModels(folder, SavedModels(found), _usable(device))


def _usable(device: str) -> torch.device:
    """Return the device, if it is there.

    Raises:
        UserError: with what PyTorch says of it.
    """
    try:
        found = torch.device(device)
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device={device!r} cannot be used ({one_line(error)}); take 'cpu'"
        ) from None
    return found


def _is_of_last_round(folder: Path, best: Path) -> bool:
    """Return whether the best round was the last, which is kept once."""
    if not RunFolder(folder).has_result:
        return False
    run = RunFolder(folder).read()
    return run.is_finished and run.done == SavedModels(best).facts.round


def _why_there_are_none(folder: Path, which: str | None) -> str:
    run = RunFolder(folder)
    if not run.config.is_file():
        return f"{folder} holds no run; name the folder that a run wrote (results: ...)"
    if which == "best":
        return (
            f"{folder} has kept no models of a best round: nothing chose one "
            "(data.validation_fraction=0.1 or report.select=test), or keep.models did not ask; "
            "take the last ones"
        )
    if run.has_result and not run.read().is_finished:
        return f"the run in {folder} has not come to its end; go on with --resume {folder}"
    return f"{folder} has kept no models; run it again with keep.models=best"


def read_without_data(folder: Path) -> Experiment:
    """Return a run's experiment, without asking where its images are.

    Raises:
        UserError: when there is none.
    """
    tree = read_mapping(RunFolder(folder).config)
    return load_experiment({**tree, "data": {**tree.get("data", {}), "root": None}})


def without_data(experiment: Experiment, facts: ModelFacts) -> Assembly:
    """Return the parts of a run whose clients have no images."""
    channels, height, width = facts.image
    images = ImageSet(
        source=experiment.data.source.name,
        images=np.zeros((0, channels, height, width), np.uint8),
        labels=np.zeros(0, np.int64),
        class_names=facts.class_names,
        origin=np.zeros(0, np.int8),
        masks=np.zeros((0, height, width), np.uint8),
    )
    nobody = (np.zeros(0, np.int64),) * facts.clients
    return Assembly(experiment, FederatedData(images, nobody, nobody, base=facts.base))
