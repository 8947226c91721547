"""Ray execution: client actors, called workers, each play any number of clients.

A client is an id, its images and a state. A worker gets its clients of an exchange in one call,
which Ray repeats if the worker is lost: steps are pure functions. States are files in a folder that
all nodes see; a worker writes the next states of its clients as one file, whose name it returns.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from platform import node
from typing import Any, Literal, NamedTuple, TypeAlias

import ray
import torch
from ray.util import register_serializer
from torch import Tensor

from fedray.config import received_experiment
from fedray.core import ClientState, Downlinks, Sums, Total
from fedray.errors import UserError
from fedray.evaluation.answers import Counts
from fedray.federation import Reply, Task
from fedray.plugins import use
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import device_of_this_process, free_memory, limit_memory, pick_device
from fedray.runtime.groups import GroupRunner, Member
from fedray.runtime.memory import keep_freed_memory, peak_device_memory
from fedray.runtime.pool import WorkerPool
from fedray.runtime.shares import (
    by_client,
    groups_of_step,
    groups_of_test,
    shares_of_blocks,
    shares_of_groups,
)
from fedray.storage.state_files import StateFile, Written, write_states
from fedray.storage.states import StateStore, new_path
from fedray.trees import aligned

CLIENTS_PER_CALL, LARGE_CLIENTS_PER_CALL = 32, 8
"""Maximum numbers of clients per call, because a worker holds their results until it answers. The
second one applies to large downloads, whose uploads are usually large, too."""
CALL = 0.01
"""Seconds that a call of two workers and their answers take, by measurement on two cores."""
INLINED = 100_000
"""Largest download, in bytes, that travels within the call, as Ray sends such arguments."""

Groups: TypeAlias = Sequence[Sequence[int]]
"""Clients in groups that are tested or trained together."""


class RayExecutor:
    """Runs client steps on a pool of workers (`federation.Executor`)."""

    def __init__(self, assembly: Assembly, pool: WorkerPool) -> None:
        register_tensors()
        self._assembly = assembly
        self._experiment = assembly.experiment.model_dump_json(by_alias=True)
        self._pool = pool
        self.states = StateStore()
        self.device_bytes = 0
        self._sizes = [(first, [*map(len, d.train)]) for first, d in assembly.data.phases]
        self._architectures = assembly.models.architectures
        self._rate = dict.fromkeys(self._architectures, 1e-6)  # seconds per image

    def run(
        self, task: Task, name: str, round_: int, down: Downlinks
    ) -> tuple[dict[int, Reply], Total]:
        """Run a step for every key of `down`; see `federation.Executor`."""
        replies, blocks = dict[int, Reply](), dict[int, tuple[Total, int]]()
        groups = groups_of_step(self._assembly, name, down)
        for share, ref in self._send(task, name, round_, groups, down):
            answers, written, total, used = self._pool.answer(ref)
            self.device_bytes = max(self.device_bytes, used)
            clients = [*chain.from_iterable(share)]
            answered = dict(zip(clients, answers, strict=True))
            if written is not None:
                self.states.add(written)
            self._update_rates(round_, answered)
            replies |= answered
            blocks[clients[0]] = total, len(clients)
        sums = Sums(len(down))
        if task == "sum":
            for _, (total, size) in sorted(blocks.items()):
                sums.add(total, size)
        return dict(sorted(replies.items())), sums.total

    def test(self, name: str, round_: int, down: Downlinks) -> Counts:
        """Run a test for every key of `down`; see `federation.Executor`.

        Tests that take less time than a call of the workers run in this process.
        """
        groups = groups_of_test(self._assembly, name, round_, down)
        if name == "evaluate" and self._is_quick(round_, groups):
            firsts = (Member(g[0], self.states.get(g[0]), down[g[0]]) for g in groups)
            return self._runtime.test(name, round_, groups, firsts)
        clients, parts = list[Sequence[int]](), list[Counts]()
        for share, ref in self._send("test", name, round_, groups, down):
            counts, used = self._pool.answer(ref)
            self.device_bytes = max(self.device_bytes, used)
            clients.append(sorted(chain.from_iterable(share)))
            parts.append(counts)
        return by_client(clients, parts)

    @cached_property
    def _runtime(self) -> GroupRunner:
        return GroupRunner(self._assembly, torch.device("cpu"))

    def _is_quick(self, round_: int, groups: Sequence[Sequence[int]]) -> bool:
        """Return True if one process makes a test sooner than a call of the workers takes.

        A forward pass takes a third of a training step. The workers' numbers are those of this
        process if they have no accelerator either.
        """
        e = self._assembly.experiment
        if e.gpus or self._assembly.algorithm.requires.prompts:
            return False
        data = self._assembly.data.at(round_)
        shared = sum(len(one.index) for one in data.eval_sets.values())
        seconds = sum(
            (shared + sum(len(data.test[client]) for client in group))
            * self._rate[self._architectures[group[0]]]
            for group in groups
        )
        return seconds / (3 * max(1, e.local_epochs)) < CALL

    def close(self) -> None:
        """Free the states; the caller closes the pool."""
        self.states.close()

    def _send(
        self, task: Task | Literal["test"], name: str, round_: int, groups: Groups, down: Downlinks
    ) -> list[tuple[Groups, Any]]:
        """Divide clients among the workers, and call these; return groups and answers."""
        workers, images = self._pool.ready(), self._images(round_)
        downloads, positions = _put_once(down)
        places = self.states.places()  # now, while no worker writes a file
        clients = chain.from_iterable(groups)
        seconds = {c: images[c] * self._rate[self._architectures[c]] for c in clients}
        is_large = any(isinstance(download, ray.ObjectRef) for download in downloads)
        most = LARGE_CLIENTS_PER_CALL if is_large and task != "sum" else CLIENTS_PER_CALL
        size = max(map(len, groups))
        shares: list[list[Any]]
        if task == "sum":
            blocks = shares_of_blocks([*down], seconds, len(workers), most, size)
            shares = [[self._divide(name, down, block) for block in share] for share in blocks]
        else:
            most = most if task == "test" else max(1, most // size)
            shares = shares_of_groups(groups, seconds, len(workers), most)
        senders, calls = slice(1) if task == "test" else slice(None), []
        of = self._experiment, self._assembly.identity, round_
        to = str(self.states.folder), self.states.number
        turns = (zip(workers, turn, strict=True) for turn in zip_longest(*shares))
        for worker, share in chain.from_iterable(turns):
            if share is None:
                continue
            sent = [client for group in share for client in group[senders]]
            members = [(client, places.get(client), positions[client]) for client in sent]
            used = {position: downloads[position] for _, _, position in members if position >= 0}
            argument = Share(*of, share, members, used, *to)
            call = worker.test.remote if task == "test" else partial(worker.run.remote, task)
            calls.append((share, call(name, argument)))
        return calls

    def _divide(self, name: str, down: Downlinks, block: Sequence[int]) -> Groups:
        """Return the groups of a block whose uploads are summed."""
        sent = {client: down[client] for client in block}
        return groups_of_step(self._assembly, name, sent, at_once=True)

    def _images(self, round_: int) -> Sequence[int]:
        return [sizes for first, sizes in self._sizes if first <= round_][-1]

    def _update_rates(self, round_: int, replies: Mapping[int, Reply]) -> None:
        """Move each architecture's seconds per image halfway to the mean of a share.

        Rates are not kept per client: one client's time is mostly noise, and equal clients must
        weigh the same to be divided evenly.
        """
        images = self._images(round_)
        for architecture in {self._architectures[client] for client in replies}:
            clients = [client for client in replies if self._architectures[client] == architecture]
            seconds = sum(replies[client].seconds for client in clients)
            rate = seconds / max(1, sum(images[client] for client in clients))
            self._rate[architecture] = (self._rate[architecture] + rate) / 2


def _put_once(down: Downlinks) -> tuple[list[Any], dict[int, int]]:
    """Return the distinct downloads, large ones as references, and each client's position."""
    index: dict[int, int] = {}
    distinct: list[Any] = []
    positions = {}
    for client, payload in down.items():
        if payload is None:
            positions[client] = -1
            continue
        if id(payload) not in index:
            index[id(payload)] = len(distinct)
            size = sum(block.nbytes for block in payload.blocks())
            distinct.append(payload if size <= INLINED else ray.put(payload))
        positions[client] = index[id(payload)]
    return distinct, positions


