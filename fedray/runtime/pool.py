"""The workers of one run or trial: started, waited for, replaced, ended."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedray.config import Experiment
from fedray.errors import RunFailed
from fedray.runtime.deaths import DEATHS, raise_if_unstartable
from fedray.runtime.resources import worker_bundles
from fedray.runtime.worker import Worker

log = logging.getLogger(__name__)

NOTICES_SECONDS = 5.0


class WorkerPool:
    """The workers of one run or trial.

    Args:
        experiment: says how many, and their CPU and GPU shares.
        group: the placement group of a trial, whose bundles the workers are placed in.
        first_bundle: the bundle of the first worker.

    Attributes:
        workers: those that calls may be given to; fewer than asked for once there is no room.
    """

    def __init__(self, experiment: Experiment, group: Any = None, first_bundle: int = 0) -> None:
        self._experiment = experiment
        self._group = group
        self._first_bundle = first_bundle
        self._bundles = worker_bundles(experiment)
        self._starting: list[Any] = []
        self._place: dict[Any, int] = {}
        self.workers: list[Any] = []
        for index in range(experiment.workers):
            self._start(index)

    def replace(self, worker: Any) -> None:
        """End a worker, with every call it was given, and start another in its place."""
        ray.kill(worker)
        self.workers.remove(worker)
        self._start(self._place.pop(worker))

    def wait(self) -> None:
        """Wait for the workers that are being started; do without those that find no place.

        Raises:
            RunFailed: when none is left, or one cannot start.
        """
        started = [worker for worker in self._starting if worker in self.workers]
        self._starting = []
        if not started:
            return
        seconds = self._experiment.faults.start_timeout_s
        pings = {worker.peak_rss.remote(): worker for worker in started}
        ready, pending = ray.wait(list(pings), num_returns=len(pings), timeout=seconds)
        for ping in pending:
            log.warning("a worker found no place within %g s; going on without it", seconds)
            ray.kill(pings[ping])
            self.workers.remove(pings[ping])
        if not self.workers:
            raise RunFailed(
                f"no node had room for a worker within {seconds:g} s (faults.start_timeout_s); "
                "start another node, or lower cpus or gpus"
            )
        for ping in ready:
            _check_start(ping)

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
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []

    def _start(self, index: int) -> None:
        bundle = self._bundles[index]
        options: dict[str, Any] = {
            "num_cpus": bundle.get("CPU", 0),
            "num_gpus": bundle.get("GPU", 0),
        }
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=self._first_bundle + index
            )
        actor = ray.remote(Worker).options(**options)
        worker = actor.remote(self._experiment.threads, bundle.get("GPU", 0))
        self.workers.append(worker)
        self._starting.append(worker)
        self._place[worker] = index


def _check_start(ping: Any) -> None:
    """Find out why a worker did not start; one that died since is found by its next call.

    Raises:
        RunFailed: when its start raised an error.
    """
    try:
        ray.get(ping)
    except DEATHS as error:
        raise_if_unstartable(error)
