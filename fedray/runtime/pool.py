"""The workers of one run or trial: started, waited for, replaced, ended.

Nodes come and go. A worker that cannot be reached gets no calls until it answers again; one that
is dead is started anew wherever there is room, now or later; meanwhile the others go on.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedray.config import Experiment
from fedray.errors import RunFailed
from fedray.runtime.cluster import draining_nodes
from fedray.runtime.deaths import (
    DEATHS,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    first_line,
    raise_if_unstartable,
)
from fedray.runtime.resources import worker_bundles
from fedray.runtime.worker import Worker

log = logging.getLogger(__name__)

NOTICES_SECONDS = 5.0
GATHER_SECONDS = 30.0
"""How long a run that begins waits for further workers once one is ready."""
DRAIN_SECONDS = 5.0
"""How often is asked which nodes are about to go."""


class NoRoom(RunFailed):
    """No node has room for any worker: nothing is wrong with the run, and later there may be."""


@dataclass
class _Awaited:
    """A worker that gets no calls yet: it is to be started, starts, or could not be reached.

    Attributes:
        worker: None until it is started.
        ping: the call whose answer is waited for; None until it is due.
        due: when to start the worker, or to call it; of `time.monotonic`.
        pause: seconds until the next try.
        since: when it was first awaited.
        is_late: whether it has been said that it is awaited for long.
    """

    worker: Any = None
    ping: Any = None
    due: float = 0.0
    pause: float = FIRST_PAUSE
    since: float = field(default_factory=lambda: time.monotonic())
    is_late: bool = False

    def again(self, *, anew: bool) -> None:
        """Try again after a pause: with another worker, or with the same one."""
        self.worker = None if anew else self.worker
        self.ping, self.due = None, time.monotonic() + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE)


class WorkerPool:
    """The workers of one run or trial.

    Args:
        experiment: says how many, and their CPU and GPU shares.
        group: the placement group of a trial, whose bundles the workers are placed in.
        first_bundle: the bundle of the first worker.

    Attributes:
        workers: those that calls may be given to: all that were started until `wait` has been
            called, then fewer while some have no room or cannot be reached.
    """

    def __init__(self, experiment: Experiment, group: Any = None, first_bundle: int = 0) -> None:
        self._experiment = experiment
        self._group = group
        self._first_bundle = first_bundle
        self._bundles = worker_bundles(experiment)
        self._awaited = {place: _Awaited() for place in range(experiment.workers)}
        self._place: dict[Any, int] = {}
        self._node: dict[Any, str] = {}
        self._has_begun = False
        self._asked_for_drains = 0.0
        self._last_error: Exception | None = None
        self.workers: list[Any] = []
        for place, awaited in self._awaited.items():
            self._call(place)
            self.workers.append(awaited.worker)

    def replace(self, worker: Any) -> None:
        """End a worker, with every call it was given, and start another in its place."""
        place = self._place[worker]
        self._let_go(worker)
        if place not in self._awaited:
            self._awaited[place] = _Awaited()
            self._call(place)

    def doubt(self, worker: Any) -> None:
        """Give a worker that cannot be reached no calls until it answers again."""
        place = self._place[worker]
        if place in self._awaited:  # its successor starts already
            self._let_go(worker)
            return
        self.workers.remove(worker)
        self._awaited[place] = _Awaited(worker)
        self._call(place)

    def wait(self) -> None:
        """Take in the workers that have started, or answer again.

        The first time it waits for all of them, but no longer than `GATHER_SECONDS` once one is
        ready; later it waits only while there is none.

        Raises:
            NoRoom: when there is none within `faults.start_timeout_s`.
            RunFailed: when one cannot start.
        """
        seconds = self._experiment.faults.start_timeout_s
        until = time.monotonic() + seconds
        gathers = False
        while self._awaited and not (self.workers and self._has_begun):
            if not gathers and len(self._awaited) < self._experiment.workers:
                gathers, seconds = True, min(seconds, GATHER_SECONDS)
                until = min(until, time.monotonic() + seconds)
            left = until - time.monotonic()
            if left <= 0:
                break
            self._look(left)
        if self._awaited:
            self._look(0.0)
            self._say_who_is_late(seconds)
        if not self._has_begun:
            self.workers = [each for each in self.workers if self._place[each] not in self._awaited]
        self._has_begun = True
        if not self.workers:
            raise self._no_room(seconds)
        self._leave_draining_nodes()

    def node_of(self, worker: Any) -> str:
        """The id of a worker's node; "" of one that has not said it."""
        return self._node.get(worker, "")

    def notices(self) -> list[str]:
        """What the workers have said, in their order; one that does not answer is left out."""
        asked = [worker.notices.remote() for worker in self.workers]
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=NOTICES_SECONDS)
        said: list[str] = []
        for ref in asked:
            with suppress(RayError):
                said += ray.get(ref) if ref in answered else []
        return said

    def look_at(self, experiment: Experiment) -> None:
        """Have the workers read an experiment's data while the caller gets ready itself."""
        asked = experiment.model_dump_json(by_alias=True)
        for worker in self.workers:
            worker.look_at.remote(asked)

    def forget(self, experiment: str) -> None:
        """Have the workers drop what they made for an experiment that is over.

        Args:
            experiment: the experiment as the workers were handed it.
        """
        for worker in self.workers:
            worker.forget.remote(experiment)

    def close(self) -> None:
        """End the workers."""
        for worker in self._place:
            ray.kill(worker)
        self.workers = []
        self._awaited.clear()
        self._place.clear()

    def _look(self, seconds: float) -> None:
        """Make the calls that are due, and take in who answers within so many seconds."""
        now = time.monotonic()
        for place, awaited in self._awaited.items():
            if awaited.ping is None and awaited.due <= now:
                self._call(place)
        pings = {each.ping: place for place, each in self._awaited.items() if each.ping is not None}
        due = [each.due - now for each in self._awaited.values() if each.ping is None]
        seconds = max(0.0, min([seconds, *due]))
        if not pings:
            time.sleep(seconds)
            return
        ready, _ = ray.wait(list(pings), num_returns=1, timeout=seconds)
        for ping in ready:
            self._take_in(pings[ping], ping)

    def _take_in(self, place: int, ping: Any) -> None:
        """Give calls to a worker that has answered; try again with one that has not.

        Raises:
            RunFailed: when its start raised an error.
        """
        awaited = self._awaited[place]
        try:
            node = ray.get(ping)
        except DEATHS as error:
            raise_if_unstartable(error)
            self._last_error = error
            patience = self._experiment.faults.start_timeout_s
            is_dead = not isinstance(error, ActorUnavailableError)
            anew = is_dead or time.monotonic() - awaited.since > patience
            if anew:
                self._let_go(awaited.worker)
            awaited.again(anew=anew)
            return
        del self._awaited[place]
        same = [each for each in self.workers if self._place[each] == place]
        for predecessor in same:
            if predecessor is not awaited.worker:
                self._let_go(predecessor)
        self._node[awaited.worker] = node
        self._last_error = None
        if awaited.worker not in same:
            self.workers.append(awaited.worker)
            self.workers.sort(key=lambda each: self._place[each])

    def _no_room(self, seconds: float) -> NoRoom:
        within = f"within {seconds:g} s (faults.start_timeout_s)"
        if self._last_error is None:
            what = f"no node had room for a worker {within}"
        else:
            what = f"no worker could be reached {within}: {first_line(self._last_error)}"
        return NoRoom(f"{what}; start another node, or lower cpus or gpus")

    def _call(self, place: int) -> None:
        """Call the worker that is awaited in a place; start it first where there is none."""
        awaited = self._awaited[place]
        if awaited.worker is None:
            awaited.worker = self._start(place)
        awaited.ping = awaited.worker.node.remote()

    def _let_go(self, worker: Any) -> None:
        ray.kill(worker)
        self._place.pop(worker, None)
        self._node.pop(worker, None)
        if worker in self.workers:
            self.workers.remove(worker)

    def _start(self, place: int) -> Any:
        bundle = self._bundles[place]
        options: dict[str, Any] = {
            "num_cpus": bundle.get("CPU", 0),
            "num_gpus": bundle.get("GPU", 0),
        }
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=self._first_bundle + place
            )
        actor = ray.remote(Worker).options(**options)
        worker = actor.remote(self._experiment.threads, bundle.get("GPU", 0))
        self._place[worker] = place
        return worker

    def _say_who_is_late(self, seconds: float) -> None:
        for awaited in self._awaited.values():
            if not awaited.is_late and time.monotonic() - awaited.since >= seconds:
                awaited.is_late = True
                log.warning(
                    "a worker found no place within %g s; going on without it until it does",
                    seconds,
                )

    def _leave_draining_nodes(self) -> None:
        """Start successors of the workers whose nodes are about to go; they work on until then."""
        now = time.monotonic()
        if now - self._asked_for_drains < DRAIN_SECONDS:
            return
        self._asked_for_drains = now
        draining = draining_nodes()
        for worker in self.workers:
            place = self._place[worker]
            if self._node[worker] in draining and place not in self._awaited:
                self._awaited[place] = _Awaited()
                self._call(place)
