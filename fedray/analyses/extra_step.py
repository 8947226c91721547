"""A finished run's parts, checkpoint and test images, and one more step of its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fedray.checkpoint import Checkpoint, CheckpointStore
from fedray.config import load_experiment, read_mapping
from fedray.core import Algorithm, LocalContext, ServerState
from fedray.data import FederatedData
from fedray.errors import ClientError, Failure, UserError
from fedray.evaluation.protocols import HasGlobalModel
from fedray.models import Pixels
from fedray.records import RunFolder
from fedray.runtime.assembly import Assembly
from fedray.runtime.clients import ClientRuntime
from fedray.runtime.resume import check_same
from fedray.streams import Streams


def reopen(folder: Path) -> tuple[Assembly, Checkpoint]:
    """Return the parts of a run and its last checkpoint; sets PyTorch's threads to the run's.

    Raises:
        UserError: if the run has no checkpoint, or images, texts or weights are no longer those
            it saw.
    """
    of_run = RunFolder(folder)
    assembly = Assembly(load_experiment(read_mapping(of_run.config)))
    if of_run.has_result:
        check_same(of_run, of_run.read_head(), assembly)
    found = CheckpointStore(folder, assembly.identity).load()
    if found is None:
        raise UserError(f"{folder} has no checkpoint; run it again with checkpoint_every=1")
    torch.set_num_threads(assembly.experiment.threads)
    return assembly, found


def has_global_model(algorithm: Algorithm, state: ServerState) -> bool:
    """Return True if all clients predict with one model."""
    return isinstance(algorithm, HasGlobalModel) and algorithm.has_global_model(state)


@dataclass(frozen=True)
class Stepped:
    """A client after one more step. Its two models are one object with two sets of weights.

    Attributes:
        client: its id.
        before: loads the model that it started from.
        after: loads the model that local training has made of it.
    """

    client: int
    before: Callable[[], LocalContext]
    after: Callable[[], LocalContext]


def one_more_step(assembly: Assembly, found: Checkpoint, device: torch.device) -> Iterator[Stepped]:
    """Let every client take one more step of the method, and yield it; nothing of it is kept.

    Args:
        assembly: of a finished run.
        found: its last checkpoint.
        device: where steps run.

    Raises:
        ClientError: when a client's step fails.
    """
    algorithm, state = assembly.algorithm, found.snapshot.server
    round_ = found.snapshot.round + 1
    server = replace(assembly.server(device), round=round_)
    runtime, everyone = ClientRuntime(assembly, device), range(assembly.experiment.data.clients)
    sent = algorithm.downlink(state, everyone, server)
    common = has_global_model(algorithm, state)
    for client in everyone:
        payload = sent[client]
        down = payload if payload is None else assembly.gate.down(payload)[0]
        before = found.clients.get(client)
        reply, after = runtime.step("client_update", round_, client, before, down)
        if reply.failure is not None or after is None:
            failure = reply.failure or Failure("it has no state after the step")
            raise ClientError(client, round_, "client_update", failure)
        context = runtime.client(client, round_)
        before = before or algorithm.init_client(context)
        # Whoever starts from its own upload has the model that it has just trained.
        given = reply.uplink if common else down
        yield Stepped(
            client,
            partial(algorithm.begin, context, before, down),
            partial(algorithm.begin, context, after, given),
        )


def probe_images(data: FederatedData, count: int, streams: Streams, device: torch.device) -> Pixels:
    """Return at most `count` images of all clients' tests, the same for every model."""
    every = np.unique(np.concatenate(data.test))
    chosen = streams.numpy("cka").choice(every, size=min(count, len(every)), replace=False)
    stored = torch.from_numpy(data.images.images[np.sort(chosen)])
    return Pixels.of(stored.to(device))
