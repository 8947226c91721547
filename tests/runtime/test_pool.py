"""Workers that start late, cannot be reached, die, or stand on a node that is about to go."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from fedray.errors import RunFailed
from fedray.runtime import deaths, pool
from fedray.runtime.deaths import Patience, is_outage
from fedray.runtime.pool import NoRoom, WorkerPool
from fedray.runtime.resolve import from_tree

NOT_YET = object()
UNREACHABLE = ActorUnavailableError("no answer", None)
DEAD = ActorDiedError()


class StandIn:
    """A worker; what its pings give is `answers`, the last of them again and again."""

    def __init__(self, number: int, answers: list[Any]) -> None:
        self.number = number
        self.answers = answers
        self.node = self

    def remote(self) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return (self, answer, object())

    def __repr__(self) -> str:
        return f"worker {self.number}"


class StandInRay:
    """Ray and the time: whoever waits for nothing lets it pass.

    Attributes:
        answers: what the pings of the n-th worker to be started give.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.answers: dict[int, list[Any]] = defaultdict(lambda: ["node"])
        self.started: list[StandIn] = []
        self.killed: list[StandIn] = []
        self.draining: set[str] = set()
        self.pauses: list[float] = []

    def remote(self, *given: Any) -> Any:
        """ray.remote(Worker), its options, and the start, in one."""
        if isinstance(given[0], type):
            return self
        number = len(self.started)
        self.started.append(StandIn(number, list(self.answers[number])))
        return self.started[-1]

    def options(self, **options: Any) -> StandInRay:
        return self

    def wait(self, pings: list[Any], num_returns: int, timeout: float) -> Any:
        ready = [ping for ping in pings if ping[1] is not NOT_YET][:1]
        if not ready:
            self.now += timeout
        return ready, [ping for ping in pings if ping not in ready]

    def get(self, ping: Any) -> Any:
        if isinstance(ping[1], Exception):
            raise ping[1]
        return ping[1]

    def kill(self, worker: StandIn) -> None:
        self.killed.append(worker)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def ray(monkeypatch) -> StandInRay:
    stand_in = StandInRay()
    for module in (pool, deaths):
        monkeypatch.setattr(module, "ray", stand_in)
        monkeypatch.setattr(module, "time", stand_in)
    monkeypatch.setattr(pool, "draining_nodes", lambda: stand_in.draining)
    return stand_in


def pool_of(workers: int, **faults: Any) -> WorkerPool:
    return WorkerPool(from_tree({"workers": workers, "faults": {"start_timeout_s": 60, **faults}}))


def numbers(found: WorkerPool) -> list[int]:
    return [worker.number for worker in found.workers]


def test_the_first_time_all_are_waited_for_and_then_those_that_are_there(ray, caplog):
    ray.answers[1] = [NOT_YET]
    found = pool_of(3, start_timeout_s=300)
    found.wait()
    assert numbers(found) == [0, 2]
    assert ray.now == pool.GATHER_SECONDS, "once one is ready, the others are not waited for long"
    assert caplog.messages == [
        "a worker found no place within 30 s; going on without it until it does"
    ]
    before = ray.now
    found.replace(found.workers[0])
    found.wait()
    assert ray.now == before
    assert numbers(found) == [3, 2]
    assert len(caplog.messages) == 1


def test_while_none_is_ready_the_first_is_waited_for(ray):
    ray.answers[0] = ray.answers[1] = [NOT_YET]
    with pytest.raises(NoRoom, match="within 300 s"):
        pool_of(2, start_timeout_s=300).wait()
    assert ray.now >= 300


def test_no_room_at_all_is_said(ray):
    ray.answers[0] = [NOT_YET]
    with pytest.raises(NoRoom, match=r"no node had room for a worker within 60 s"):
        pool_of(1).wait()


def test_a_worker_that_cannot_be_reached_gets_no_calls_until_it_answers(ray):
    ray.answers[0] = ["node", UNREACHABLE, UNREACHABLE, UNREACHABLE, "node"]
    found = pool_of(2)
    found.wait()
    found.doubt(found.workers[0])
    assert numbers(found) == [1]
    for _ in range(3):
        found.wait()
        assert numbers(found) == [1]
        ray.now += 11
    found.wait()
    assert numbers(found) == [0, 1]
    assert ray.killed == []


