"""Ray execution: a few long-lived actors run the steps of any number of virtual clients.

A client is an id, its images and a reference to its state; the state belongs to the caller, so a
worker that dies costs one retry and can neither lose nor double a step. Each worker gets all of
its clients of an exchange in one call.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from torch import Tensor

from fedray.algorithms.base import Downlinks
from fedray.client import ClientState
from fedray.comm import Payload
from fedray.config import Experiment
from fedray.errors import FedrayError, RunFailed
from fedray.evaluation import Score
from fedray.federation import Reply
from fedray.runtime.assembly import Assembly, pick_device
from fedray.runtime.clients import ClientRuntime
from fedray.runtime.resources import worker_bundles

log = logging.getLogger(__name__)

CLIENTS_PER_CALL = 32


def pack(value: Any) -> Any:
    """Tensors as NumPy arrays, inside payloads, states, replies and mappings: cheap to send."""
    return _walk(value, Tensor, lambda tensor: tensor.numpy())


def unpack(value: Any) -> Any:
    """The inverse of `pack`; the tensors may be views of read-only shared memory."""
    return _walk(value, np.ndarray, torch.from_numpy)


def _walk(value: Any, kind: type, convert: Any) -> Any:
    if isinstance(value, kind):
        return convert(value)
    if isinstance(value, Mapping):
        return {key: _walk(item, kind, convert) for key, item in value.items()}
    if isinstance(value, Payload | ClientState | Reply):
        changed = {
            field.name: _walk(getattr(value, field.name), kind, convert)
            for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **changed)
    return value


class Worker:
    """An actor that runs client steps of any experiment it is handed.

    Args:
        threads: threads of one client step.
        gpus: this worker's GPU share, in GPUs.
    """

    def __init__(self, threads: int, gpus: float) -> None:
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        torch.set_num_threads(threads)
        self._device = pick_device(gpus)
        if self._device.type == "cuda" and gpus < 1:
            torch.cuda.set_per_process_memory_fraction(gpus)
        self._runtimes: dict[str, ClientRuntime] = {}
        torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first one loads modules for a second

    def prepare(self, experiment: str) -> int:
        """Get ready for calls of an experiment; returns the process id."""
        _ = self._runtime(experiment).assembly.data
        return os.getpid()

    def step(
        self,
        experiment: str,
        name: str,
        round_: int,
        clients: Sequence[int],
        payloads: Sequence[int],
        distinct: Sequence[Any],
        *states: Any,
    ) -> Any:
        """Run one step for several clients.

        Args:
            experiment: the experiment as JSON.
            name: the step.
            round_: the round.
            clients: the ids.
            payloads: for each client, the position of its download in `distinct`, or -1.
            distinct: references to the downloads.
            states: for each client, its packed state, or None.

        Returns:
            The replies with the seconds each took, then each client's new state.
        """
        runtime = self._runtime(experiment)
        downs = [unpack(ray.get(ref)) for ref in distinct]
        replies, after = [], []
        for client, which, state in zip(clients, payloads, states, strict=True):
            started = time.perf_counter()
            down = downs[which] if which >= 0 else None
            reply, new = runtime.step(name, round_, client, unpack(state), down)
            replies.append((pack(reply), time.perf_counter() - started))
            after.append(pack(new))
        return (replies, *after)

    def evaluate(
        self,
        experiment: str,
        round_: int,
        clients: Sequence[int],
        payloads: Sequence[int],
        distinct: Sequence[Any],
        *states: Any,
    ) -> list[Score]:
        """Test several clients; arguments as of `step`."""
        runtime = self._runtime(experiment)
        downs = [unpack(ray.get(ref)) for ref in distinct]
        return [
            runtime.evaluate(round_, client, unpack(state), downs[which] if which >= 0 else None)
            for client, which, state in zip(clients, payloads, states, strict=True)
        ]

    def peak_rss(self) -> int:
        """The most memory that this process ever held, in bytes."""
        from fedray.runtime.memory import peak_rss

        return peak_rss()

    def _runtime(self, experiment: str) -> ClientRuntime:
        if experiment not in self._runtimes:
            assembly = Assembly(Experiment.model_validate_json(experiment))
            self._runtimes[experiment] = ClientRuntime(assembly, self._device)
        return self._runtimes[experiment]


class WorkerPool:
    """The workers of one run or trial.

    Args:
        experiment: says how many, and their CPU and GPU shares.
        group: the placement group of a trial, whose bundles the workers are placed in.
        first_bundle: the bundle of the first worker.
    """

    def __init__(self, experiment: Experiment, group: Any = None, first_bundle: int = 0) -> None:
        self._experiment = experiment
        self._group = group
        self._first_bundle = first_bundle
        self.workers = [self._start(index) for index in range(experiment.workers)]

    def replace(self, worker: Any) -> None:
        """End a worker, with every call it was given, and start another in its place."""
        index = self.workers.index(worker)
        ray.kill(worker)
        self.workers[index] = self._start(index)

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []

    def _start(self, index: int) -> Any:
        bundle = worker_bundles(self._experiment)[index]
        options: dict[str, Any] = {
            "num_cpus": bundle.get("CPU", 0),
            "num_gpus": bundle.get("GPU", 0),
            "max_restarts": -1,
            "max_task_retries": self._experiment.faults.max_failures,
        }
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=self._first_bundle + index
            )
        actor = ray.remote(Worker).options(**options)
        return actor.remote(self._experiment.threads, bundle.get("GPU", 0))


class RayExecutor:
    """Client steps on a pool of workers (`federation.Executor`).

    Args:
        assembly: the parts of the run.
        pool: the workers; may be shared by the seeds of one trial.
    """

    def __init__(self, assembly: Assembly, pool: WorkerPool) -> None:
        self._experiment = assembly.experiment.model_dump_json(by_alias=True)
        self._faults = assembly.experiment.faults
        self._pool = pool
        self._states: dict[int, Any] = {}
        self._seconds = {client: len(own) * 1e-6 for client, own in enumerate(assembly.data.train)}

    def step(self, name: str, round_: int, down: Downlinks) -> dict[int, Reply]:
        """Run one client step for every key of `down`, one call per worker.

        With a reply timeout it is one call per client, and what is late is dropped.
        """
        shares = _in_turns(self._shares(list(down)))
        timeout = self._faults.reply_timeout_s
        if timeout is not None:
            shares = [(worker, [client]) for worker, share in shares for client in share]
            self._prepare()  # the clock is for steps, not for a worker that starts
        distinct, position = _put_once(down)
        calls: dict[Any, tuple[Any, list[int], list[Any]]] = {}
        for worker, share in shares:
            answers, *states = worker.step.options(num_returns=1 + len(share)).remote(
                self._experiment,
                name,
                round_,
                share,
                [position[c] for c in share],
                distinct,
                *[self._states.get(client) for client in share],
            )
            calls[answers] = (worker, share, states)
        late: list[Any] = []
        if timeout is not None:
            late = ray.wait(list(calls), num_returns=len(calls), timeout=timeout)[1]
        replies: dict[int, Reply] = {}
        for answers, (_, share, states) in calls.items():
            if answers in late:
                replies |= dict.fromkeys(share, Reply(failure=f"no reply within {timeout:g} s"))
                continue
            for client, (reply, seconds), state in zip(share, _get(answers), states, strict=True):
                replies[client] = unpack(reply)
                self._seconds[client] = seconds
                self._states[client] = state
        for worker in {calls[answers][0] for answers in late}:
            self._pool.replace(worker)  # it is busy with replies that nobody wants any more
        return dict(sorted(replies.items()))

    def evaluate(self, round_: int, down: Downlinks) -> dict[int, Score]:
        """Test every key of `down` on its own test split, one call per worker."""
        distinct, position = _put_once(down)
        shares = self._shares(list(down))
        refs = [
            worker.evaluate.remote(
                self._experiment,
                round_,
                share,
                [position[c] for c in share],
                distinct,
                *[self._states.get(client) for client in share],
            )
            for worker, share in shares
        ]
        scores: dict[int, Score] = {}
        for (_, share), ref in zip(shares, refs, strict=True):
            scores |= zip(share, _get(ref), strict=True)
        return dict(sorted(scores.items()))

    def export(self, clients: Sequence[int]) -> Iterator[tuple[int, ClientState]]:
        """Fetch the states of `clients` that have one, one by one."""
        for client in clients:
            if client in self._states:
                state = unpack(_get(self._states[client]))
                if state is not None:
                    yield client, state

    def restore(self, states: Mapping[int, ClientState]) -> None:
        """Take over these states."""
        self._states = {client: ray.put(pack(state)) for client, state in states.items()}

    def close(self) -> None:
        """Let the states go; the pool belongs to the caller."""
        self._states.clear()

    def _prepare(self) -> None:
        """Wait until every worker can take calls."""
        for ref in [worker.prepare.remote(self._experiment) for worker in self._pool.workers]:
            _get(ref)

    def _shares(self, clients: Sequence[int]) -> list[tuple[Any, list[int]]]:
        """Deal clients to workers, longest first, by the seconds each took last time."""
        workers = self._pool.workers
        loads = [0.0] * len(workers)
        shares: list[list[int]] = [[] for _ in workers]
        for client in sorted(clients, key=lambda c: (-self._seconds[c], c)):
            least = loads.index(min(loads))
            shares[least].append(client)
            loads[least] += self._seconds[client]
        return [(w, share) for w, share in zip(workers, shares, strict=True) if share]


def _in_turns(shares: list[tuple[Any, list[int]]]) -> list[tuple[Any, list[int]]]:
    """Cut large shares: a worker holds the new states of one call until it has answered."""
    most = max((len(share) for _, share in shares), default=0)
    return [
        (worker, share[start : start + CLIENTS_PER_CALL])
        for start in range(0, most, CLIENTS_PER_CALL)
        for worker, share in shares
        if start < len(share)
    ]


def _put_once(down: Downlinks) -> tuple[list[Any], dict[int, int]]:
    """Put every distinct payload into the object store once; say which client gets which."""
    refs: dict[int, tuple[int, Any]] = {}
    position = {}
    for client, payload in down.items():
        if payload is None:
            position[client] = -1
            continue
        if id(payload) not in refs:
            refs[id(payload)] = (len(refs), ray.put(pack(payload)))
        position[client] = refs[id(payload)][0]
    return [ref for _, ref in sorted(refs.values(), key=lambda item: item[0])], position


def _get(ref: Any) -> Any:
    """`ray.get` with errors in our own terms."""
    try:
        return ray.get(ref)
    except RayTaskError as error:
        if isinstance(error.cause, FedrayError):
            raise error.cause from None
        raise
    except RayActorError as error:
        lines = str(error).strip().splitlines()
        if error.actor_init_failed:
            raise RunFailed(f"a worker cannot start: {lines[-1]}") from error
        raise RunFailed(
            "a worker died again and again during one call "
            f"(faults.max_failures retries are used up): {lines[0]}"
        ) from error
