"""`TrainedModel`, one client's model as it was tested, and `TrainedModels`, those of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from fedray.base.errors import UserError
from fedray.base.streams import torch_seeded
from fedray.base.trees import leaves
from fedray.config.plugins import use
from fedray.core import Algorithm, Client, ClientState, LocalContext, Samples, Skeleton, Tensors
from fedray.core.client import named_tensors
from fedray.core.payload import join_payload
from fedray.data.sources import sources
from fedray.models import Pixels
from fedray.runtime.assembly import Assembly, image_keys
from fedray.runtime.isolation import Isolation
from fedray.storage.metric import BEST
from fedray.storage.states import Commit, Which
from fedray.trained.images import Images, Preprocessing

BATCH = 500
"""Batch size of predictions, as in a run's evaluation."""


@dataclass(frozen=True)
class Predictions:
    """The predictions of a model for n images.

    Attributes:
        logits: `[n, C]`, or `[n, H, W, C]` from a dense model; on the CPU.
        class_names: the names of the C classes.
    """

    logits: Tensor
    class_names: Sequence[str]

    @property
    def labels(self) -> Tensor:
        """Return the most likely class of each image `[n]` or pixel `[n, H, W]`, int64."""
        return self.logits.argmax(-1)

    @property
    def names(self) -> list[str]:
        """Return the name of the most likely class of each image, or of each pixel in turn."""
        return [self.class_names[label] for label in self.labels.flatten().tolist()]

    @property
    def probabilities(self) -> Tensor:
        """Return the softmax of the logits; nearly uniform if the logits are cosines."""
        return self.logits.float().softmax(-1)

    def __len__(self) -> int:
        return len(self.logits)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)


class _NoImages:
    """Stands for a client's training images, which a kept model lacks."""

    def __init__(self, client: int, method: str) -> None:
        self._facts = client, method

    def __len__(self) -> int:
        return len(self.images)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        client, method = self._facts
        raise UserError(
            f"the model of client {client} cannot predict without its training images, which "
            f"{method} reads in `begin` or `predict`; keep what it needs in the client's state"
        )


class TrainedModel:
    """The model of one client, or the model that all clients share.

    Args:
        owner: the models of the run.
        local: the client with its loaded model, as it was tested.

    Attributes:
        client: the id of the client.
    """

    def __init__(self, owner: TrainedModels, local: LocalContext) -> None:
        self.client = local.client.id
        self.owner = owner
        self._local = local
        local.model.eval()

    @property
    def class_names(self) -> Sequence[str]:
        """Return the names of the classes, in the order of the logits."""
        return self.owner.class_names

    @property
    def preprocessing(self) -> Preprocessing:
        """Return the preprocessing of images for the model."""
        return self.owner.preprocessing

    @property
    def module(self) -> torch.nn.Module:
        """Return the network; `module(Pixels(images))` has features and, with a head, logits.

        `Pixels` of `fedray.plugin` wraps images `[B, channels, H, W]` in [-1, 1].
        """
        module: torch.nn.Module = self._local.model
        return module

    @torch.no_grad()
    def predict(self, images: Images) -> Predictions:
        """Classify images as in the run's evaluation.

        Args:
            images: see `Images`; images of other sizes are scaled.

        Raises:
            UserError: if an image is invalid, cannot be read, or does not fit the model.
        """
        assembly, local = self.owner.assembly, self._local
        use(assembly.experiment.plugins)
        pixels, dense = self.preprocessing(images), assembly.models.dense
        size = (self.preprocessing.height, self.preprocessing.width) if dense else ()
        shape = (len(pixels), *size, len(self.class_names))
        batch = min(BATCH, local.client.setting.training.batch_size) if dense else BATCH
        local.model.eval()
        parts, device = [torch.zeros(0)], local.client.device
        for part in torch.split(pixels.values, batch) if len(pixels) else ():
            with torch_seeded(0, device):  # for layers that draw random numbers in evaluation
                output = local.model(Pixels(part.to(device)))
                logits = assembly.algorithm.predict(output, local)
            parts.append(logits.float().cpu().flatten())
        return Predictions(torch.cat(parts).reshape(shape), self.class_names)

    def state_dict(self) -> Tensors:
        """Return a copy of the model's parameters and buffers by name, on the CPU.

        For a prompt method, these are the prompts, without the frozen CLIP.
        """
        named = named_tensors(self._local.model)
        return {name: tensor.cpu().contiguous().clone() for name, tensor in named.items()}

    @property
    def classifier(self) -> Tensors:
        """Return the tensors beside the model that predictions may read, for example prototypes.

        Empty if the method predicts with the model's own logits.
        """
        if type(self.owner.assembly.algorithm).predict is Algorithm.predict:
            return {}
        trees: dict[str, Any] = {"memory": self._local.state.memory, "extra": self._local.extra}
        return {
            ".".join(path): tensor.detach().cpu().contiguous().clone()
            for path, tensor in leaves(trees)
        }

    def export(self, folder: str | Path) -> Path:
        """Write `model.safetensors` into a new folder: the weights, and `classifier.NAME`.

        Raises:
            UserError: if the folder contains an export.
        """
        from safetensors.torch import save_file

        file = Path(folder).expanduser() / "model.safetensors"
        if file.exists():
            raise UserError(f"{file} is there already; pass another folder")
        file.parent.mkdir(parents=True, exist_ok=True)
        extra = {f"classifier.{name}": tensor for name, tensor in self.classifier.items()}
        save_file({**self.state_dict(), **extra}, file)
        return file.parent


