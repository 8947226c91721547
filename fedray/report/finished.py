"""What reports need of a finished run besides its result: parts, checkpoint, test images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedray.checkpoint import Checkpoint, CheckpointStore
from fedray.config import load_experiment, read_mapping
from fedray.data import FederatedData
from fedray.errors import UserError
from fedray.models.pixels import to_float
from fedray.runtime.assembly import Assembly
from fedray.streams import Streams


def reopen(folder: Path) -> tuple[Assembly, Checkpoint]:
    """The parts of a run and its last checkpoint; PyTorch gets the run's number of threads.

    Raises:
        UserError: when the run has no checkpoint.
    """
    experiment = load_experiment(read_mapping(folder / "config.yaml"))
    found = CheckpointStore(folder, experiment.identity()).load()
    if found is None:
        raise UserError(f"{folder} has no checkpoint; run it again with checkpoint_every=1")
    torch.set_num_threads(experiment.threads)
    return Assembly(experiment), found


def probe_images(data: FederatedData, count: int, streams: Streams) -> Tensor:
    """At most `count` images of all clients' tests, the same for every model [n, ch, H, W]."""
    every = np.unique(np.concatenate(data.test))
    drawn = streams.numpy("cka").choice(every, size=min(count, len(every)), replace=False)
    return to_float(torch.from_numpy(data.images.images[np.sort(drawn)]))
