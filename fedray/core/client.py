"""What a client step sees: the client's images, its random streams, an empty model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.core.optimizers import PLAIN_SGD, Optimizer
from fedray.core.state import Tensors
from fedray.data.augment import NO_AUGMENTATION, Augmentation
from fedray.models import Classifier
from fedray.models.inputs import Inputs, Pixels
from fedray.streams import Streams


@dataclass(frozen=True)
class TrainingConfig:
    """The local loop; the keys of the experiment of the same names (`data.augment`).

    A client sees `lr` as it is in its round, what is not a client's as the experiment has it.
    """

    epochs: int = 5
    batch_size: int = 100
    lr: float = 0.01
    optimizer: Optimizer = PLAIN_SGD
    clip_grad_norm: float | None = None
    shuffle: bool = True
    drop_last: bool = False
    precision: str = "float32"
    augment: Augmentation = NO_AUGMENTATION


@dataclass(frozen=True)
class Setting:
    """What both sides know of the federation.

    Attributes:
        class_names: C names of what is trained on; their order is the labels'.
        feature_dim: d, width of features and prototypes.
        rounds: T.
        clients: N.
        training: the local loop.
        seed: the experiment's seed.
        finetune_epochs: how long heads are fine-tuned after the last round.
        top_k: tests also count the true class among the k likeliest; None: they do not.
        phases: the rounds in which clients have other images than before (`data.evolution`).
    """

    class_names: tuple[str, ...]
    feature_dim: int
    rounds: int
    clients: int
    training: TrainingConfig
    seed: int
    finetune_epochs: int = 0
    top_k: int | None = None
    phases: tuple[int, ...] = ()

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)

    @property
    def streams(self) -> Streams:
        """The experiment's random streams."""
        return Streams(self.seed)


class Batch(NamedTuple):
    """One batch: inputs of B images, labels [B].

    For dense prediction a pixel is a sample of its own: labels [B·H·W], image by image and row by
    row, as features and logits come (see `models.backbones.unet.PerPixel`).
    """

    inputs: Inputs
    labels: Tensor


@dataclass(frozen=True)
class Samples:
    """A client's images of one split, still in the node's mapped arrays.

    Attributes:
        stored: uint8 [all, channels, H, W], or what a frozen tower made of them, float32.
        all_labels: int64 [all]; for dense prediction masks, uint8 [all, H, W].
        index: which of them are in this split [n].
        kind: what a model is given of them.
    """

    stored: np.ndarray
    all_labels: np.ndarray
    index: np.ndarray
    kind: type[Inputs] = Pixels

    def __post_init__(self) -> None:
        """Steps read these arrays; all clients share them."""
        for name in ("stored", "all_labels", "index"):
            view = getattr(self, name).view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> Tensor:
        """The labels of this split, int64 [n], or masks [n, H, W]; on the CPU."""
        return torch.from_numpy(self.all_labels[self.index])

    @property
    def dense(self) -> bool:
        """Whether every pixel has a label."""
        return self.all_labels.ndim > 1

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """A copy of this split on a device: what is stored [n, ...], and labels [n] or masks."""
        stored = torch.from_numpy(self.stored[self.index])
        return stored.to(device), self.labels.to(device)

    def batch(self, stored: Tensor, labels: Tensor) -> Batch:
        """A batch of stored images [B, ...] and their labels [B] or masks [B, H, W]."""
        return Batch(self.kind.of(stored), labels.flatten().long())


class EvalSet(NamedTuple):
    """Images that every client's model is tested on, and the classes it answers among."""

    samples: Samples
    classes: range


@dataclass(frozen=True)
class HeldOut:
    """The images that a client's model is measured on; only evaluation holds them.

    Attributes:
        test: the client's own test images.
        eval_sets: test images that all clients share, by name.
        validation: the client's own validation images; None where nobody has any.
        validation_sets: all clients' validation images that stand for `eval_sets`, by name.
    """

    test: Samples
    eval_sets: Mapping[str, EvalSet] = field(default_factory=dict)
    validation: Samples | None = None
    validation_sets: Mapping[str, EvalSet] = field(default_factory=dict)


class Skeleton:
    """An empty model of one architecture that weights are loaded into, client after client.

    Args:
        model: the module, on its device; never kept by a client.
    """

    def __init__(self, model: Classifier) -> None:
        self.model = model
        self.parameters = list(model.parameters())
        self.tensors = named_tensors(model)
        self._optimizer: tuple[TrainingConfig, torch.optim.Optimizer] | None = None

    def optimizer(self, config: TrainingConfig) -> torch.optim.Optimizer:
        """The optimiser of the model's parameters, without memory of earlier clients or rounds."""
        if self._optimizer is None or self._optimizer[0] != config:
            self._optimizer = (config, config.optimizer.make(self.parameters, config.lr))
        self._optimizer[1].state.clear()
        return self._optimizer[1]


