"""Workers that start late, cannot be reached, or cannot start."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from fedray.errors import RunFailed
from fedray.runtime import pool
from fedray.runtime.pool import WorkerPool
from fedray.runtime.resolve import from_tree


class StandIn:
    """A worker whose pings are answered at the times `answers`, or with an error."""

    def __init__(self, number: int, answers: list[Any]) -> None:
        self.number = number
        self.answers = answers
        self.node = self

    def options(self, *, max_task_retries: int) -> StandIn:
        assert max_task_retries == -1
        return self

    def remote(self) -> Any:
        return (self, self.answers.pop(0) if self.answers else 0.0, object())


class StandInRay:
    """Ray and the clock.

    Attributes:
        answers: when the pings of the n-th worker are answered; at once if not said.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.answers: dict[int, list[Any]] = defaultdict(list)
        self.started: list[StandIn] = []
        self.killed: list[tuple[int, bool]] = []

    def remote(self, *given: Any) -> Any:
        """ray.remote(Worker), its options, and the start, in one."""
        if isinstance(given[0], type):
            return self
        self.started.append(StandIn(len(self.started), self.answers[len(self.started)]))
        return self.started[-1]

    def options(self, **options: Any) -> StandInRay:
        assert options["max_restarts"] == -1
        return self

    def wait(self, pings: list[Any], num_returns: int = 1, timeout: float = 0.0) -> Any:
        times = sorted(0.0 if isinstance(p[1], Exception) else p[1] for p in pings)
        self.now = max(self.now, min(times[num_returns - 1], self.now + timeout))
        ready = [p for p in pings if isinstance(p[1], Exception) or p[1] <= self.now]
        return ready[:num_returns], [ping for ping in pings if ping not in ready]

    def get(self, ping: Any) -> Any:
        if isinstance(ping[1], Exception):
            raise ping[1]
        return "node"

    def kill(self, worker: StandIn, no_restart: bool = True) -> None:
        self.killed.append((worker.number, no_restart))

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def ray(monkeypatch) -> StandInRay:
    stand_in = StandInRay()
    monkeypatch.setattr(pool, "ray", stand_in)
    monkeypatch.setattr(pool, "time", stand_in)
    return stand_in


NEVER = 1e9


def pool_of(workers: int, **faults: Any) -> WorkerPool:
    experiment = from_tree({"workers": workers, "faults": {"start_timeout_s": 60, **faults}})
    return WorkerPool(StandIn, experiment)


def numbers(workers: list[Any]) -> list[int]:
    return [worker.number for worker in workers]


def test_the_first_time_all_are_waited_for_and_then_those_that_are_there(ray, caplog):
    ray.answers[1] = [NEVER]
    found = pool_of(3, start_timeout_s=300)
    assert numbers(found.ready(40)) == [0, 2]
    assert ray.now == pool.GATHER_SECONDS, "once one is ready, the others are not waited for long"
    assert caplog.messages == [
        "1 of 3 workers have not started yet; the run continues without them for now"
    ]
    assert numbers(found.ready(40)) == [0, 2]
    assert ray.now == pool.GATHER_SECONDS


def test_only_as_many_workers_are_waited_for_as_there_are_clients(ray, caplog):
    ray.answers[1], ray.answers[2] = [NEVER], [NEVER]
    assert numbers(pool_of(3).ready(1)) == [0]
    assert (ray.now, caplog.messages) == (0.0, [])


def test_while_none_is_ready_the_first_is_waited_for(ray):
    ray.answers[0], ray.answers[1] = [NEVER], [NEVER]
    with pytest.raises(RunFailed, match=r"no worker could be started .* 300 s .*start_timeout_s"):
        pool_of(2, start_timeout_s=300).ready(2)
    assert ray.now >= 300


def test_a_worker_that_cannot_be_reached_gets_no_calls_until_it_answers(ray):
    ray.answers[0] = [0.0, 20.0]
    found = pool_of(2)
    first, _ = found.ready(2)
    found.suspend(first)
    assert numbers(found.ready(2)) == [1]
    ray.now = 20.0
    assert numbers(found.ready(2)) == [0, 1]
    assert ray.killed == []


def test_the_only_worker_is_waited_for(ray):
    ray.answers[0] = [0.0, 20.0]
    found = pool_of(1)
    found.suspend(*found.ready(1))
    assert numbers(found.ready(1)) == [0]
    assert ray.now == 20.0


def test_a_worker_that_cannot_start_ends_the_run(ray):
    error = ActorDiedError()
    error.error_msg = "The actor died.\nValueError: no such device"
    ray.answers[0] = [error]
    with pytest.raises(RunFailed, match="a worker cannot start: ValueError: no such device"):
        pool_of(1).ready(1)