@dataclass(eq=False)
class TrainedModels:
    """The models of one round of a run.

    Attributes:
        folder: the folder of the run.
        assembly: the components of the run, without images.
        which: the round of which they are.
        kept: its commit.
        device: the device of the models.
    """

    folder: Path
    assembly: Assembly
    which: Which
    kept: Commit
    device: torch.device

    @property
    def round(self) -> int:
        """Return the round after which the models were tested."""
        return int(self.kept.facts["round"])

    @property
    def chosen(self) -> str:
        """Return how the round was chosen, as a text for people; "" for the last round."""
        select = self.assembly.experiment.report.select
        return BEST[select] if self.which == "best" else ""

    @property
    def image(self) -> tuple[int, int, int]:
        """Return channels, height and width of the models' input images."""
        return self.assembly.data.images.shape

    @property
    def class_names(self) -> Sequence[str]:
        """Return the names of the classes, in the order of the labels."""
        return self.assembly.setting.class_names

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """Return the preprocessing of images for the models."""
        keys = image_keys(self.assembly.experiment)
        resampling = sources.get(keys.source.name).resampling
        return Preprocessing(*self.image, resampling, keys.resize)

    @property
    def is_global(self) -> bool:
        """Return True if all clients predict with one model."""
        return bool(self.kept.facts["is_global"])

    def __len__(self) -> int:
        return self.assembly.experiment.data.clients

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
        tree, download = self.kept.find(client), self.kept.download(client)
        down = None if download is None else join_payload(*download, algorithm.downloads)
        seed = self.assembly.streams.entropy("layers/evaluate", round_=0, client=client)
        with Isolation(self.device).group(seed):  # as in the run's test
            state = algorithm.init_client(context) if tree is None else ClientState(**tree)
            return algorithm.begin(context, state, down)

    def _client(self, client: int) -> Client:
        """Return a client without images, with an uninitialised model."""
        models = self.assembly.models
        architecture = models.architectures[client]
        return Client(
            id=client,
            round=0,  # as in the run's test
            setting=self.assembly.setting,
            train=cast(Samples, _NoImages(client, self.assembly.algorithm.name)),
            architecture=architecture,
            skeleton=Skeleton(models.empty(architecture, self.device)),
            initial=partial(models.initial, architecture, client),
            device=self.device,
        )
