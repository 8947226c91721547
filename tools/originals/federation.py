"""The tiny federation that fedray and an original both run, and fedray's run of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.config import parse_assignments, with_read_plugins
from fedray.core.training import batch_sizes, batches_of
from fedray.data import FederatedData, ImageSet, ReadOptions, load_images
from fedray.data.public import PublicSet
from fedray.federation import Federation
from fedray.runtime.assembly import Assembly
from fedray.runtime.groups import GroupRunner
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor

CPU = torch.device("cpu")
ROUNDS, BATCH, EPOCHS, LR = 3, 16, 2, 0.2
TRAIN, TEST = (32, 48, 64, 16), 25
"""Training images of each client, multiples of the batch: loaders that drop the rest drop none."""
PUBLIC = 64
"""Images that belong to no client, for methods that learn from public images."""
CLASSES, LACKING = 10, 2
"""Client i lacks the classes 2i and 2i + 1, so that any two clients have all classes."""
PARTICIPATION = {"full": 1.0, "half": 0.5}
EXPERIMENT: dict[str, Any] = {
    "rounds": ROUNDS,
    "local_epochs": EPOCHS,
    "batch_size": BATCH,
    "lr": LR,
    "data": {"source": "digits", "clients": len(TRAIN)},
    "model": {"group": "smooth_cnn", "feature_dim": 16},
    "report": {"select": "test"},
    "plugins": [str(Path(__file__).with_name("smooth.py"))],
}

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class State:
    """The clients after a round.

    Attributes:
        models: the tensors of each client's tested model, by name.
        accuracies: of the tested models on the clients' own test images, by client.
    """

    models: Sequence[Tensors]
    accuracies: Sequence[float]


@dataclass(frozen=True)
class Method:
    """A method that both have.

    Attributes:
        run: runs the original from initial weights; returns a state per round, round 0 first.
        switches: assignments to fedray's experiment under which both are the same.
        values: assignments of values that the driver gives to the original, too.
        changes: what the driver changes in the original, as phrases.
    """

    run: Callable[[Run, Sequence[Tensors]], list[State]]
    switches: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


@dataclass
class Run:
    """fedray's run of a method, and the draws that an original needs to repeat it.

    Attributes:
        states: a state per round, round 0 first.
        participants: the clients of each round; of round 0 none.
        round: the round that the original is in.
    """

    assembly: Assembly
    states: list[State] = field(default_factory=list)
    participants: list[Sequence[int]] = field(default_factory=list)
    round: int = 0

    def initial(self) -> list[Tensors]:
        """Return each client's initial weights."""
        models = self.assembly.models
        return [models.initial(name, k) for k, name in enumerate(models.architectures)]

    def images(self, index: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return images [n, channels, H, W] as models see them, and their labels [n]."""
        images = self.assembly.data.images
        pixels = torch.from_numpy(images.images[index]).float() * (2 / 255) - 1
        return pixels, torch.from_numpy(images.labels[index])

    def random(self, purpose: str, client: int = 0) -> torch.Generator:
        """Return fedray's random stream of a purpose in this round."""
        return self.assembly.streams.torch(purpose, round_=self.round, client=client)

    def orders(self, client: int, random: torch.Generator) -> Sequence[Tensor]:
        """Draw the positions of a client's images in each batch of one epoch."""
        count, config = len(self.assembly.data.train[client]), self.assembly.setting.training
        order = torch.randperm(count, generator=random) if config.shuffle else torch.arange(count)
        return batches_of(order, batch_sizes(count, config))


@cache
def federated_digits(image_size: int | None) -> FederatedData:
    """Return the clients' images of handwritten digits: of unlike numbers and classes."""
    images: ImageSet = load_images("digits", None, ReadOptions(image_size))
    random, labels = np.random.default_rng(0), np.asarray(images.labels)
    free = random.permutation(len(labels))
    parts: list[np.ndarray] = []
    for client in range(len(TRAIN)):
        lacking = range(LACKING * client, LACKING * (client + 1))
        fitting = free[~np.isin(labels[free], lacking)]
        first = np.unique(labels[fitting], return_index=True)[1]  # one image of each class
        taken = np.concatenate([fitting[first], np.delete(fitting, first)])[: TRAIN[client] + TEST]
        free = free[~np.isin(free, taken)]
        parts.append(taken)
    train = tuple(np.sort(part[:count]) for part, count in zip(parts, TRAIN, strict=True))
    test = tuple(np.sort(part[count:]) for part, count in zip(parts, TRAIN, strict=True))
    public = PublicSet(images, np.sort(free[:PUBLIC]), is_labelled=False)
    return FederatedData(images, train, test, public=public)


def run_fedray(name: str, switches: Sequence[str], participation: str) -> Run:
    """Run a method of fedray on the tiny federation.

    Args:
        name: the method.
        switches: assignments to the experiment.
        participation: a key of `PARTICIPATION`.
    """
    changes = {"algorithm.name": name, "participation": PARTICIPATION[participation]}
    pairs = [*changes.items(), *parse_assignments(switches)]
    experiment = from_tree(with_read_plugins(EXPERIMENT, pairs), pairs)
    assembly = Assembly(experiment, federated_digits(experiment.data.image_size))
    executor, runtime = SerialExecutor(assembly, CPU), GroupRunner(assembly, CPU)
    algorithm, server = assembly.algorithm, assembly.server(CPU)
    federation = Federation(algorithm, executor, assembly.gate, assembly.plan, server)
    run = Run(assembly)
    for done in federation.rounds():
        models = []
        for sent in federation.sent():
            for number, down in sorted(sent.items()):
                client = runtime.client(number, 0)
                state = executor.states.get(number) or algorithm.init_client(client)
                models.append(client.save(algorithm.begin(client, state, down).model))
        accuracies = [done.per_client[number] for number in range(len(TRAIN))]
        run.states.append(State(models, accuracies))
        run.participants.append(done.participants)
    return run


def moved(weights: Sequence[Tensors], by: float = 1e-7) -> list[Tensors]:
    """Return weights that are multiplied by 1 + `by` times noise; equal ones move alike."""

    def move(tensors: Tensors) -> Tensors:
        random = torch.Generator().manual_seed(0)
        return {
            name: value * (1 + by * torch.randn(value.shape, generator=random))
            if value.is_floating_point()
            else value
            for name, value in tensors.items()
        }

    return [move(tensors) for tensors in weights]


def greatest_difference(ours: State, theirs: State) -> float:
    """Return the greatest absolute difference of the models' tensors.

    Raises:
        ValueError: if the names or shapes of a client's tensors differ.
    """
    differences = [0.0]
    for mine, other in zip(ours.models, theirs.models, strict=True):
        shapes = [{name: t.shape for name, t in model.items()} for model in (mine, other)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"tensors differ: {shapes}")
        for name, value in mine.items():
            differences.append(float((value.double() - other[name].double()).abs().max()))
    return float(np.max(differences))  # NaN if one is NaN, unlike Python's max


def is_checkout_of(folder: Path, marks: Sequence[str]) -> bool:
    """Return True if a folder has all these files."""
    return all((folder / mark).is_file() for mark in marks)