def _kind(tensor: Tensor) -> str:
    """A tensor's type and shape, "float32 [10, 16]"."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def named_tensors(model: nn.Module) -> Tensors:
    """A model's parameters and buffers by name, not copied."""
    return {
        name: tensor.detach()
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }


@dataclass(frozen=True)
class Client:
    """One client in one round: its data, its random streams, an empty model of its architecture.

    Attributes:
        id: the client's number, 0 <= id < N.
        round: the round, from 1; 0 is before the first.
        setting: what both sides know.
        train: the images it learns from.
        architecture: the name of its model.
        skeleton: an empty model of that architecture; shared, never kept.
        initial: makes the initial weights.
        device: where steps run.
        reports: numbers that the method reports; they arrive as "client/<name>", as means.
        validation: the client's validation images, for methods whose `requires.validation` is
            set; None for all other methods. Test images are never here: see `HeldOut`.
        train_losses: mean loss of the last epoch of each local training of this step.
        optimizer_state: what the optimiser has kept, by the parameter's name; stays empty unless
            `optimizer.keep` is set.
        method: the method's name, for messages.
    """

    id: int
    round: int
    setting: Setting
    train: Samples
    architecture: str
    skeleton: Skeleton
    initial: Callable[[], Tensors]
    device: torch.device
    reports: dict[str, float] = field(default_factory=dict)
    validation: Samples | None = None
    train_losses: list[float] = field(default_factory=list)
    optimizer_state: dict[str, Any] = field(default_factory=dict)
    method: str = "the method"

    def with_schedule(self, later: int = 0, **config: Any) -> Client:
        """This client with the batches of `later` rounds on, and another `TrainingConfig`."""
        training = replace(self.setting.training, **config)
        setting = replace(self.setting, training=training)
        return replace(self, round=self.round + later, setting=setting)

    def load(self, weights: Mapping[str, Tensor]) -> Classifier:
        """Put `weights` into this architecture's skeleton and return it, on the device.

        Raises:
            ValueError: when they are not the model's, by name, shape or dtype.
        """
        placed = self.skeleton.tensors
        if placed.keys() != weights.keys():
            raise ValueError(
                f"the weights do not fit {self.architecture}: "
                f"{sorted(placed.keys() ^ weights.keys())[:3]} differ"
            )
        for name, tensor in placed.items():
            given = weights[name]
            if given.shape != tensor.shape or given.dtype != tensor.dtype:  # `copy_` makes it fit
                raise ValueError(
                    f"the weights that {self.method} loads do not fit {self.architecture}: {name} "
                    f"is {_kind(given)}, expected {_kind(tensor)}"
                )
            tensor.copy_(given)
        return self.skeleton.model

    def weights(self, model: nn.Module) -> Tensors:
        """A model's parameters and buffers, not copied: for uploads, which the gate copies."""
        return self.skeleton.tensors if model is self.skeleton.model else named_tensors(model)

    def save(self, model: nn.Module) -> Tensors:
        """A copy of a model's parameters and buffers, on the CPU: for the client's state."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.weights(model).items()}

    @torch.no_grad()
    def batches(self, samples: Samples, batch_size: int = 500) -> Iterator[Batch]:
        """Yield `samples` in their order, for passes that do not train."""
        if samples.dense:  # the features of every pixel are kept: no more than training holds
            batch_size = min(batch_size, self.setting.training.batch_size)
        stored, labels = samples.tensors(self.device)
        for start in range(0, len(labels), batch_size):
            part = slice(start, start + batch_size)
            yield samples.batch(stored[part], labels[part])

    @torch.no_grad()
    def features(self, model: Classifier, samples: Samples) -> Tensor:
        """Features [n, d] of a split, in evaluation mode; n may be 0."""
        model.eval()
        none = torch.zeros(0, self.setting.feature_dim, device=self.device)
        parts = [model(batch.inputs).features.float() for batch in self.batches(samples)]
        return torch.cat([none, *parts])

    @torch.no_grad()
    def class_means(self, model: Classifier) -> tuple[Tensor, Tensor, Tensor]:
        """Mean feature of every local class, by one pass in evaluation mode (FedTSP Eq. (5)).

        Returns:
            Classes [c] that the client holds, their mean features [c, d] and their counts [c].
        """
        model.eval()
        classes, d = self.setting.num_classes, self.setting.feature_dim
        sums = torch.zeros(classes, d, device=self.device)
        counts = torch.zeros(classes, dtype=torch.int64, device=self.device)
        for batch in self.batches(self.train):
            features = model(batch.inputs).features.float()
            sums.index_add_(0, batch.labels, features)
            counts += torch.bincount(batch.labels, minlength=classes)
        held = counts.nonzero().squeeze(1)
        return held, sums[held] / counts[held].unsqueeze(1), counts[held]

    def class_counts(self) -> Tensor:
        """n_{i,c}: how many training images of each class the client has [C], int64."""
        return torch.bincount(self.train.labels, minlength=self.setting.num_classes)
