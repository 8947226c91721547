"""The arguments of a client step: the client's images, random streams and model skeleton."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from fedray.base.flat import Flat, map_blocks
from fedray.base.streams import Streams
from fedray.base.trees import Tensors, difference, moved_to, storage_of
from fedray.core.optimizers import PLAIN_SGD, Optimizer
from fedray.data.augment import NO_AUGMENTATION, Augmentation
from fedray.models import Classifier, saved_buffers
from fedray.models.inputs import Inputs, Pixels


@dataclass(frozen=True)
class TrainingConfig:
    """The experiment's keys for local training; `lr` is the learning rate of the round."""

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
    """Facts of the federation that server and clients share.

    Attributes:
        class_names: names of the C training classes, in the order of their labels.
        feature_dim: d, the width of features and prototypes.
        rounds: T, the number of rounds.
        clients: N, the number of clients.
        training: the configuration of local training.
        streams: the experiment's random streams.
        finetune_epochs: epochs of fine-tuning after the last round.
        top_k: k of the additional top-k accuracy; None does not measure it.
        phases: rounds in which the clients' images change (`data.evolution`).
    """

    class_names: tuple[str, ...]
    feature_dim: int
    rounds: int
    clients: int
    training: TrainingConfig
    streams: Streams
    finetune_epochs: int = 0
    top_k: int | None = None
    phases: tuple[int, ...] = ()

    @property
    def num_classes(self) -> int:
        """C, the number of training classes."""
        return len(self.class_names)


CPU = torch.device("cpu")
NOWHERE = torch.zeros(0, dtype=torch.int64)
"""The positions of a batch that is not part of a split."""


class Batch(NamedTuple):
    """One batch: inputs of B images, labels [B], and the images' positions in their split [B].

    In dense prediction each pixel is a sample: labels [B·H·W], image by image and row by row, in
    the order of features and logits (see `models.backbones.unet.PerPixel`).
    """

    inputs: Inputs
    labels: Tensor
    positions: Tensor = NOWHERE


@dataclass(frozen=True)
class Samples:
    """A client's images of one split.

    The private arrays hold the images of all clients and splits. All processes of a node share one
    memory map of them.

    Attributes:
        _stored: images, uint8 [all, channels, H, W], or features of a frozen tower, float32.
        _all_labels: labels, int64 [all], or in dense prediction masks, uint8 [all, H, W].
        index: indices of this split's images [n].
        kind: the type of the model's input.
    """

    _stored: np.ndarray
    _all_labels: np.ndarray
    index: np.ndarray
    kind: type[Inputs] = Pixels

    def __post_init__(self) -> None:
        index = self.index.view()
        index.flags.writeable = False  # as the images are: all steps share them
        object.__setattr__(self, "index", index)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def labels(self) -> Tensor:
        """The labels of this split, int64 [n], or masks [n, H, W]; on the CPU."""
        return torch.from_numpy(self._all_labels[self.index])

    @property
    def labels_per_image(self) -> int:
        """The number of labels of an image: 1, or H·W in dense prediction."""
        sides = self._all_labels.shape[1:]
        return math.prod(sides) if sides else 1

    @property
    def stored_bytes(self) -> int:
        """The bytes of this split's images."""
        return int(self.index.size * self._stored[0].nbytes)

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Copy this split to a device; return stored images [n, ...] and labels [n] or masks."""
        stored = torch.from_numpy(self._stored.take(self.index, 0))
        labels = self.labels
        return (stored, labels) if device.type == "cpu" else (stored.to(device), labels.to(device))

    @property
    def is_labelled(self) -> bool:
        """False if every label is -1, because public images are unlabelled (`data.public`)."""
        return bool((self._all_labels[self.index[:1]] >= 0).all())

    def part(self, index: np.ndarray) -> Samples:
        """Return the images at some positions of this split."""
        return replace(self, index=self.index[index])

    def batch(self, stored: Tensor, labels: Tensor, positions: Tensor = NOWHERE) -> Batch:
        """Return a batch of stored images [B, ...], labels [B] or masks [B, H, W], and positions.

        `positions` are those of the images in this split [B].
        """
        if labels.ndim > 1 or labels.dtype != torch.int64:
            labels = labels.flatten().long()
        return Batch(self.kind.of(stored), labels, positions)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of an optimiser."""
    for group in optimizer.param_groups:
        group["lr"] = lr


