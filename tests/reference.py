"""A method's round as a plain loop, which takes of this package the inputs of a finished run alone.

A test gives it the initial weights, the images and the order of the batches of the run, and writes
the method's loss down again; then both must have the same weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedray.algorithms.mean import class_average
from fedray.core import combined_rows, total_of
from fedray.models import Pixels, build

SHAPE = {"channels": 1, "image_size": 8, "num_classes": 10, "feature_dim": 16}
"""Of models for the tests' small experiment on digits."""
THREE = {"data.clients": 3, "rounds": 2, "local_epochs": 2, "model.group": "digits"}
"""Changes to the small experiment: two `mlp`s and a `cnn2`, whose heads alone are alike."""

BatchLoss = Callable[[Tensor, Tensor], Tensor]
"""The loss from images [B, channels, height, width] and labels [B]."""
OutputLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The loss from features [B, 16], logits [B, 10] and labels [B]."""


class ReferenceClient:
    """A client's images, and training on them in the order of a run.

    Args:
        assembly: the parts of the run.
        number: the client.
    """

    def __init__(self, assembly: Any, number: int = 0) -> None:
        data, indices = assembly.data, assembly.data.train[number]
        self.images = torch.from_numpy(data.images.images[indices]).float() * (2 / 255) - 1
        self.labels = torch.from_numpy(data.images.labels[indices])
        self._number, self._streams = number, assembly.streams

    def batches(
        self,
        round_: int,
        epochs: int = 1,
        size: int = 16,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels; a single last image joins the batch before."""
        random = self._streams.torch("batches", round_=round_, client=self._number)
        count = len(self.labels)
        for _ in range(epochs):
            order = torch.randperm(count, generator=random) if shuffle else torch.arange(count)
            chunks = list(order.split(size))
            if drop_last and len(chunks[-1]) < size:
                chunks.pop()
            if len(chunks) > 1 and len(chunks[-1]) == 1:
                chunks[-2:] = [torch.cat(chunks[-2:])]
            yield from ((self.images[chunk], self.labels[chunk]) for chunk in chunks)

    def train(
        self,
        round_: int,
        loss: BatchLoss,
        optimizer: torch.optim.Optimizer,
        epochs: int = 1,
        before_step: Callable[[], None] = lambda: None,
        **order: Any,
    ) -> list[float]:
        """Take a step for every batch; return the batches' losses.

        Args:
            round_: the round.
            loss: of one batch.
            optimizer: of what learns.
            epochs: how often each image is seen.
            before_step: corrects the gradients.
            **order: what else `batches` takes.
        """
        losses = []
        for images, labels in self.batches(round_, epochs, **order):
            optimizer.zero_grad()
            value = loss(images, labels)
            value.backward()
            before_step()
            optimizer.step()
            losses.append(value.item())
        return losses


def initial_model(assembly: Any, name: str, **changes: Any) -> Any:
    """Build a model with the weights that every client of a run starts with."""
    generator = assembly.streams.torch(f"weights/{name}")
    return build(name, **{**SHAPE, **changes}, generator=generator)


def supervised(model: nn.Module) -> BatchLoss:
    """Return the cross-entropy of a model's logits."""
    return lambda images, labels: F.cross_entropy(model(Pixels(images)).logits, labels)


def guesses(done: Any, client: int, indices: Any) -> Any:
    """Return the labels [n] that a client's last model gives to images of the run."""
    models, images = done.assembly.models, done.assembly.data.images.images[indices]
    model = models.empty(models.architectures[client]).eval()
    model.load_state_dict(dict(done.models[client]))
    with torch.no_grad():
        outputs = model(Pixels(torch.from_numpy(images).float() * (2 / 255) - 1))
    return outputs.logits.argmax(1).numpy()


def set_parameters(parameters: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    """Copy values into parameters, in order."""
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)


def weighted_mean(models: Mapping[int, nn.Module], sizes: Mapping[int, int]) -> list[Tensor]:
    """Return the mean of the clients' parameters, in order, by their numbers of images."""
    shares = [sizes[client] / sum(sizes[k] for k in models) for client in models]
    return [
        sum(share * value.detach() for share, value in zip(shares, values, strict=True))
        for values in zip(*(model.parameters() for model in models.values()), strict=True)
    ]


def layers(kind: str) -> nn.Sequential:
    """Return the layers of `mlp` and `cnn2` below the head, written down again: 128 features."""
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU())
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 128), nn.ReLU(),
    )  # fmt: skip


def body(kind: str) -> nn.Sequential:
    """Return the layers below the head; 16 features are means of 8 numbers."""
    return nn.Sequential(*layers(kind), nn.AvgPool1d(8))


def assert_close(expected: Iterable[Tensor], found: Mapping[str, Tensor], atol: float) -> None:
    """Assert that named tensors are the expected ones, in order."""
    for mine, (name, value) in zip(expected, found.items(), strict=True):
        assert float((mine.detach() - value).abs().max()) < atol, name


class ReferenceClients:
    """The clients of a finished run of `THREE`, as they were at its beginning.

    Args:
        done: the run.
    """

    def __init__(self, done: Any) -> None:
        models = done.assembly.models
        self.streams = done.assembly.streams
        self.clients = [ReferenceClient(done.assembly, number) for number in range(3)]
        self.bodies = [body(kind) for kind in models.architectures]
        self.heads = [nn.Linear(16, 10) for _ in range(3)]
        for number, kind in enumerate(models.architectures):
            set_parameters(self.parameters(number), models.initial(kind, number).values())

    def parameters(self, number: int) -> list[Tensor]:
        """Return a client's weights, those of its head last."""
        return [*self.bodies[number].parameters(), *self.heads[number].parameters()]

    def shares(self) -> list[float]:
        """Return each client's share of the training images."""
        counts = [len(client.labels) for client in self.clients]
        return [count / sum(counts) for count in counts]

    def put_head(self, number: int, head: nn.Linear) -> None:
        """Copy a head's weights into a client's."""
        self.heads[number].load_state_dict(head.state_dict())

    def train(self, number: int, round_: int, loss: OutputLoss) -> None:
        """Take two epochs of SGD on a client's images."""

        def batch_loss(images: Tensor, labels: Tensor) -> Tensor:
            features = self.bodies[number](images)
            return loss(features, self.heads[number](features), labels)

        sgd = torch.optim.SGD(self.parameters(number), 0.05)
        self.clients[number].train(round_, batch_loss, sgd, epochs=2)

    def labels(self, number: int) -> Tensor:
        """Return the labels of a client's images."""
        return self.clients[number].labels

    def mean_head(self) -> nn.Linear:
        """Return the mean of the clients' heads by samples."""
        mean, sizes = nn.Linear(16, 10), {k: len(self.labels(k)) for k in range(3)}
        set_parameters(mean.parameters(), weighted_mean(dict(enumerate(self.heads)), sizes))
        return mean

    def assert_same(self, done: Any) -> None:
        """Assert that the clients' weights are those that the run ended with."""
        for number in range(3):
            assert_close(self.parameters(number), done.models[number], 1e-5)


def mean_by_class(uplinks: Mapping[int, Any], classes: int, how: str) -> tuple[Tensor, Tensor]:
    """The means [C, d] that a server takes of uploads, Eq. (6), and the classes with one [C]."""
    setting = SimpleNamespace(num_classes=classes)
    method = SimpleNamespace(setting=setting, proto_agg=how, weight=lambda upload: 1.0)
    return class_average(total_of(uplinks, partial(combined_rows, method))["vectors"])
