"""Ray execution: a few workers run the steps of any number of virtual clients.

A client is an id, its images and a state, which belongs to the caller, so a worker that dies can
neither lose nor double a step: another starts in its place, and what it had not answered is asked
again, of whoever is there. Each worker gets all of its clients of an exchange in one call.

Large states are files on the caller's node. A worker there is told which, and writes the next
ones there; with one on another node they go through Ray's object store.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import ray
from ray.exceptions import ObjectLostError

from fedray.core import Downlinks, TreeSum, cut_depth
from fedray.errors import Failure, RunFailed
from fedray.federation import Reply, ScoreReply
from fedray.runtime.assembly import Assembly
from fedray.runtime.deaths import (
    DEATHS,
    Patience,
    StatesLost,
    first_line,
    get,
    is_outage,
    raise_if_unstartable,
)
from fedray.runtime.packing import SMALL, accept_mapped_arrays, opened, pack, sealed, size, unpack
from fedray.runtime.pool import WorkerPool
from fedray.runtime.worker import Answer, Answers, Share
from fedray.states import LARGE, Place, StateStore, state_size

CLIENTS_PER_CALL = 32
ROWS_MAY_COST = 1.1
"""How much longer an exchange may take than at best so that uploads are summed in few parts."""
ROW_ENDS_WITHIN = 0.05  # of a share, to find a cut that makes few parts


class Call(NamedTuple):
    """A call that was sent to a worker.

    Attributes:
        worker: which.
        clients: whom it is about.
        refs: what comes back; there all at once.
    """

    worker: Any
    clients: Sequence[int]
    refs: Sequence[Any]


class RayExecutor:
    """Client steps on a pool of workers (`federation.Executor`).

    Args:
        assembly: the parts of the run.
        pool: the workers; may be shared by the seeds of one trial.

    Attributes:
        states: the clients'; whoever runs may give another store before the first step.
    """

    def __init__(self, assembly: Assembly, pool: WorkerPool) -> None:
        accept_mapped_arrays()
        self._experiment = assembly.pinned.model_dump_json(by_alias=True)
        self._faults = assembly.experiment.faults
        self._pool = pool
        self.states = StateStore()
        self._here = str(ray.get_runtime_context().get_node_id())
        self._sizes = [(first, [*map(len, d.train)]) for first, d in assembly.data.phases]
        self._images = self._sizes[0][1]
        self._architectures = assembly.models.architectures
        self._rate = dict.fromkeys(self._architectures, 1e-6)  # seconds per image

    def step(
        self, name: str, round_: int, down: Downlinks, total: TreeSum | None = None
    ) -> dict[int, Reply]:
        """Run one client step for every key of `down`, one call per worker.

        With a reply timeout it is one call per client, and a late reply is a failure. With `total`
        each call answers what its clients' uploads add up to, in as few parts as there are.
        """
        self._enter(round_)
        timeout = self._faults.reply_timeout_s
        distinct, position = _put_once(down)
        apart = total is None and any(isinstance(each, ray.ObjectRef) for each in distinct)

        def send(worker: Any, clients: Sequence[int]) -> Call:
            what, referenced = self._share(worker, round_, clients, distinct, position)
            if total is not None:
                positions = [total.positions[client] for client in clients]
                what = what._replace(positions=positions, leaves=total.leaves)
            if not apart or len(clients) < 2:
                return Call(worker, clients, [worker.step.remote(name, what, *referenced)])
            call = worker.step.options(num_returns=len(clients))
            return Call(worker, clients, call.remote(name, what._replace(apart=True), *referenced))

        replies: dict[int, Reply] = {}
        for call, found in self._exchange(list(down), send, timeout, in_a_row=total is not None):
            if found is None:
                late = Reply(failure=Failure(f"no reply within {timeout:g} s"))
                replies |= dict.fromkeys(call.clients, late)
                continue
            answers = _opened(found)
            for client, answer in zip(call.clients, answers.clients, strict=True):
                replies[client] = unpack(answer.reply)
                self._keep(client, answer.state)
            for part in answers.parts:
                assert total is not None
                total.join(unpack(part))
            self._learn_rates(call.clients, answers.clients)
        return dict(sorted(replies.items()))

    def test(self, name: str, round_: int, down: Downlinks) -> dict[int, ScoreReply]:
        """Run a test for every key of `down`, one call per worker.

        With a reply timeout it is one call per client, and what does not answer is asked again:
        a round without it would be another number.
        """
        self._enter(round_)
        timeout = self._faults.reply_timeout_s
        distinct, position = _put_once(down)

        def send(worker: Any, clients: Sequence[int]) -> Call:
            what, referenced = self._share(worker, round_, clients, distinct, position)
            return Call(worker, clients, [worker.test.remote(name, what, *referenced)])

        tested: dict[int, ScoreReply] = {}
        for call, answers in self._exchange(list(down), send, timeout, again=True):
            tested |= zip(call.clients, answers[0], strict=True)
        return dict(sorted(tested.items()))

    def _exchange(
        self,
        clients: Sequence[int],
        send: Callable[[Any, Sequence[int]], Call],
        timeout: float | None = None,
        *,
        again: bool = False,
        in_a_row: bool = False,
    ) -> Iterator[tuple[Call, Any]]:
        """Have clients' steps run; yield each call with what came back, None when it is late.

        What a worker that died, or cannot be reached, had not answered is asked again, of others:
        steps are pure functions.

        Args:
            clients: whose steps.
            send: calls a worker for some clients.
            timeout: seconds that each call may take once its worker begins it; None waits for ever.
            again: whether a worker is late only when nobody has answered for `timeout` seconds,
                and then counts as dead.
            in_a_row: whether workers had better have clients that stand in a row.

        Raises:
            RunFailed: when workers died too often under the same client's steps, or when there
                were outages, and no answers, for too long.
        """
        patience = Patience(self._faults.max_failures, self._faults.start_timeout_s)
        while clients:
            self._pool.wait()
            shares = _cut_to_calls(self._shares(clients, in_a_row=in_a_row))
            if timeout is not None:
                shares = [(worker, [client]) for worker, share in shares for client in share]
                self._warm_up()  # the clock is for steps, not for a worker that starts
            calls = [send(worker, share) for worker, share in shares]
            behind: set[Any] = set()
            if again:
                late = _stalled(calls, timeout)
            else:
                late, behind = _late(calls, timeout)
            lost: dict[Any, list[int]] = {}
            away = set()
            if not again:
                lost = {call.worker: [] for call in calls if call.refs[0] in late}
            for call in calls:
                if call.refs[0] in late and not again:
                    yield call, None
                    continue
                if call.refs[0] in behind:
                    lost[call.worker].extend(call.clients)
                    continue
                answers, death = _answers(call, late)
                if death is None:
                    patience.success()
                    yield call, answers
                    continue
                if call.worker not in lost:  # the calls behind the first had not begun
                    self._bear(patience, call, death)
                    away |= {call.worker} if is_outage(death) else set()
                lost.setdefault(call.worker, []).extend(call.clients)
            for worker in lost:
                # nobody wants what the late ones are busy with
                (self._pool.doubt if worker in away else self._pool.replace)(worker)
            clients = [client for unanswered in lost.values() for client in unanswered]
            patience.pause()

    def _bear(self, patience: Patience, call: Call, error: Exception) -> None:
        """Count a worker's death against the clients whose steps it was running.

        Raises:
            RunFailed: when it is one too many, or the worker cannot even start.
        """
        raise_if_unstartable(error)
        if not patience.is_used_up(error, call.clients):
            return
        if is_outage(error):
            seconds = self._faults.start_timeout_s
            why = f"no worker could be reached for {seconds:g} s (faults.start_timeout_s)"
        else:
            most = self._faults.max_failures
            why = f"a worker died again and again during one call (faults.max_failures={most} "
            why += "retries are used up)"
        raise RunFailed(f"{why}: {first_line(error)}") from error

    def close(self) -> None:
        """Let the states go; the pool belongs to the caller."""
        self.states.close()
        self._pool.forget(self._experiment)

    def _enter(self, round_: int) -> None:
        """Weigh clients by the images that they have in a round."""
        self._images = [sizes for first, sizes in self._sizes if first <= round_][-1]

    def _warm_up(self) -> None:
        """Wait until every worker can take calls."""
        for ref in [worker.warm_up.remote(self._experiment) for worker in self._pool.workers]:
            with suppress(*DEATHS):  # its next call shows that it died
                get(ref)

    def _keep(self, client: int, state: Any) -> None:
        """Take a client's next state, as a worker answered it."""
        if state is None:
            return
        if isinstance(state, Place):
            self.states.put(client, state)
        elif isinstance(state, bytes):
            self.states.put(client, unpack(state))
        else:  # of another node: what Ray's object store holds of it is free again
            self.states.write(client, unpack(state))

    def _share(
        self,
        worker: Any,
        round_: int,
        clients: Sequence[int],
        distinct: Sequence[Any],
        at: Mapping[int, int],
    ) -> tuple[Share, list[Any]]:
        """A call's share, and references to the states that are too large to be in it."""
        is_here = self._pool.node_of(worker) == self._here
        states: dict[int, Any] = {}
        referenced: list[Any] = []
        for client in clients:
            state = self.states.find(client) if is_here else self.states.get(client)
            if state is None or isinstance(state, Place):
                states[client] = state
            elif state_size(state) < LARGE:
                states[client] = sealed(pack(state))
            else:
                referenced.append(ray.put(pack(state)))
        payloads = [at[client] for client in clients]
        where = (str(self.states.folder), self.states.new_name()) if is_here else ()
        return Share(
            self._experiment, round_, clients, payloads, distinct, states, *where
        ), referenced

    def _shares(
        self, clients: Sequence[int], *, in_a_row: bool = False
    ) -> list[tuple[Any, list[int]]]:
        """Divide clients among workers, by images and the architecture's rate."""
        workers = self._pool.workers
        seconds = {c: self._images[c] * self._rate[self._architectures[c]] for c in clients}
        shares = longest_first(seconds, len(workers))
        if in_a_row:
            rows = rows_of(seconds, len(workers))
            if _longest(rows, seconds) <= ROWS_MAY_COST * _longest(shares, seconds):
                shares = rows
        return [(w, share) for w, share in zip(workers, shares, strict=True) if share]

    def _learn_rates(self, share: Sequence[int], answers: Sequence[Answer]) -> None:
        """Move each architecture's seconds per image halfway to what a share took.

        Of an architecture, not of a client: one client's time is mostly noise, and equal clients
        must weigh the same to be divided evenly.
        """
        for architecture in {self._architectures[client] for client in share}:
            timed = [
                (answer.seconds, self._images[client])
                for client, answer in zip(share, answers, strict=True)
                if self._architectures[client] == architecture
            ]
            rate = sum(seconds for seconds, _ in timed) / max(1, sum(images for _, images in timed))
            self._rate[architecture] = (self._rate[architecture] + rate) / 2


