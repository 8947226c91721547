"""Loading of a run's kept models from its folder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from fedray.config import Experiment, load_experiment
from fedray.core import Client, ClientState, LocalContext, Samples, Skeleton
from fedray.core.payload import join_payload
from fedray.data import FederatedData, ImageSet
from fedray.data.sources import sources
from fedray.errors import UserError, one_line
from fedray.run_config import read_config
from fedray.runtime.assembly import Assembly
from fedray.storage.entries import check_entries
from fedray.storage.kept_models import KeptModels, ModelFacts, Which, kept_rounds
from fedray.storage.run_folder import RunFolder
from fedray.trained.images import Preprocessing
from fedray.trained.model import TrainedModel


class TrainedModels:
    """The models of one round of a run.

    Args:
        folder: the folder of the run.
        kept: the kept models.
        device: the device of the models.

    Attributes:
        folder: the folder of the run.
        assembly: the components of the run, without images.
    """

    def __init__(self, folder: Path, kept: KeptModels, device: torch.device) -> None:
        self.folder = folder
        self.device = device
        self._kept = kept
        self.assembly = without_data(read_without_data(folder), kept.facts)

    @property
    def facts(self) -> ModelFacts:
        """Return facts about the models: the round, how it was selected, its metrics."""
        return self._kept.facts

    @property
    def class_names(self) -> Sequence[str]:
        """Return the names of the classes, in the order of the labels."""
        return self.assembly.setting.class_names

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """Return the preprocessing of images for the models."""
        keys = self.assembly.experiment.data
        resampling = sources.get(keys.source.name).resampling
        return Preprocessing(*self.facts.image, resampling, keys.resize)

    @property
    def is_global(self) -> bool:
        """Return True if all clients predict with one model."""
        return self.facts.is_global

    def __len__(self) -> int:
        return self.facts.clients

    def model(self, client: int | None = None) -> TrainedModel:
        """Return the model of one client, or the model that all clients share.

        Args:
            client: the id of the client; None: the shared model.

        Raises:
            UserError: if there is no such client, or `client` is None and clients have their own
                models.
        """
        if client is None and not self.is_global:
            raise UserError(
                f"in {self.folder} every client has a model of its own; pass a client from 0 to "
                f"{len(self) - 1}"
            )
        if client is not None and not 0 <= client < len(self):
            raise UserError(f"{self.folder} has the clients 0 to {len(self) - 1}, not {client}")
        return TrainedModel(self, self._begun(client or 0))

    def _begun(self, client: int) -> LocalContext:
        context, algorithm = self._client(client), self.assembly.algorithm
        tree, download = self._kept.state(client), self._kept.download(client)
        state = algorithm.init_client(context) if tree is None else ClientState(**tree)
        down = None if download is None else join_payload(*download, self._kept.path)
        return algorithm.begin(context, state, down)

    def _client(self, client: int) -> Client:
        """Return a client without images, with an uninitialised model."""
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


def open_models(folder: Path, which: Which | None = None, device: str = "cpu") -> TrainedModels:
    """Load the kept models of a run.

    Args:
        folder: the folder of the run.
        which: the models of the "best" or the "last" round; None: the best, or the last if no best
            round was selected.
        device: a PyTorch device for the models.

    Raises:
        UserError: if there are no models, they are damaged, or the device cannot be used.
    """
    if which not in (None, "best", "last"):
        raise UserError(f"which={which!r} is neither 'best' nor 'last' (nor None)")
    check_entries(folder)
    rounds = kept_rounds(folder)
    chosen = which or next(iter(rounds), None)
    run = RunFolder(folder).read() if RunFolder(folder).has_result else None
    if chosen == "last" and run is not None and run.is_finished and rounds.get("best") == run.done:
        chosen = "best"  # the last round is the best
    if chosen not in rounds:
        raise UserError(_why_there_are_none(folder, which))
    kept = KeptModels(folder, chosen)
    if run is not None:
        kept.check(run)
    return TrainedModels(folder, kept, _usable(device))


def _usable(device: str) -> torch.device:
    """Return the device; raise `UserError` with PyTorch's message if it cannot be used."""
    try:
        torch_device = torch.device(device)
        torch.zeros(1, device=torch_device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device={device!r} cannot be used ({one_line(error)}); pass 'cpu'"
        ) from None
    return torch_device


def _why_there_are_none(folder: Path, which: str | None) -> str:
    run = RunFolder(folder)
    if not run.config.is_file():
        return f"{folder} holds no run; pass the folder that a run printed (results: ...)"
    if which == "best":
        return (
            f"{folder} has no models of a best round: no images selected one (set "
            "data.validation_fraction=0.1 or report.select=test), or keep.models did not ask for "
            "them; use the models of the last round"
        )
    if run.has_result and not run.read().is_finished:
        return f"the run in {folder} has not finished; go on with --resume {folder}"
    return f"{folder} has no models; run the experiment again with keep.models=best"


def read_without_data(folder: Path) -> Experiment:
    """Return the experiment of a run without resolving the folder of its images.

    Raises:
        UserError: if the folder contains no run, or another configuration than its result.
    """
    tree = read_config(folder)
    return load_experiment({**tree, "data": {**tree.get("data", {}), "root": None}})


def without_data(experiment: Experiment, facts: ModelFacts) -> Assembly:
    """Return the components of a run whose clients have no images."""
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
