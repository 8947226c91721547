"""Reopen a finished run, and let its clients take one more step without changing the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedray.base.errors import UserError
from fedray.base.streams import Streams
from fedray.config import load_experiment
from fedray.core import LocalContext
from fedray.data import FederatedData
from fedray.evaluation.protocols import has_global_model
from fedray.models import Pixels
from fedray.runtime.assembly import Assembly
from fedray.runtime.groups import GroupRunner, Member
from fedray.runtime.resume import check_same
from fedray.storage.run_folder import RunFolder
from fedray.storage.states import Checkpoint, StateStore


def reopen(folder: Path) -> tuple[Assembly, Checkpoint]:
    """Return the parts of a run and its last checkpoint; set PyTorch's threads to the run's.

    Raises:
        UserError: if the run has no checkpoint, or its images, texts or weights have changed.
    """
    of_run = RunFolder(folder)
    assembly = Assembly(load_experiment(of_run.experiment()))
    check_same(of_run, assembly.experiment, assembly)
    checkpoint = StateStore(of_run.states).load()
    if checkpoint is None:
        raise UserError(f"{folder} has no checkpoint; run it again with checkpoint_every=1")
    torch.set_num_threads(assembly.experiment.threads)
    return assembly, checkpoint


@dataclass(frozen=True)
class SteppedClient:
    """A client after one more step. Both models share one object, so load them one after another.

    Attributes:
        client: the client's id.
        before: loads the model before local training.
        after: loads the model after local training.
    """

    client: int
    before: Callable[[], LocalContext]
    after: Callable[[], LocalContext]


def one_more_step(
    assembly: Assembly, checkpoint: Checkpoint, device: torch.device
) -> Iterator[SteppedClient]:
    """Let every client take one more step of the method, and yield it; the run is not changed.

    Args:
        assembly: the parts of a finished run.
        checkpoint: its last checkpoint.
        device: the device of the steps.

    Raises:
        ClientError: if a client's step fails.
    """
    algorithm, state = assembly.algorithm, checkpoint.snapshot.server
    round_ = checkpoint.snapshot.round + 1
    server = replace(assembly.server(device), round=round_)
    runtime, everyone = GroupRunner(assembly, device), range(assembly.experiment.data.clients)
    downlinks = algorithm.downlink(state, everyone, server)
    common = has_global_model(algorithm, state)
    for client in everyone:
        payload = downlinks[client]
        down = payload if payload is None else assembly.gate.down(payload)[0]
        member = Member(client, checkpoint.clients.get(client), down)
        ((reply, after),) = runtime.run_group("client_update", round_, [member])
        context = runtime.client(client, round_)
        before = member.state or algorithm.init_client(context)
        after = after or before
        # With one global model, the trained model is the one that begins from the upload.
        after_down = reply.uplink if common else down
        yield SteppedClient(
            client,
            partial(algorithm.begin, context, before, down),
            partial(algorithm.begin, context, after, after_down),
        )


def probe_images(data: FederatedData, count: int, streams: Streams, device: torch.device) -> Pixels:
    """Return at most `count` test images of all clients, the same for every model."""
    indices = np.unique(np.concatenate(data.test))
    chosen = streams.numpy("cka").choice(indices, size=min(count, len(indices)), replace=False)
    stored = torch.from_numpy(data.images.images[np.sort(chosen)])
    return Pixels.of(stored.to(device))