def longest_first(seconds: Mapping[int, float], workers: int) -> list[list[int]]:
    """A share of clients per worker: the longest first, to whoever has the least to do.

    Args:
        seconds: what each client takes.
        workers: how many.
    """
    loads = [0.0] * workers
    shares: list[list[int]] = [[] for _ in loads]
    for client in sorted(seconds, key=lambda c: (-seconds[c], c)):
        least = loads.index(min(loads))
        shares[least].append(client)
        loads[least] += seconds[client]
    return shares


def rows_of(seconds: Mapping[int, float], workers: int) -> list[list[int]]:
    """A share per worker of clients that stand in a row, cut where few parts of a sum result.

    Args:
        seconds: what each client takes.
        workers: how many.
    """
    clients = sorted(seconds)
    until = [0.0, *accumulate(seconds[client] for client in clients)]
    whole = until[-1] / workers
    cuts = [0]
    for number in range(1, workers):
        aims = [abs(done - number * whole) for done in until]
        near = max(min(aims), ROW_ENDS_WITHIN * whole)
        ends = [at for at, aim in enumerate(aims) if aim <= near and at >= cuts[-1]]
        cuts.append(min(ends, key=lambda at: (cut_depth(at, len(clients)), aims[at])))
    return [clients[start:end] for start, end in pairwise([*cuts, len(clients)])]


