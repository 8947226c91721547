"""What a client step sees, and the one local training loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedray.data.augment import augment
from fedray.models import Classifier, is_normalisation
from fedray.models.pixels import to_float
from fedray.streams import Streams

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class ClientState:
    """What a client keeps between rounds; it belongs to the caller, never to a worker.

    Attributes:
        model: the model's parameters and buffers by name.
        memory: whatever else the method keeps (control variates, previous weights).
    """

    model: Tensors
    memory: Tensors = field(default_factory=dict)


def plain(tensors: Mapping[str, Tensor]) -> Tensors:
    """The tensors, contiguous: a stored one is, and another layout rounds differently."""
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


@dataclass(frozen=True)
class LocalTraining:
    """The local loop's knobs; the keys of the experiment of the same names (`data.augment`)."""

    epochs: int = 5
    batch_size: int = 100
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    shuffle: bool = True
    drop_last: bool = False
    precision: str = "float32"
    augment: str = "none"


@dataclass(frozen=True)
class Setting:
    """What both sides know of the federation.

    Attributes:
        class_names: C names of what is trained on; their order is the labels'.
        feature_dim: d, width of features and prototypes.
        rounds: T.
        clients: N.
        training: the local loop's knobs.
        seed: the experiment's seed.
        finetune_epochs: how long heads are fine-tuned after the last round.
    """

    class_names: tuple[str, ...]
    feature_dim: int
    rounds: int
    clients: int
    training: LocalTraining
    seed: int
    finetune_epochs: int = 0

    @property
    def num_classes(self) -> int:
        """C."""
        return len(self.class_names)

    @property
    def streams(self) -> Streams:
        """The experiment's random streams."""
        return Streams(self.seed)


class Batch(NamedTuple):
    """One batch: images [B, channels, H, W] in [-1, 1], labels [B].

    Instead of images, what a frozen tower made of them, for models that read that. For dense
    prediction a pixel is a sample of its own: labels [B·H·W], image by image and row by row, as
    features and logits come (see `fedray.models.Pixels`).
    """

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Samples:
    """A client's images of one split, still in the node's mapped arrays.

    Attributes:
        all_images: uint8 [all, channels, H, W], or frozen features float32 [all, ...].
        all_labels: int64 [all]; for dense prediction masks, uint8 [all, H, W].
        index: which of them are in this split [n].
    """

    all_images: np.ndarray
    all_labels: np.ndarray
    index: np.ndarray

    def __len__(self) -> int:
        return len(self.index)

    @property
    def dense(self) -> bool:
        """Whether every pixel has a label."""
        return self.all_labels.ndim > 1

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """A copy of this split: images uint8 [n, channels, H, W] (or features), labels [n].

        For dense prediction labels [n, H, W].
        """
        images = torch.from_numpy(self.all_images[self.index])
        return images.to(device), torch.from_numpy(self.all_labels[self.index]).to(device)


def to_batch(images: Tensor, labels: Tensor) -> Batch:
    """A batch of images uint8 [B, channels, H, W] and their labels [B] or masks [B, H, W]."""
    return Batch(to_float(images), labels.flatten().long())


class Skeleton:
    """An empty model of one architecture that weights are loaded into, client after client.

    Args:
        model: the module, on its device; never kept by a client.
    """

    def __init__(self, model: Classifier) -> None:
        self.model = model
        self.parameters = list(model.parameters())
        self.tensors: Tensors = {
            name: tensor.detach()
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }
        self._optimizer: tuple[LocalTraining, torch.optim.SGD] | None = None

    def optimizer(self, knobs: LocalTraining) -> torch.optim.SGD:
        """SGD on the model's parameters, without memory of earlier clients or rounds."""
        if self._optimizer is None or self._optimizer[0] != knobs:
            sgd = torch.optim.SGD(
                self.parameters,
                knobs.lr,
                momentum=knobs.momentum,
                weight_decay=knobs.weight_decay,
            )
            self._optimizer = (knobs, sgd)
        self._optimizer[1].state.clear()
        return self._optimizer[1]


@contextmanager
def learning(model: Classifier, only: Collection[str] | None) -> Iterator[None]:
    """Put a model into training mode, with all parameters frozen but those named in `only`.

    Normalisation layers without a parameter that learns stay in evaluation mode.
    """
    if not model.training:
        model.train()
    if only is None:
        yield
        return
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in only)
    for module in model.modules():
        if is_normalisation(module) and not any(p.requires_grad for p in module.parameters()):
            module.eval()
    try:
        yield
    finally:
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        model.train()


class Exam(NamedTuple):
    """Images that every client's model is tested on, and the classes it answers among."""

    samples: Samples
    classes: range


