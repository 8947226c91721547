"""Ray execution: a few workers run the steps of any number of virtual clients.

A client is an id, its images and a state, which the caller holds. A worker that dies neither loses
nor repeats a completed step: other workers run the steps that it has not answered. Each worker gets
its clients of an exchange in one call.

Large states are files on the caller's node. A worker on that node gets their paths and writes the
next states there; states of workers on other nodes go through Ray's object store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayTaskError

from fedray.core import Downlinks, Total, join_totals
from fedray.errors import FedrayError, RunFailed
from fedray.federation import Reply
from fedray.runtime.assembly import Assembly
from fedray.runtime.messages import Message, from_message, register_tensors, to_message
from fedray.runtime.pool import LOST, WorkerPool, cause_of
from fedray.runtime.printing import text_log
from fedray.runtime.shares import (
    groups_of_step,
    groups_of_test,
    shares_of_blocks,
    shares_of_groups,
)
from fedray.runtime.worker import Share
from fedray.states import LARGE, Place, StateStore, state_size

CLIENTS_PER_CALL, LARGE_CLIENTS_PER_CALL = 32, 8
"""Maximum numbers of clients per call, because a worker holds their results until it answers. The
second one applies to large downloads, whose uploads are usually large, too."""


class Call(NamedTuple):
    """A call that has been sent to a worker."""

    worker: Any
    groups: Sequence[Sequence[int]]
    ref: Any

    @property
    def clients(self) -> list[int]:
        """Return the client ids, group after group."""
        return [*chain.from_iterable(self.groups)]


class RayExecutor:
    """Runs client steps on a pool of workers (`federation.Executor`)."""

    def __init__(self, assembly: Assembly, pool: WorkerPool) -> None:
        register_tensors()
        self._assembly = assembly
        self._experiment = assembly.pinned.model_dump_json(by_alias=True)
        self._max_failures = assembly.experiment.faults.max_failures
        self._pool = pool
        self.states = StateStore()
        self._node_id = str(ray.get_runtime_context().get_node_id())
        self._sizes = [(first, [*map(len, d.train)]) for first, d in assembly.data.phases]
        self._architectures = assembly.models.architectures
        self._rate = dict.fromkeys(self._architectures, 1e-6)  # seconds per image

    def step(self, name: str, round_: int, down: Downlinks) -> dict[int, Reply]:
        """Run one client step for every key of `down`."""
        replies: dict[int, Reply] = {}
        groups = groups_of_step(self._assembly, name, down)
        for call, answer in self._exchange("step", name, round_, down, groups):
            replies |= self._replies(round_, call, answer)
        return dict(sorted(replies.items()))

    def total(self, name: str, round_: int, down: Downlinks) -> tuple[dict[int, Reply], Total]:
        """Run steps like `step`; the workers sum the uploads of whole blocks of clients."""
        replies: dict[int, Reply] = {}
        blocks: dict[tuple[int, ...], Total] = {}
        groups = groups_of_step(self._assembly, name, down)
        for call, answer in self._exchange("total", name, round_, down, groups):
            results, total = answer
            replies |= self._replies(round_, call, results)
            blocks[tuple(call.clients)] = from_message(total)
        return dict(sorted(replies.items())), join_totals(list(down), blocks)

    def test(self, name: str, round_: int, down: Downlinks) -> dict[int, Reply]:
        """Run one test for every key of `down`."""
        tested: dict[int, Reply] = {}
        groups = groups_of_test(self._assembly, name, round_, down)
        for call, answer in self._exchange("test", name, round_, down, groups):
            tested |= zip(call.clients, answer, strict=True)
        return dict(sorted(tested.items()))

    def close(self) -> None:
        """Free the states; the caller closes the pool."""
        self.states.close()
        self._pool.forget(self._experiment)

    def _exchange(
        self,
        kind: str,
        name: str,
        round_: int,
        down: Downlinks,
        groups: Sequence[Sequence[int]],
    ) -> Iterator[tuple[Call, Any]]:
        """Run a step or test for every key of `down`; yield each call with its answer.

        Steps are pure functions, so other workers run again what a lost worker has not answered.
        """
        downloads, losses = _put_once(down), Counter[int]()
        pending = groups
        while pending:
            calls = self._send(kind, name, round_, pending, downloads)
            pending, lost_workers = [], set[Any]()
            for call in calls:
                try:
                    answer = _answer(call.ref)
                except LOST as error:
                    pending += call.groups
                    self._suspend(call, lost_workers, losses, error)
                    continue
                yield call, answer

    def _send(
        self,
        kind: str,
        name: str,
        round_: int,
        groups: Sequence[Sequence[int]],
        downloads: tuple[Sequence[Any], Mapping[int, int]],
    ) -> list[Call]:
        """Divide clients among the workers that answer, and call these workers."""
        workers, images = self._pool.ready(len(groups)), self._images(round_)
        clients = chain.from_iterable(groups)
        seconds = {c: images[c] * self._rate[self._architectures[c]] for c in clients}
        is_large = any(isinstance(download, ray.ObjectRef) for download in downloads[0])
        max_clients = LARGE_CLIENTS_PER_CALL if is_large and kind != "total" else CLIENTS_PER_CALL
        group_size = max(map(len, groups))
        shares: list[list[list[Sequence[int]]]]
        if kind == "total":
            everyone = list(downloads[1])
            blocks = shares_of_blocks(everyone, seconds, len(workers), max_clients, group_size)
            divide = partial(groups_of_step, self._assembly, name)
            shares = [[divide(block) for block in share] for share in blocks]
        else:
            max_clients = max_clients if kind == "test" else max(1, max_clients // group_size)
            shares = shares_of_groups(groups, seconds, len(workers), max_clients)
        calls = []
        for calls_of_turn in zip_longest(*shares):
            for worker, share in zip(workers, calls_of_turn, strict=True):
                if share is not None:
                    argument = self._share(kind, worker, round_, share, *downloads)
                    calls.append(Call(worker, share, getattr(worker, kind).remote(name, argument)))
        return calls

    def _suspend(
        self, call: Call, lost_workers: set[Any], losses: Counter[int], error: Exception
    ) -> None:
        """Suspend a worker that lost a call; raise if a client's step was lost too often."""
        if call.worker in lost_workers:  # the worker had not started this call
            return
        lost_workers.add(call.worker)
        self._pool.suspend(call.worker)
        losses.update(call.clients)
        max_failures = self._max_failures
        if max(losses.values()) > max_failures:
            raise RunFailed(
                f"workers were lost {max_failures + 1} time(s) during one client's step "
                f"(faults.max_failures={max_failures}): {cause_of(error)}"
            ) from error

    def _replies(self, round_: int, call: Call, answer: Sequence[Any]) -> dict[int, Reply]:
        """Return a call's replies, store the clients' next states, and update the rates."""
        results = [from_message(result) for result in answer]
        for client, (_, state) in zip(call.clients, results, strict=True):
            self._store(client, state)
        replies = {c: reply for c, (reply, _) in zip(call.clients, results, strict=True)}
        self._update_rates(round_, replies)
        return replies

    def _store(self, client: int, state: Any) -> None:
        if state is None:
            return
        if isinstance(state, Place | Message):
            self.states.put(client, from_message(state))
        else:  # from another node; a file uses none of Ray's memory
            self.states.write(client, state)

    def _share(
        self,
        kind: str,
        worker: Any,
        round_: int,
        groups: Sequence[Sequence[int]],
        distinct: Sequence[Any],
        positions: Mapping[int, int],
    ) -> Share:
        senders = slice(1) if kind == "test" else slice(None)
        clients = [client for group in groups for client in group[senders]]
        is_local = self._pool.node_of(worker) == self._node_id
        states: dict[int, Any] = {}
        for client in clients:
            state = self.states.find(client) if is_local else self.states.get(client)
            if isinstance(state, Place):
                states[client] = state
            elif state is not None:
                is_small = state_size(state) < LARGE
                states[client] = to_message(state) if is_small else ray.put(state)
        own = [positions[client] for client in clients]
        downloads = {position: distinct[position] for position in own if position >= 0}
        database = self.states.database
        folder = (str(database.files), database.new_name()) if is_local else ()
        inputs = clients, own, downloads, states
        return Share(self._experiment, round_, groups, *inputs, *folder)

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
            message = to_message(payload)
            distinct.append(message if isinstance(message, Message) else ray.put(payload))
        positions[client] = index[id(payload)]
    return distinct, positions


def _answer(ref: Any) -> Any:
    """Return a call's answer, or raise its error; pass on the worker's texts in either case."""
    try:
        answer, texts = ray.get(ref)
    except RayTaskError as error:
        text_log.show(getattr(error.cause, "texts", ()))
        raise error.cause from (None if isinstance(error.cause, FedrayError) else error)
    text_log.show(texts)
    return answer