def _longest(shares: Sequence[Sequence[int]], seconds: Mapping[int, float]) -> float:
    """How long the worker with the most to do takes."""
    return max(sum(seconds[client] for client in share) for share in shares)


def _opened(found: Sequence[Any]) -> Answers:
    """What a call answered, in one object or one per client."""
    first = opened(found[0])
    if isinstance(first, Answers):
        return first._replace(clients=[*map(opened, first.clients)])
    return Answers([first, *map(opened, found[1:])])


def _cut_to_calls(shares: list[tuple[Any, list[int]]]) -> list[tuple[Any, list[int]]]:
    """Cut large shares: a worker holds the new states of one call until it has answered."""
    most = max((len(share) for _, share in shares), default=0)
    return [
        (worker, share[start : start + CLIENTS_PER_CALL])
        for start in range(0, most, CLIENTS_PER_CALL)
        for worker, share in shares
        if start < len(share)
    ]


def _put_once(down: Downlinks) -> tuple[list[Any], dict[int, int]]:
    """Every distinct payload once, in the object store if it is large; say who gets which."""
    refs: dict[int, tuple[int, Any]] = {}
    position = {}
    for client, payload in down.items():
        if payload is None:
            position[client] = -1
            continue
        if id(payload) not in refs:
            packed = pack(payload)
            small = size(packed) <= SMALL
            refs[id(payload)] = (len(refs), sealed(packed) if small else ray.put(packed))
        position[client] = refs[id(payload)][0]
    return [ref for _, ref in sorted(refs.values(), key=lambda item: item[0])], position