class Skeleton:
    """A model of one architecture on its device, into which clients' weights are loaded.

    Attributes:
        model: the model, whose parameters and saved buffers are views of `tensors`.
        parameters: its parameters.
        tensors: parameters and saved buffers by name.
        memory: the addresses of their vectors on the CPU, which the next client overwrites.
    """

    def __init__(self, model: Classifier) -> None:
        self.model = model
        self.parameters = list(model.parameters())
        self.tensors = Flat.of(named_tensors(model))
        saved = saved_buffers(model)
        for name, tensor in (*model.named_parameters(), *saved.items()):
            tensor.data = self.tensors[name]
        self._unsaved = {
            name: tensor.clone() for name, tensor in model.named_buffers() if name not in saved
        }
        self.memory = [storage_of(vector) for vector in self.tensors.vectors if vector.is_cpu]
        self._optimizer: tuple[Optimizer, torch.optim.Optimizer] | None = None

    def optimizer(
        self, config: TrainingConfig, extra: Sequence[Tensor] = ()
    ) -> torch.optim.Optimizer:
        """Return the optimiser of the model's and of extra parameters, without running means."""
        if extra:
            return config.optimizer.make([*self.parameters, *extra], config.lr)
        if self._optimizer is None or self._optimizer[0] is not config.optimizer:
            made = config.optimizer.make(self.parameters, config.lr)
            self._optimizer = config.optimizer, made
        made = self._optimizer[1]
        made.state.clear()
        set_lr(made, config.lr)
        return made

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Load weights, forget gradients, and give unsaved buffers the values of the constructor.

        Raises:
            ValueError: if names, shapes or dtypes are not the model's.
        """
        is_alike = isinstance(weights, Flat) and weights.layout is self.tensors.layout
        wrong = "" if is_alike else difference(weights, self.tensors)  # copying would cast
        if wrong:
            raise ValueError(f"the weights do not fit the model: {wrong}")
        self.overwrite(weights)
        for parameter in self.parameters:
            parameter.grad = None  # that of the last client, who may have uploaded it
        for name, tensor in self._unsaved.items():
            owner, _, buffer = name.rpartition(".")
            setattr(self.model.get_submodule(owner), buffer, tensor.clone())

    def overwrite(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite parameters and saved buffers with tensors of the same names and shapes."""
        self.tensors.copy_(weights)
        increment_version(self.parameters)  # prompted models recognise a change by it


def named_tensors(model: nn.Module) -> Tensors:
    """Return a model's parameters and saved buffers by name, without copying them."""
    tensors = (*model.named_parameters(), *saved_buffers(model).items())
    return {name: tensor.detach() for name, tensor in tensors}


