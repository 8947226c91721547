"""A worker: a long-lived actor that runs the steps of any number of virtual clients."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import ray
import torch

from fedray.config import Experiment
from fedray.core import ClientState, Part, Payload, TreeSum
from fedray.federation import ScoreReply
from fedray.plugins import use
from fedray.runtime.assembly import Assembly
from fedray.runtime.clients import ClientRuntime
from fedray.runtime.devices import free_memory, limit_memory, pick_device
from fedray.runtime.memory import keep_freed_memory, peak_rss
from fedray.runtime.notices import Notices
from fedray.runtime.packing import accept_mapped_arrays, pack, sealed, unpack
from fedray.states import LARGE, Place, read_tree, state_size, write_tree

MOST_RUNTIMES = 64
"""Experiments that a worker is ready for at a time; a trial has one per seed."""


class Share(NamedTuple):
    """What a worker gets in one call, as one value: every argument more costs Ray time.

    Attributes:
        experiment: the experiment as JSON.
        round: the round.
        clients: the ids.
        payloads: for each client, the position of its download in `distinct`, or -1.
        distinct: the packed downloads, or references to them.
        states: of the clients that have one, packed or its place; those that are arguments of the
            call are left out.
        folder: the folder of large states, for a worker on the same node; "" for others.
        name: what new files there are called, before a number.
        positions: of the clients in the sum that the uploads are added to; () for none.
        leaves: how many positions that sum has.
        apart: whether each client's answer is an object of its own, as large ones are.
    """

    experiment: str
    round: int
    clients: Sequence[int]
    payloads: Sequence[int]
    distinct: Sequence[Any]
    states: Mapping[int, Any]
    folder: str = ""
    name: str = ""
    positions: Sequence[int] = ()
    leaves: int = 0
    apart: bool = False

    def total(self) -> TreeSum | None:
        """What the clients' uploads are added to, where they are summed."""
        if not self.positions:
            return None
        return TreeSum(dict(zip(self.clients, self.positions, strict=True)), self.leaves)

    def inputs(
        self, referenced: Sequence[Any]
    ) -> Iterator[tuple[int, ClientState | None, Payload | None]]:
        """Yield each client with its state and its download.

        Args:
            referenced: the packed states that `states` leaves out, in the order of `clients`.
        """
        downs = [unpack(ray.get(d) if isinstance(d, ray.ObjectRef) else d) for d in self.distinct]
        rest = iter(referenced)
        for client, which in zip(self.clients, self.payloads, strict=True):
            state = self.states[client] if client in self.states else next(rest)
            if isinstance(state, Place):
                state = ClientState(**read_tree(Path(self.folder) / state.file))
            yield client, unpack(state), downs[which] if which >= 0 else None


class Answer(NamedTuple):
    """What a worker says of one client's step.

    Attributes:
        reply: the packed reply.
        seconds: how long the step took.
        state: the next state, sealed if it is small (what is kept of a message holds on to all of
            it), packed or its place; None when it is as it was.
    """

    reply: Any
    seconds: float
    state: Any


class Answers(NamedTuple):
    """What a worker says of a call.

    Attributes:
        clients: an answer per client, sealed if it is small and all of them are not.
        parts: what their uploads add up to, packed, where they are summed.
    """

    clients: Sequence[Any]
    parts: Sequence[Part] = ()


class Worker:
    """An actor that runs client steps of any experiment it is handed.

    Args:
        threads: threads of one client step.
        gpus: this worker's GPU share, in GPUs.
    """

    def __init__(self, threads: int, gpus: float) -> None:
        accept_mapped_arrays()
        torch.set_num_threads(threads)
        keep_freed_memory()
        self._device = pick_device(gpus)
        limit_memory(self._device, gpus)
        self._notices = Notices()
        self._runtimes: dict[str, ClientRuntime] = {}  # the least recently used first

    def warm_up(self, experiment: str) -> int:
        """Get ready for calls of an experiment; returns the process id."""
        _ = self._runtime(experiment).assembly.data
        return os.getpid()

    def look_at(self, experiment: str) -> None:
        """Read an experiment's data before its first call; whatever is wrong the caller finds too.

        Args:
            experiment: as it was asked for, before it was pinned to its images.
        """
        with suppress(Exception):
            assembly = Assembly(Experiment.model_validate_json(experiment))
            _ = assembly.data, assembly.algorithm, assembly.models

    def forget(self, experiment: str) -> None:
        """Drop what was made for an experiment that is over; what runs share stays."""
        if self._runtimes.pop(experiment, None) is not None:
            free_memory(self._device)

    def step(self, name: str, share: Share, *referenced: Any) -> Any:
        """Run one step for several clients.

        Args:
            name: the step.
            share: the clients with what they need.
            referenced: the packed states that `share` leaves out.

        Returns:
            `Answers`, or an answer per client; sealed, if small. Large states are written to files
            if `share` names their folder.
        """
        runtime, total = self._runtime(share.experiment), share.total()
        answers: list[Answer] = []
        for client, state, down in share.inputs(referenced):
            started = time.perf_counter()
            reply, new = runtime.step(name, share.round, client, state, down, total)
            after = None if new is state or new is None else _kept(new, share, len(answers))
            seconds = time.perf_counter() - started
            answers.append(Answer(pack(reply), seconds, after))
        if share.apart:
            return [sealed(answer) for answer in answers]
        parts = [] if total is None else [pack(part) for part in total.parts()]
        whole = sealed(Answers(answers, parts))
        return whole if isinstance(whole, bytes) else Answers([*map(sealed, answers)], parts)

    def test(self, name: str, share: Share, *referenced: Any) -> list[ScoreReply]:
        """Run one test for several clients; arguments as of `step`."""
        runtime = self._runtime(share.experiment)
        return [
            runtime.test(name, share.round, client, state, down)
            for client, state, down in share.inputs(referenced)
        ]

    def node(self) -> str:
        """The id of the node that this process is on."""
        return str(ray.get_runtime_context().get_node_id())

    def peak_rss(self) -> int:
        """The most memory that this process ever held, in bytes."""
        return peak_rss()

    def notices(self) -> list[str]:
        """What this process has said since it was asked last."""
        return self._notices.take()

    def _runtime(self, experiment: str) -> ClientRuntime:
        """Return what runs an experiment's steps."""
        runtime = self._runtimes.pop(experiment, None)
        if runtime is not None:
            use(runtime.assembly.experiment.plugins)
        else:
            assembly = Assembly(Experiment.model_validate_json(experiment))
            runtime = ClientRuntime(assembly, self._device)
        self._runtimes[experiment] = runtime
        while len(self._runtimes) > MOST_RUNTIMES:
            del self._runtimes[next(iter(self._runtimes))]
        return runtime


def _kept(state: ClientState, share: Share, number: int) -> Any:
    """Return a new state as it is answered: its place, or, small or of another node, itself."""
    if state_size(state) < LARGE:
        return sealed(pack(state))
    if not share.folder:
        return pack(state)
    return write_tree(Path(share.folder) / f"{share.name}-{number}.safetensors", vars(state))