def test_who_is_alone_is_waited_for_with_growing_pauses(ray):
    ray.answers[0] = ["node", *[UNREACHABLE] * 8, "node"]
    found = pool_of(1)
    found.wait()
    found.doubt(found.workers[0])
    found.wait()
    assert numbers(found) == [0]
    assert ray.pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0])


def test_who_cannot_be_reached_for_long_is_given_up_for_another(ray):
    ray.answers[0] = ["node", UNREACHABLE]
    found = pool_of(2)
    found.wait()
    found.doubt(found.workers[0])
    for _ in range(8):
        ray.now += 11
        found.wait()
    assert numbers(found) == [2, 1]
    assert [worker.number for worker in ray.killed] == [0]


def test_a_worker_that_is_dead_is_started_anew(ray):
    ray.answers[0] = ["node", UNREACHABLE, DEAD]
    ray.answers[1] = [DEAD]
    found = pool_of(1)
    found.wait()
    found.doubt(found.workers[0])
    found.wait()
    assert numbers(found) == [2]
    found.close()
    assert [worker.number for worker in ray.killed] == [0, 1, 2]


def test_nobody_for_too_long_is_said_with_the_last_error(ray):
    ray.answers[0] = ["node", UNREACHABLE]
    ray.answers[1] = [UNREACHABLE]
    found = pool_of(1)
    found.wait()
    found.doubt(found.workers[0])
    with pytest.raises(RunFailed, match=r"reached within 60 s .*: The actor None is unavailable"):
        found.wait()


def test_a_node_that_is_about_to_go_is_left_for_another(ray):
    ray.answers[0], ray.answers[1] = ["going"], ["staying"]
    ray.answers[2] = [NOT_YET]
    found = pool_of(2)
    ray.draining = {"going"}
    ray.now = 10.0
    found.wait()
    assert numbers(found) == [0, 1], "it works on until its successor is there"
    assert len(ray.started) == 3
    ray.now += 10
    found.wait()
    assert len(ray.started) == 3
    found._awaited[0].ping = (ray.started[2], "staying", object())
    found.wait()
    assert numbers(found) == [2, 1]
    assert [worker.number for worker in ray.killed] == [0]


def test_a_worker_that_dies_before_its_successor_is_there(ray):
    ray.answers[0], ray.answers[2] = ["going"], [NOT_YET]
    found = pool_of(2)
    ray.draining, ray.now = {"going"}, 10.0
    found.wait()
    found.doubt(found.workers[0])
    assert numbers(found) == [1]
    assert [worker.number for worker in ray.killed] == [0]
    assert len(ray.started) == 3


# --- deaths and outages --------------------------------------------------------------------------


class Preempted(ActorDiedError):
    preempted = True


def test_what_is_a_death_and_what_an_outage():
    gone = ActorDiedError()
    gone.error_msg = "The actor died because its node has died. Node Id: 12"
    assert is_outage(UNREACHABLE)
    assert is_outage(gone)
    assert is_outage(Preempted())
    assert not is_outage(DEAD)
    assert not is_outage(TimeoutError("no answer"))


def test_deaths_are_counted_for_each_and_outages_by_their_time(ray):
    patience = Patience(deaths=1, seconds=60)
    assert not patience.is_used_up(DEAD, [1, 2])
    assert not patience.is_used_up(DEAD, [3])
    for _ in range(50):
        assert not patience.is_used_up(UNREACHABLE, [1])
    ray.now = 59.0
    assert not patience.is_used_up(UNREACHABLE, [1])
    patience.success()
    ray.now = 118.0
    assert not patience.is_used_up(UNREACHABLE, [1])
    ray.now = 179.0
    assert patience.is_used_up(UNREACHABLE, [1])
    assert patience.is_used_up(DEAD, [2])
    assert patience.deaths == 2


def test_the_pauses_between_tries_grow(ray):
    patience = Patience(deaths=0, seconds=600)
    patience.pause()
    assert ray.pauses == []
    patience.is_used_up(UNREACHABLE)
    for _ in range(9):
        patience.pause()
    assert ray.pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0])
    patience.success()
    patience.pause()
    assert len(ray.pauses) == 9