class Share(NamedTuple):
    """The argument of a call to a worker; a single value, because each argument costs Ray time.

    Attributes:
        experiment: the experiment as JSON.
        identity: that of the server's `Assembly`.
        round: the round.
        groups: the clients.
        members: the id of each client whose state and download are sent, the name of the file with
            its state, if any, and the position of its download, or -1. For a test, the first
            client of each group, whose model the group shares; otherwise all clients.
        downloads: the distinct downloads of these clients by position; large ones are references.
        folder: the folder of the states, also of the next ones.
        number: the number of the commit that will contain the next states.
    """

    experiment: str
    identity: str
    round: int
    groups: Groups
    members: Sequence[tuple[int, str | None, int]]
    downloads: Mapping[int, Any]
    folder: str
    number: int

    def inputs(self) -> Iterator[Member]:
        """Yield each client with its state and its download."""
        downloads = {
            position: ray.get(down) if isinstance(down, ray.ObjectRef) else down
            for position, down in self.downloads.items()
        }
        names = {name for _, name, _ in self.members if name is not None}
        files = {name: StateFile(Path(self.folder) / name) for name in names}
        for client, name, position in self.members:
            state = None if name is None else ClientState(**files[name].read(client))
            yield Member(client, state, downloads.get(position))

    def write(self, states: Iterable[tuple[Member, ClientState | None]]) -> Written | None:
        """Write the next states of clients, as far as there are new ones."""
        new = [(m.client, s) for m, s in states if s is not None and s is not m.state]
        trees = {client: vars(state) for client, state in new}
        return write_states(new_path(Path(self.folder), self.number), trees) if trees else None


