"""The worker: a long-lived actor that runs the steps of any number of virtual clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import ray
import torch

from fedray.core import ClientState, StateTree, total_over
from fedray.federation import Reply
from fedray.plugins import use
from fedray.runtime.assembly import Assembly
from fedray.runtime.clients import ClientRuntime, Member
from fedray.runtime.devices import (
    device_of_this_process,
    free_memory,
    limit_memory,
    pick_device,
)
from fedray.runtime.memory import keep_freed_memory
from fedray.runtime.messages import from_message, register_tensors, to_message
from fedray.runtime.printing import Output, Text, unpack_experiment
from fedray.runtime.stacked import client_runtime
from fedray.states import LARGE, Place, read_tree, state_size, write_tree

MOST_RUNTIMES = 64
"""Experiments whose objects a worker caches; a trial has one experiment per seed."""


class Share(NamedTuple):
    """The argument of a call to a worker; a single value, because each argument costs Ray time.

    Attributes:
        experiment: the experiment as JSON.
        round: the round.
        groups: the clients, in groups that are tested or trained together.
        clients: the clients whose state and download are sent. For a test, the first client of each
            group, whose model the group shares; otherwise all clients.
        positions: for each of `clients`, the key of its download in `downloads`; without a
            download, a key that is not there.
        downloads: the distinct downloads of `clients` only, as messages or as references to objects
            in Ray's store.
        states: the states of those `clients` that have one, as messages, references, or the places
            of their files.
        folder: the folder of the states' files, for a worker on the same node; "" for others.
        name: the first part of the names of new files there; a number follows.
    """

    experiment: str
    round: int
    groups: Sequence[Sequence[int]]
    clients: Sequence[int]
    positions: Sequence[int]
    downloads: Mapping[int, Any]
    states: Mapping[int, Any]
    folder: str = ""
    name: str = ""

    def inputs(self) -> Iterator[Member]:
        """Yield each of `clients` with its state and its download."""
        downloads = {position: _unpack(down) for position, down in self.downloads.items()}
        for client, position in zip(self.clients, self.positions, strict=True):
            state = self.states.get(client)
            if isinstance(state, Place):
                state = ClientState(**read_tree(Path(self.folder) / state.file))
            yield Member(client, _unpack(state), downloads.get(position))


def _unpack(value: Any) -> Any:
    return from_message(ray.get(value) if isinstance(value, ray.ObjectRef) else value)


def _with_texts(call: Callable[..., Any]) -> Callable[..., tuple[Any, list[Text]]]:
    """Return a worker's call whose answer, or error, has the process's texts since the last one."""

    @wraps(call)
    def answer(self: Worker, name: str, share: Share) -> tuple[Any, list[Text]]:
        try:
            return call(self, name, share), self._output.take()
        except Exception as error:
            error.__dict__["texts"] = self._output.take()
            raise

    return answer


class Worker:
    """An actor that runs client steps of any experiment.

    `step`, `total` and `test` return a pair: the value that they document, and the texts that the
    process has printed, logged or warned of (`runtime.printing`). An error has them as `texts`.

    Args:
        threads: torch's threads.
        gpus: the worker's share of the accelerators of its node.
        number: its number in the pool, for messages.
    """

    def __init__(self, threads: int, gpus: float, number: int = 0) -> None:
        self._name, self._gpus = f"worker {number}", gpus
        self._output = Output(self._name).__enter__()
        register_tensors()
        torch.set_num_threads(threads)
        keep_freed_memory()
        self._device = pick_device(gpus)
        limit_memory(self._device, gpus)
        self._runtimes: dict[str, ClientRuntime] = {}  # least recently used first

    def prefetch(self, experiment: str) -> None:
        """Load an experiment's data early; ignore errors, since the first real call raises them."""
        with suppress(Exception):
            assembly = Assembly(unpack_experiment(experiment))
            _ = assembly.data, assembly.algorithm, assembly.models

    def forget(self, experiment: str) -> None:
        """Free the objects of an experiment, except those that experiments share."""
        if self._runtimes.pop(experiment, None) is not None:
            free_memory(self._device)

    @_with_texts
    def step(self, name: str, share: Share) -> list[Any]:
        """Run one step for several clients.

        Returns:
            The reply and next state of each client, as a message if small. The state is None if it
            has not changed; otherwise a message, the place of its file or, if it is large and for
            another node, the state itself.
        """
        return [to_message(result) for result in self._results(name, share)]

    @_with_texts
    def total(self, name: str, share: Share) -> tuple[list[Any], Any]:
        """Run one step for several clients, and sum their uploads.

        Returns:
            The results of `step` without the uploads, and the uploads' `Total`, as a message if
            small.
        """
        runtime = self._runtime(share.experiment)
        stream, results = self._results(name, share, is_summed=True), list[Any]()

        def summand(_: int) -> StateTree | None:
            reply, state = next(stream)
            reply, summand = runtime.summed(reply)
            results.append(to_message((reply, state)))
            return summand

        total = total_over(share.clients, summand, in_place=True)
        return results, to_message(total)

    @_with_texts
    def test(self, name: str, share: Share) -> list[Reply]:
        """Run one test for several groups of clients; return the replies group after group."""
        runtime = self._runtime(share.experiment)
        return [
            reply
            for group, (_, state, down) in zip(share.groups, share.inputs(), strict=True)
            for reply in runtime.test_together(name, share.round, group, state, down)
        ]

    def node(self) -> str:
        """Return the id of this process's node; the call returns once the process has started.

        Raises:
            UserError: if the worker has a share of an accelerator that torch does not find.
        """
        device_of_this_process(self._gpus, self._name)
        return str(ray.get_runtime_context().get_node_id())

    def _results(
        self, name: str, share: Share, *, is_summed: bool = False
    ) -> Iterator[tuple[Reply, Any]]:
        runtime, inputs, number = self._runtime(share.experiment), share.inputs(), 0
        for group in share.groups:
            members = [*islice(inputs, len(group))]
            results = runtime.step_together(name, share.round, members, is_summed=is_summed)
            for member, (reply, new) in zip(members, results, strict=True):
                is_new = new is not None and new is not member.state
                yield (
                    reply,
                    _packed_state(cast(ClientState, new), share, number) if is_new else None,
                )
                number += 1

    def _runtime(self, experiment: str) -> ClientRuntime:
        runtime = self._runtimes.pop(experiment, None)
        if runtime is not None and use(runtime.assembly.experiment.plugins):
            self._runtimes.clear()  # they hold classes of earlier versions
            runtime = None
        if runtime is None:
            assembly = Assembly(unpack_experiment(experiment))
            runtime = client_runtime(assembly, self._device)
        self._runtimes[experiment] = runtime
        while len(self._runtimes) > MOST_RUNTIMES:
            del self._runtimes[next(iter(self._runtimes))]
        return runtime


def _packed_state(state: ClientState, share: Share, number: int) -> Any:
    """Return a new state in the form that `Worker.step` documents."""
    if state_size(state) < LARGE:
        return to_message(state)
    if not share.folder:
        return state
    return write_tree(Path(share.folder) / f"{share.name}-{number}.safetensors", vars(state))
