"""What reports need of a finished run besides its result: parts, checkpoint, test images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fedray.checkpoint import Checkpoint, CheckpointStore
from fedray.config import load_experiment, read_mapping
from fedray.data import FederatedData
from fedray.errors import UserError
from fedray.models import Pixels
from fedray.records import RunFolder
from fedray.runtime.assembly import Assembly
from fedray.streams import Streams


def reopen(folder: Path) -> tuple[Assembly, Checkpoint]:
    """The parts of a run and its last checkpoint; PyTorch gets the run's number of threads.

    Raises:
        UserError: when the run has no checkpoint, or the images are no longer those it saw.
    """
    assembly = Assembly(load_experiment(read_mapping(RunFolder(folder).config)))
    found = CheckpointStore(folder, assembly.identity).load()
    if found is None:
        raise UserError(f"{folder} has no checkpoint; run it again with checkpoint_every=1")
    torch.set_num_threads(assembly.experiment.threads)
    return assembly, found


def probe_images(data: FederatedData, count: int, streams: Streams, device: torch.device) -> Pixels:
    """At most `count` images of all clients' tests, the same for every model."""
    every = np.unique(np.concatenate(data.test))
    chosen = streams.numpy("cka").choice(every, size=min(count, len(every)), replace=False)
    stored = torch.from_numpy(data.images.images[np.sort(chosen)])
    return Pixels.of(stored.to(device))