@dataclass(frozen=True)
class Client:
    """A client in a round, with its data, random streams and a model of its architecture.

    Attributes:
        id: the client's number, 0 <= id < N.
        round: the round, from 1; 0 is before the first round.
        setting: facts of the federation that server and clients share.
        train: the training images.
        architecture: the name of the model's architecture.
        skeleton: a model of this architecture, into which weights are loaded; clients share it.
        initial: returns the initial weights.
        device: the device of the client's steps.
        reports: numbers that the method reports; their means appear as "client/<name>".
        validation: the validation images, if the method's `requires.validation` is set; else None.
        train_losses: mean loss in the last epoch of each local training of this step.
        public: the public images, if the method's `requires.public` is set.
        order: the name of the random stream that orders the training images in a round.
        together: what the client shares with its group on an accelerator.
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
    public: Samples = None  # type: ignore[assignment]
    order: str = "batches"
    together: Together | None = None

    def random(self, purpose: str) -> torch.Generator:
        """Return the client's random stream for a purpose in this round."""
        return self.setting.streams.torch(purpose, round_=self.round, client=self.id)

    def training_on(self, samples: Samples, order: str, **config: Any) -> Client:
        """Return this client with other training images, all of which are used, not augmented.

        Args:
            samples: the images, for example public ones.
            order: the name of the random stream that orders them; another one for every training
                in a round.
            config: changes of the training configuration.
        """
        config = {"augment": NO_AUGMENTATION, "drop_last": False, **config}
        other = self.with_schedule(**config)
        return replace(other, train=samples, order=order)

    def with_schedule(self, later: int = 0, **config: Any) -> Client:
        """Return this client with a changed training `config`, moved on by `later` rounds.

        The round determines the client's random batches.
        """
        training = replace(self.setting.training, **config)
        setting = replace(self.setting, training=training)
        return replace(self, round=self.round + later, setting=setting)

    def tensors(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """Return stored images [n, ...] of a split and their labels [n] or masks, on the device."""
        copies = () if self.device.type == "cpu" else self._copies(samples)
        return (copies[0], copies[1]) if copies else samples.tensors(self.device)

    def orders(self) -> Sequence[Tensor]:
        """Return the order of the training images [n] in each epoch, int64, on the device."""
        copies = () if self.device.type == "cpu" else self._copies(self.train, orders=True)
        if copies:
            return copies[2:]
        config, count = self.setting.training, self.train.index.size
        if config.shuffle:
            random = self.random(self.order)
            drawn = [torch.randperm(count, generator=random) for _ in range(config.epochs)]
        else:
            drawn = [torch.arange(count)] * config.epochs
        return drawn if self.device.type == "cpu" else moved_to(drawn, self.device)

    def _copies(self, samples: Samples, *, orders: bool = False) -> Sequence[Tensor]:
        """Return what the group has copied of a split; () if it did not plan split or orders."""
        if self.together is None:
            return ()
        plan = self.together.clients[self.id]
        is_planned = self.setting is plan.setting and self.order == plan.order
        is_shared = samples is plan.train and (is_planned or not orders)
        return self.together.copies.get(self.id, ()) if is_shared else ()

    def note_losses(self, losses: Sequence[Tensor], sizes: Sequence[int]) -> None:
        """Note the losses of the batches of the last epoch, which have these sizes.

        Those of a group are read at its end, all at once.

        Raises:
            FloatingPointError: if their mean is not finite.
        """
        if self.together is not None:
            self.together.losses.append((self, losses, sizes))
        else:
            self.read_losses(torch.stack([*losses]).tolist() if losses else [], sizes)

    def read_losses(self, losses: Sequence[float], sizes: Sequence[int]) -> None:
        """Append the mean of noted losses to `train_losses`; see `note_losses`."""
        total, weight = np.float32(0), 0.0
        for value, size in zip(losses, sizes, strict=True):
            total += np.float32(value) * np.float32(size / sizes[0])
            weight += size / sizes[0]
        mean = float(total) / (weight or 1)
        if not math.isfinite(mean):
            raise diverged(mean, self.setting.training)
        self.train_losses.append(mean)

    def load(self, weights: Mapping[str, Tensor]) -> Classifier:
        """Load `weights` into the skeleton's model and return the model, on the device."""
        self.skeleton.load(weights)
        return self.skeleton.model

    def weights(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Return a model's parameters and buffers without copying them."""
        return self.skeleton.tensors if model is self.skeleton.model else named_tensors(model)

    def save(self, model: nn.Module) -> Mapping[str, Tensor]:
        """Return a copy of a model's parameters and buffers, for the client's state."""
        saved: Mapping[str, Tensor] = map_blocks(torch.clone, self.weights(model))
        return saved

    def batches(self, samples: Samples, batch_size: int = 500) -> Iterator[Batch]:
        """Yield batches of `samples` in their order, for passes without training."""
        if samples.labels_per_image > 1:  # of whose features a pass must not need more memory
            batch_size = min(batch_size, self.setting.training.batch_size)
        stored, labels = self.tensors(samples)
        count = labels.shape[0]
        positions = torch.arange(count, device=self.device)
        for start in range(0, count, batch_size):
            part = slice(start, start + batch_size)
            yield samples.batch(stored[part], labels[part], positions[part])

    @torch.no_grad()
    def features(self, model: Classifier, samples: Samples) -> Tensor:
        """Return the features [n, d] of a split, in evaluation mode; n may be 0."""
        model.eval()
        none = torch.zeros(0, self.setting.feature_dim, device=self.device)
        parts = [model(batch.inputs).features.float() for batch in self.batches(samples)]
        return torch.cat([none, *parts])

    @torch.no_grad()
    def logits(self, model: Classifier, samples: Samples) -> Tensor:
        """Return the logits [n, C] of a split, in evaluation mode; n is at least 1."""
        model.eval()
        return torch.cat([model(batch.inputs).logits.float() for batch in self.batches(samples)])

    @torch.no_grad()
    def class_means(self, model: Classifier) -> tuple[Tensor, Tensor, Tensor]:
        """Return the mean feature of every local class, in evaluation mode (FedTSP Eq. (5)).

        Returns:
            The classes that the client holds [c], their mean features [c, d] and counts [c].
        """
        features, classes = self.features(model, self.train), self.setting.num_classes
        means, counts = row_means(features, self._labels, classes)
        held = counts.nonzero().squeeze(1)
        return held, means[held], counts[held]

    @cached_property
    def class_counts(self) -> Tensor:
        """n_{i,c}, the client's number of training images of each class [C], int64."""
        counts = self._labels.new_zeros(self.setting.num_classes)  # bincount waits for a device
        return counts.index_add_(0, self._labels, torch.ones_like(self._labels))

    @property
    def _labels(self) -> Tensor:
        """The labels of the training images on the device [n], int64."""
        if self.device.type == "cpu":
            return self.train.labels.flatten().long()
        return self.tensors(self.train)[1].flatten().long()


def row_means(rows: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean of the rows of each class [C, d], zero without rows, and row counts [C].

    Args:
        rows: vectors [M, d].
        labels: the class of each row, int64 [M].
        classes: C.
    """
    counts = labels.new_zeros(classes).index_add_(0, labels, torch.ones_like(labels))
    sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, labels, rows)
    return sums / counts.clamp_min(1).unsqueeze(1), counts


SHARED_BYTES = 2**28
"""Most bytes of images that a group copies to an accelerator at once."""


class Together:
    """What the clients of a group share: single reads and copies take long on an accelerator.

    There, training images and their orders are copied for all when the first client needs them.

    Attributes:
        clients: the clients, by id.
        losses: losses that clients have noted, and the sizes of their batches.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.clients: dict[int, Client] = {}
        self.losses: list[tuple[Client, Sequence[Tensor], Sequence[int]]] = []

    def read_losses(self) -> Iterator[Client]:
        """Read the noted losses; yield each client before its own."""
        noted, self.losses = self.losses, []
        every = [loss for _, losses, _ in noted for loss in losses]
        values = iter(torch.stack(every).tolist() if every else ())
        for client, _, sizes in noted:
            yield client
            client.read_losses([*islice(values, len(sizes))], sizes)

    @cached_property
    def copies(self) -> dict[int, Sequence[Tensor]]:
        """Training images, labels and orders of each client; nothing if they are too large."""
        if sum(client.train.stored_bytes for client in self.clients.values()) > SHARED_BYTES:
            return {}
        here = [replace(client, device=CPU, together=None) for client in self.clients.values()]
        parts = {one.id: (*one.tensors(one.train), *one.orders()) for one in here}
        moved = iter(moved_to([tensor for of in parts.values() for tensor in of], self.device))
        return {client: [next(moved) for _ in of] for client, of in parts.items()}


def diverged(loss: float, config: TrainingConfig) -> FloatingPointError:
    """Return the error for a mean loss of an epoch that is not finite."""
    return FloatingPointError(
        f"the training loss became {loss}; lower lr (now {config.lr:g}) "
        "or the weight of the method's own loss term"
    )
