"""The workers of one run or trial, which Ray restarts where there is room."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedray.base.errors import FedrayError, RunFailed, UserError
from fedray.config import Experiment
from fedray.runtime.cluster import LOOK_SECONDS, LOST, cause_of, nodes
from fedray.runtime.resources import preflight, worker_bundles

ROOM_SECONDS = 20.0
"""Time between two looks, while an actor does not answer, whether the nodes have room for it."""


def wait(ref: Any, seconds: float, check: Callable[[], object] = lambda: None) -> bool:
    """Wait until a reference is ready, and call `check` meanwhile; return False without it."""
    end = time.monotonic() + seconds
    while not ray.wait([ref], timeout=min(LOOK_SECONDS, seconds))[0]:
        check()
        if time.monotonic() > end:
            return False
    return True


def answer(
    ref: Any, experiment: Experiment, actor: str, check: Callable[[], object] = lambda: None
) -> Any:
    """Return the answer to an actor's call, which Ray repeats if the actor's process is lost.

    Raises:
        RunFailed: if it is lost too often, or the nodes that are left cannot hold the run.
        Exception: the error of the call, or of `check`, which is called while it is awaited.
    """
    try:
        while not wait(ref, ROOM_SECONDS, check):
            preflight(experiment, nodes())
    except UserError as error:
        raise RunFailed(str(error)) from error
    try:
        return ray.get(ref)
    except LOST as error:
        most = experiment.faults.max_failures
        raise RunFailed(
            f"{actor} was lost more than {most} time(s) (faults.max_failures): {cause_of(error)}"
        ) from error
    except RayTaskError as error:
        raise error.cause from (None if isinstance(error.cause, FedrayError) else error)


def restarts(experiment: Experiment) -> dict[str, int]:
    """Return the options of an actor that Ray restarts and calls again up to a number of times."""
    return {"max_restarts": experiment.faults.max_failures, "max_task_retries": -1}


class WorkerPool:
    """The workers of one run or trial.

    Args:
        actor: the class of the workers, `ray_executor.Worker`.
        experiment: defines the number of workers, and their CPU and GPU shares.
        group: the placement group of a trial. The workers get its last bundles, because Ray Tune
            omits an empty first bundle.

    Attributes:
        workers: the actors, started or not.
    """

    def __init__(self, actor: type, experiment: Experiment, group: Any = None) -> None:
        self._experiment = experiment
        self.workers: list[Any] = []
        for number, bundle in enumerate(worker_bundles(experiment)):
            share = bundle["CPU"], bundle.get("GPU", 0)
            place: dict[str, Any] = dict(zip(("num_cpus", "num_gpus"), share, strict=True))
            if group is not None:
                place["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                    group, len(group.bundle_specs) - experiment.workers + number
                )
            start = ray.remote(actor).options(**place, **restarts(experiment)).remote
            self.workers.append(start(experiment.threads, share[1]))
        self.begin(experiment)

    def begin(self, experiment: Experiment) -> None:
        """Let the workers check their devices and load an experiment's data."""
        text = experiment.model_dump_json(by_alias=True)
        self._starting = [worker.begin.remote(text) for worker in self.workers]

    def ready(self) -> list[Any]:
        """Return the workers, once all have started.

        Raises:
            RunFailed: if that takes longer than `faults.start_timeout_s`, or one cannot start.
            UserError: if a worker does not find its accelerator.
        """
        if count := len(self._starting):
            seconds = self._experiment.faults.start_timeout_s
            ready, missing = ray.wait(self._starting, num_returns=count, timeout=seconds)
            for ref in ready:
                self.answer(ref)
            if missing:
                raise RunFailed(
                    f"{len(missing)} of {count} workers could not be started within "
                    f"{seconds:g} s (faults.start_timeout_s); start another node, or lower workers"
                )
            self._starting = []
        return self.workers

    def answer(self, ref: Any) -> Any:
        """Return the answer to a worker's call; see `answer`."""
        return answer(ref, self._experiment, "a worker")

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []
