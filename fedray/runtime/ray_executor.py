"""Ray execution: client actors, called workers, each play any number of clients.

A client is an id, its images and a state. A worker gets its clients of an exchange in one call,
which Ray repeats if the worker is lost: steps are pure functions. States are files in a folder that
all nodes see; a worker writes the next states of its clients as one file, whose name it returns.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from platform import node
from typing import Any, Literal, NamedTuple, TypeAlias

import ray
import torch
from ray.util import register_serializer
from torch import Tensor

from fedray.base.errors import UserError
from fedray.base.trees import StateTree, aligned
from fedray.config import received_experiment
from fedray.config.plugins import use
from fedray.core import ClientState, Downlinks, Payload, Sums, Total
from fedray.evaluation.answers import Counts
from fedray.federation import Reply, Task
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import (
    device_of_this_process,
    free_memory,
    keep_freed_memory,
    peak_device_memory,
    pick_device,
)
from fedray.runtime.groups import GroupRunner, Member
from fedray.runtime.pool import WorkerPool
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.shares import (
    by_client,
    groups_of_step,
    groups_of_test,
    is_stacked,
    shares_of_blocks,
    shares_of_groups,
)
from fedray.storage.states import StateFile, Written, new_path, write_states

CALL = 0.01
"""Seconds that a call of two workers and their answers take, by measurement on two cores."""
INLINED = 100_000
"""Largest download, in bytes, that travels within the call, as Ray sends such arguments."""

Groups: TypeAlias = Sequence[Sequence[int]]
"""Clients in groups that are tested or trained together."""


class RayExecutor(SerialExecutor):
    """Runs client steps on a pool of workers; tests that take less time than a call run here.

    The caller closes the pool.
    """

    def __init__(self, assembly: Assembly, pool: WorkerPool) -> None:
        register_tensors()
        super().__init__(assembly, torch.device("cpu"))
        self._pool, self._used = pool, 0
        self._experiment = assembly.experiment.model_dump_json(by_alias=True)
        self._architectures = assembly.models.architectures
        self._rate = dict.fromkeys(self._architectures, 1e-6)  # seconds per image

    def run(
        self, task: Task, name: str, round_: int, down: Downlinks
    ) -> tuple[dict[int, Reply], Total]:
        """Run a step for every key of `down`; see `federation.Executor`."""
        replies, blocks = dict[int, Reply](), dict[int, tuple[Total, int]]()
        shares = self._shares(task, round_, self._blocks(task, name, round_, down), down)
        calls = [(share, worker.run.remote(task, name, share)) for worker, share in shares]
        for share, ref in calls:
            answers, files, totals = self._answer(ref)
            answered = dict(zip(chain(*chain(*share.blocks)), answers, strict=True))
            for file in files:
                self.states.add(file)
            self._update_rates(round_, answered)
            replies |= answered
            blocks |= zip([block[0][0] for block in share.blocks], totals, strict=False)
        sums = Sums(len(down))
        for _, (total, size) in sorted(blocks.items()):
            sums.add(total, size)
        return dict(sorted(replies.items())), sums.total if blocks else Total()

    def test(self, name: str, round_: int, down: Downlinks) -> Counts:
        """Run a test for every key of `down`; see `federation.Executor`."""
        groups = groups_of_test(self._assembly, name, round_, down)
        if name == "evaluate" and self._is_quick(round_, groups):
            return super().test(name, round_, down)
        count = len(self._pool.ready())
        divided = shares_of_groups(groups, self._seconds(round_, down), count)
        shares = self._shares("test", round_, [[of] for of in divided], down)
        calls = [(share, worker.run.remote("test", name, share)) for worker, share in shares]
        clients = [sorted(chain(*chain(*share.blocks))) for share, _ in calls]
        return by_client(clients, [self._answer(ref) for _, ref in calls])

    @property
    def device_bytes(self) -> int:
        """Return the most memory that a worker has used on its accelerator."""
        return self._used

    def _is_quick(self, round_: int, groups: Sequence[Sequence[int]]) -> bool:
        """Return True if one process makes a test sooner than a call of the workers takes.

        A forward pass takes a third of a training step. The workers' numbers are those of this
        process if they have no accelerator either.
        """
        e = self._assembly.experiment
        if e.gpus or self._assembly.algorithm.requires.prompts:
            return False
        data = self._assembly.data.at(round_)
        images = len(groups) * sum(len(one.index) for one in data.eval_sets.values())
        images += sum(len(data.test[client]) for client in chain(*groups))
        return images * max(self._rate.values()) / (3 * max(1, e.local_epochs)) < CALL

    def _blocks(self, task: Task, name: str, round_: int, down: Downlinks) -> list[list[Groups]]:
        """Return the blocks of each worker, which are groups of clients."""
        made, count = self._assembly, len(self._pool.ready())
        units, seconds = groups_of_step(made, name, down), self._seconds(round_, down)

        def groups_at_once(clients: Iterable[int]) -> Groups:
            return groups_of_step(made, name, {c: down[c] for c in clients}, at_once=True)

        if task == "sum":
            blocks = shares_of_blocks(sorted(down), seconds, count, max(map(len, units)))
            return [[groups_at_once(block) for block in share] for share in blocks]
        shares = shares_of_groups(units, seconds, count)
        if made.experiment.gpus and not is_stacked(made, name):
            return [[groups_at_once(chain(*share))] if share else [] for share in shares]
        return [[share] if share else [] for share in shares]

    def _answer(self, ref: Any) -> Any:
        answer, used = self._pool.answer(ref)
        self._used = max(self._used, used)
        return answer

    def _shares(
        self, task: str, round_: int, divided: Sequence[Sequence[Groups]], down: Downlinks
    ) -> list[tuple[Any, Share]]:
        """Return the workers that are called, and their shares."""
        places = self.states.places()  # now, while no worker writes a file
        sent = {id(one): _put_if_large(one) for one in {id(p): p for p in down.values()}.values()}
        of = self._experiment, self._assembly.identity, round_
        place = str(self.states.folder), self.states.number
        senders = slice(1) if task == "test" else slice(None)
        shares = list[tuple[Any, Share]]()
        for worker, share in zip(self._pool.ready(), divided, strict=True):
            clients = [client for group in chain(*share) for client in group[senders]]
            members = [(client, places.get(client), sent[id(down[client])]) for client in clients]
            shares += [(worker, Share(*of, share, members, *place))] if members else []
        return shares

    def _seconds(self, round_: int, clients: Iterable[int]) -> dict[int, float]:
        """Return the expected time of clients' steps."""
        train = self._assembly.data.at(round_).train
        return {c: len(train[c]) * self._rate[self._architectures[c]] for c in clients}

    def _update_rates(self, round_: int, replies: Mapping[int, Reply]) -> None:
        """Move each architecture's seconds per image halfway to the mean of a share.

        Rates are not kept per client: one client's time is mostly noise, and equal clients must
        weigh the same to be divided evenly.
        """
        train = self._assembly.data.at(round_).train
        for name in {self._architectures[client] for client in replies}:
            same = [client for client in replies if self._architectures[client] == name]
            seconds = sum(replies[client].seconds for client in same)
            rate = seconds / max(1, sum(len(train[client]) for client in same))
            self._rate[name] = (self._rate[name] + rate) / 2


def _put_if_large(payload: Payload | None) -> Any:
    """Return a download, or a reference to it in Ray's store if it is large."""
    size = 0 if payload is None else sum(block.nbytes for block in payload.blocks())
    return payload if size <= INLINED else ray.put(payload)


class Share(NamedTuple):
    """The argument of a call to a worker; a single value, because each argument costs Ray time.

    Attributes:
        experiment: the experiment as JSON.
        identity: that of the server's `Assembly`.
        round: the round.
        blocks: the clients, in blocks of groups; see `GroupRunner.run_blocks`.
        members: the id of each client whose state and download are sent, the name of the file with
            its state, if any, and its download, or a reference to it. For a test, the first
            client of each group, whose model the group shares; otherwise all clients.
        folder: the folder of the states, also of the next ones.
        number: the number with which the names of their files begin.
    """

    experiment: str
    identity: str
    round: int
    blocks: Sequence[Groups]
    members: Sequence[tuple[int, str | None, Any]]
    folder: str
    number: int

    def inputs(self) -> Iterator[Member]:
        """Yield each client with its state and its download; what clients share is read once."""
        large = {down for *_, down in self.members if isinstance(down, ray.ObjectRef)}
        downloads = {reference: ray.get(reference) for reference in large}
        names = {name for _, name, _ in self.members if name is not None}
        files = {name: StateFile(Path(self.folder) / name) for name in names}
        for client, name, down in self.members:
            state = None if name is None else ClientState(**files[name].read(client))
            yield Member(client, state, downloads.get(down, down))

    def write(self, trees: Mapping[int, StateTree]) -> Written:
        """Write the next states of clients."""
        return write_states(new_path(Path(self.folder), self.number), trees)


class Worker:
    """A client actor: plays one or more clients of any experiment, with its share of CPU and GPU.

    Args:
        threads: torch's threads.
        gpus: the worker's share of the accelerators of its node.
    """

    def __init__(self, threads: int, gpus: float) -> None:
        self._gpus = gpus
        register_tensors()
        torch.set_num_threads(threads)
        keep_freed_memory()
        self._device = pick_device(gpus)
        self._of: tuple[str, GroupRunner] | None = None

    def begin(self, experiment: str) -> None:
        """Load an experiment's data and models.

        Raises:
            UserError: if torch does not find the accelerator of which the worker has a share, or
                the data is missing.
        """
        device_of_this_process(self._gpus)
        assembly = self._runner(experiment).assembly
        _ = assembly.data, assembly.algorithm, assembly.models

    def run(self, task: Task | Literal["test"], name: str, share: Share) -> tuple[Any, int]:
        """Run a step or a test of several clients.

        Returns:
            What `GroupRunner.run_blocks` or `test` returns, and the most memory that was used on
            the accelerator.
        """
        runner, of = self._runner(share.experiment, share.identity), (name, share.round)
        if task == "test":
            answer: Any = runner.test(*of, [*chain(*share.blocks)], share.inputs())
        else:
            answer = runner.run_blocks(task, *of, share.blocks, share.inputs(), share.write)
        return answer, peak_device_memory(self._device)

    def _runner(self, experiment: str, identity: str = "") -> GroupRunner:
        """Return the runner of an experiment; that of an earlier one is freed.

        Raises:
            UserError: if this node reads other images, labels or files than the server.
        """
        of, self._of = self._of, None
        if of is None or of[0] != experiment or use(of[1].assembly.experiment.plugins):
            of = None
            free_memory()
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