def _late(calls: Sequence[Call], timeout: float | None) -> tuple[set[Any], set[Any]]:
    """Wait until every call has an answer, is late, or stands behind one that is late.

    A worker runs its calls one after the other, so a call's time begins when the one before has
    an answer.

    Args:
        calls: in the order in which each worker was given them.
        timeout: seconds for each call; None does not wait at all.

    Returns:
        The first references of the late calls, and those of the calls behind them.
    """
    late: set[Any] = set()
    behind: set[Any] = set()
    if timeout is None:
        return late, behind
    queues: dict[Any, list[Any]] = {}
    for call in calls:
        queues.setdefault(call.worker, []).append(call.refs[0])
    began = dict.fromkeys(queues, time.monotonic())
    while queues:
        heads = {queue[0]: worker for worker, queue in queues.items()}
        left = min(began[worker] + timeout - time.monotonic() for worker in queues)
        ray.wait(list(heads), num_returns=1, timeout=max(0.0, left))
        now = time.monotonic()
        answered, _ = ray.wait(list(heads), num_returns=len(heads), timeout=0)
        for ref, worker in heads.items():
            if ref in answered:
                began[worker] = now
                del queues[worker][0]
            elif now >= began[worker] + timeout:
                late.add(ref)
                behind.update(queues.pop(worker)[1:])
        queues = {worker: queue for worker, queue in queues.items() if queue}
    return late, behind


def _stalled(calls: Sequence[Call], timeout: float | None) -> set[Any]:
    """The calls without an answer after so many seconds in which there was none at all."""
    waiting = [call.refs[0] for call in calls]
    while waiting and timeout is not None:
        answered, waiting = ray.wait(waiting, num_returns=1, timeout=timeout)
        if not answered:
            return set(waiting)
    return set()


def _answers(call: Call, late: Collection[Any]) -> tuple[Any, Exception | None]:
    """What came back from a call, or the death of its worker, or of the node with its answers."""
    if call.refs[0] in late:
        return None, TimeoutError("no answer to a test within faults.reply_timeout_s")
    try:
        return get(call.refs), None
    except (*DEATHS, ObjectLostError, StatesLost) as error:  # the next call has states put again
        return None, error
