"""Plug-ins for tests, one of each kind, and runs of them in this process."""

from __future__ import annotations

from pathlib import Path

from fedray.run import main
from fedray.storage.run import Run
from fedray.storage.run_folder import RunFolder

SMALL = ["rounds=1", "local_epochs=1", "data.samples=200", "data.clients=3", "data.partition=iid"]

METHOD = '''
"""FedAvg whose loss is scaled."""
from __future__ import annotations

from fedray.plugin import FedAvg, LossWeight, method


@method("scaled", "Scaled", "-")
class Scaled(FedAvg):
    """FedAvg with a scaled loss."""

    scale: LossWeight = 1.0
    """What the loss is multiplied with."""

    def loss(self, output, batch, local):
        return self.scale * super().loss(output, batch, local)
'''

PAYLOAD = '''
from __future__ import annotations

import torch
from pydantic import Field

from fedray.plugin import LocalTraining, method, sent


@method("sends", "Sends", "-")
class Sends(LocalTraining):
    """Uploads a payload of its own type."""

    up = {"drawn": sent("statistics", "numbers", axes="k")}

    size: int = Field(3, ge=1, le=1_000_000)

    def finish(self, local, trained):
        _, kept = super().finish(local, trained)
        return {"drawn": torch.full((self.size,), 2.0)}, kept

    def server_update(self, state, uplinks, server):
        if any(each.fields.place != self.up.place for each in uplinks.values()):
            raise TypeError("another payload of the same name")
        return {"sum": sum(each.drawn.sum() for each in uplinks.values())}
'''

MODEL = '''
import torch
from torch import nn

from fedray.plugin import architecture


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.token = nn.Parameter(torch.randn(width))
        self.layers = nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.LayerNorm(width))

    def forward(self, images):
        return self.layers(images) + self.token


@architecture("net")
def net(channels, image_size):
    """A network with layers that no rule knows."""
    made = Net(24)
    made(torch.zeros(1, channels, image_size, image_size))
    return made
'''

DATA = '''
"""A source, a partition, an augmentation, a metric."""
from pathlib import Path

import numpy as np

from fedray.plugin import (
    Augmentation,
    Listing,
    Measure,
    Metric,
    Partition,
    Row,
    Source,
    augmentations,
    metrics,
    partitions,
    sources,
)


@sources.add
class Tones(Source):
    """Dark and bright squares."""

    name = "tones"

    def find_root(self, root, *, download):
        return Path.home()

    def files(self, root, options):
        return []

    def listing(self, root, options):
        tones = [np.full((8, 8), tone, np.uint8) for tone in (0, 200)]
        return Listing(("dark", "bright"), [Row(tones[i % 2], i % 2) for i in range(200)])


@partitions.add
class Turns(Partition):
    """Images in turn."""

    name = "turns"
    paper = "-"

    def split(self, annotations, clients, rng):
        n = len(annotations.labels)
        return [np.arange(client, n, clients) for client in range(clients)]


@augmentations.add
class Inverted(Augmentation):
    """Dark is bright."""

    name = "inverted"

    def __call__(self, images, generator):
        return 255 - images


@metrics.add
class Count(Measure):
    """How many clients were tested."""

    name = "count"
    metrics = (Metric("tested_clients"),)

    def compute(self, evaluated):
        return {"tested_clients": float(len(evaluated.tested))} if evaluated.tested else {}
'''


def write(folder: Path, **texts: str) -> list[str]:
    """Files NAME.py with these texts; returns the words that name them."""
    words = []
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        words += ["--plugin", str(folder / f"{name}.py")]
    return words


def run(out: Path, *words: str) -> Run:
    """A small serial run through the command."""
    given = [*words, *SMALL, "--executor", "serial", "--no-track", "--out", str(out)]
    assert main([word for word in given if word]) == 0
    return RunFolder(out).read()