class Worker:
    """A client actor: plays one or more clients of any experiment, with its share of CPU and GPU.

    Args:
        threads: torch's threads.
        gpus: the worker's share of the accelerators of its node.
        number: its number in the pool, for messages.
    """

    def __init__(self, threads: int, gpus: float, number: int = 0) -> None:
        self._name, self._gpus = f"worker {number}", gpus
        register_tensors()
        torch.set_num_threads(threads)
        keep_freed_memory()
        self._device = pick_device(gpus)
        limit_memory(self._device, gpus)
        self._of: tuple[str, GroupRunner] | None = None

    def begin(self, experiment: str) -> None:
        """Load an experiment's data and models.

        Raises:
            UserError: if torch does not find the accelerator of which the worker has a share, or
                the data is missing.
        """
        device_of_this_process(self._gpus, self._name)
        assembly = self._runner(experiment).assembly
        _ = assembly.data, assembly.algorithm, assembly.models

    def run(self, task: Task, name: str, share: Share) -> Any:
        """Run a step of several clients.

        Returns:
            The replies, group after group, the file with the next states, the `Total` of the
            uploads if the task is "sum" and the replies have none, and the most memory used on the
            accelerator.
        """
        runner, inputs = self._runner(share.experiment, share.identity), share.inputs()
        sums = Sums(len(share.members)) if task == "sum" else None
        replies, states = list[Reply](), list[tuple[Member, ClientState | None]]()
        for group in share.groups:
            members = [*islice(inputs, len(group))]
            stepped = runner.run_group(name, share.round, members, sums)
            replies += [reply for reply, _ in stepped]
            states += zip(members, [state for _, state in stepped], strict=True)
        total = Total() if sums is None else sums.total
        used = peak_device_memory(self._device)
        return replies, share.write(states), total, used

    def test(self, name: str, share: Share) -> tuple[Counts, int]:
        """Run a test of several clients; return its counts, and memory as `run` does."""
        runner = self._runner(share.experiment, share.identity)
        counts = runner.test(name, share.round, share.groups, share.inputs())
        return counts, peak_device_memory(self._device)

    def _runner(self, experiment: str, identity: str = "") -> GroupRunner:
        """Return the runner of an experiment; that of an earlier one is freed.

        Raises:
            UserError: if this node reads other images, labels or files than the server.
        """
        of, self._of = self._of, None
        if of is None or of[0] != experiment or use(of[1].assembly.experiment.plugins):
            of = None
            free_memory(self._device)
            of = experiment, GroupRunner(Assembly(received_experiment(experiment)), self._device)
        self._of = of
        if identity not in ("", of[1].assembly.identity):
            raise UserError(
                f"{node()} reads other images, labels or files of the experiment than the server; "
                "replace them by the copies that the other nodes read"
            )
        return of[1]


def register_tensors() -> None:
    """Let this process (driver, server or worker) send and receive tensors.

    A received tensor may be a view of read-only shared memory, which Ray keeps as long as the view
    lives. Steps only read it, so torch's warning about read-only arrays is silenced.
    """
    register_serializer(Tensor, serializer=_array, deserializer=_tensor)
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def _array(tensor: Tensor) -> Any:
    return tensor.numpy()


def _tensor(array: Any) -> Tensor:
    return aligned(torch.from_numpy(array))