@dataclass(frozen=True)
class Client:
    """One client in one round: its data, its random streams, an empty model of its architecture.

    Attributes:
        id: the client's number, 0 <= id < N.
        round: the round, from 1; 0 is before the first.
        setting: what both sides know.
        train: the images it learns from.
        test: the images it keeps for its own test.
        architecture: the name of its model.
        skeleton: an empty model of that architecture; shared, never kept.
        initial: makes the initial weights.
        device: where steps run.
        metrics: numbers that a step reports.
        exams: what all clients' models are tested on besides, by name.
        validation: the images it neither learns from nor is tested on; None where nobody has any.
    """

    id: int
    round: int
    setting: Setting
    train: Samples
    test: Samples
    architecture: str
    skeleton: Skeleton
    initial: Callable[[], Tensors]
    device: torch.device
    metrics: dict[str, float] = field(default_factory=dict)
    exams: Mapping[str, Exam] = field(default_factory=dict)
    validation: Samples | None = None

    def again(self, later: int, **knobs: Any) -> Client:
        """This client with the batches of `later` rounds on, and other knobs of `LocalTraining`."""
        training = replace(self.setting.training, **knobs)
        setting = replace(self.setting, training=training)
        return replace(self, round=self.round + later, setting=setting)

    def load(self, weights: Mapping[str, Tensor]) -> Classifier:
        """Put `weights` into this architecture's skeleton and return it, on the device."""
        own = self.skeleton.tensors
        if own.keys() != weights.keys():
            raise ValueError(
                f"the weights do not fit {self.architecture}: "
                f"{sorted(own.keys() ^ weights.keys())[:3]} differ"
            )
        for name, tensor in own.items():
            tensor.copy_(weights[name])
        return self.skeleton.model

    def weights(self, model: nn.Module) -> Tensors:
        """A model's parameters and buffers, not copied: for uploads, which the gate copies."""
        if model is self.skeleton.model:
            return self.skeleton.tensors
        return {
            name: tensor.detach()
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }

    def save(self, model: nn.Module) -> Tensors:
        """A copy of a model's parameters and buffers, on the CPU: for the client's state."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.weights(model).items()}

    def fit(
        self,
        model: Classifier,
        loss: Callable[[Classifier, Batch], Tensor],
        *,
        only: Collection[str] | None = None,
        repeat: int = 1,
        after: Callable[[], None] = lambda: None,
    ) -> int:
        """Train the skeleton's model in place: E_c epochs of SGD on the local images.

        The mean loss of the last epoch is put into `metrics` as "train_loss".

        Args:
            model: the skeleton's model, loaded.
            loss: the loss of one batch.
            only: the parameters that learn; None for all. Whatever else there is stays as it is,
                running statistics included.
            repeat: steps on every batch.
            after: called after the steps on a batch.

        Returns:
            The number of batches.

        Raises:
            FloatingPointError: when the loss is no longer finite.
        """
        with learning(model, only):
            return self._fit(model, loss, repeat, after)

    def _fit(
        self,
        model: Classifier,
        loss: Callable[[Classifier, Batch], Tensor],
        repeat: int,
        after: Callable[[], None],
    ) -> int:
        knobs = self.setting.training
        streams, here = self.setting.streams, {"round_": self.round, "client": self.id}
        random, views = streams.torch("batches", **here), streams.torch("augment", **here)
        optimizer = self.skeleton.optimizer(knobs)
        images, labels = self.train.tensors(self.device)
        autocast = torch.autocast(
            self.device.type, torch.bfloat16, enabled=knobs.precision == "bfloat16"
        )
        total, steps, before = torch.zeros((), device=self.device), 0, 0
        for _ in range(knobs.epochs):
            before += steps
            total, steps = torch.zeros((), device=self.device), 0
            for index in self._order(len(labels), random):
                seen = augment(images[index], knobs.augment, views)
                batch = to_batch(seen, labels[index])
                for _ in range(repeat):
                    optimizer.zero_grad()
                    with autocast:
                        value = loss(model, batch)
                    value.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                after()
                total += value.detach()
                steps += 1
        mean = float(total) / max(steps, 1)
        if not np.isfinite(mean):
            raise FloatingPointError(
                f"the training loss became {mean}; lower lr (now {knobs.lr:g}) "
                "or the weight of the method's own term"
            )
        self.metrics["train_loss"] = mean
        return before + steps

    def _order(self, count: int, random: torch.Generator) -> Sequence[Tensor]:
        """The batches' indices of one epoch."""
        knobs = self.setting.training
        order = torch.randperm(count, generator=random) if knobs.shuffle else torch.arange(count)
        order = order.to(self.device)
        whole, rest = divmod(count, knobs.batch_size)
        if knobs.drop_last:
            order = order[: whole * knobs.batch_size]
        elif rest == 1 and whole > 0:
            # Batch normalisation cannot train on one image: it joins the batch before.
            sizes = [knobs.batch_size] * (whole - 1) + [knobs.batch_size + 1]
            return torch.split(order, sizes)
        return torch.split(order, knobs.batch_size)

    @torch.no_grad()
    def batches(self, samples: Samples, batch_size: int = 500) -> Iterator[Batch]:
        """Yield `samples` in their order, for passes that do not train."""
        if samples.dense:  # the features of every pixel are kept: no more than training holds
            batch_size = min(batch_size, self.setting.training.batch_size)
        images, labels = samples.tensors(self.device)
        for start in range(0, len(labels), batch_size):
            part = slice(start, start + batch_size)
            yield to_batch(images[part], labels[part])

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
            features = model(batch.images).features.float()
            sums.index_add_(0, batch.labels, features)
            counts += torch.bincount(batch.labels, minlength=classes)
        held = counts.nonzero().squeeze(1)
        return held, sums[held] / counts[held].unsqueeze(1), counts[held]
