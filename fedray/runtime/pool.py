"""The workers of one run or trial, which Ray restarts where there is room."""

from __future__ import annotations

from typing import Any

import ray
from ray.exceptions import RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedray.config import Experiment
from fedray.errors import FedrayError, RunFailed
from fedray.runtime.cluster import nodes
from fedray.runtime.liveness import LOST, cause_of
from fedray.runtime.resources import preflight, worker_bundles

LOOK_SECONDS = 20.0
"""Between two looks, while a worker does not answer, whether the cluster still has room for all."""


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
        self._experiment, self._has_started = experiment, False
        self.workers: list[Any] = []
        most = experiment.faults.max_failures
        for number, bundle in enumerate(worker_bundles(experiment)):
            options: dict[str, Any] = {
                "num_cpus": bundle.get("CPU", 0),
                "num_gpus": bundle.get("GPU", 0),
                "max_restarts": most,
                "max_task_retries": most,
            }
            if group is not None:
                first = len(group.bundle_specs) - experiment.workers
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=first + number
                )
            start = ray.remote(actor).options(**options).remote
            self.workers.append(start(experiment.threads, bundle.get("GPU", 0), number))

    def ready(self) -> list[Any]:
        """Return the workers, once all have started.

        Raises:
            RunFailed: if that takes longer than `faults.start_timeout_s`, or one cannot start.
            UserError: if a worker does not find its accelerator.
        """
        if not self._has_started:
            seconds = self._experiment.faults.start_timeout_s
            started = [worker.check_device.remote() for worker in self.workers]
            ready, missing = ray.wait(started, num_returns=len(started), timeout=seconds)
            for ref in ready:
                self.answer(ref)
            if missing:
                raise RunFailed(
                    f"{len(missing)} of {len(started)} workers could not be started within "
                    f"{seconds:g} s (faults.start_timeout_s); start another node, or lower workers"
                )
            self._has_started = True
        return self.workers

    def answer(self, ref: Any) -> Any:
        """Return the answer of a worker's call, which Ray repeats if the worker is lost.

        Raises:
            RunFailed: if it is lost too often.
            UserError: if the nodes that are left cannot hold the workers.
        """
        while not ray.wait([ref], timeout=LOOK_SECONDS)[0]:
            preflight(self._experiment, nodes())
        try:
            return ray.get(ref)
        except LOST as error:
            most = self._experiment.faults.max_failures
            raise RunFailed(
                f"a worker was lost more than {most} time(s) (faults.max_failures): "
                f"{cause_of(error)}"
            ) from error
        except RayTaskError as error:
            raise error.cause from (None if isinstance(error.cause, FedrayError) else error)

    def prefetch(self, experiment: Experiment) -> None:
        """Let the workers load an experiment's data in the background."""
        text = experiment.model_dump_json(by_alias=True)
        for worker in self.workers:
            worker.prefetch.remote(text)

    def forget(self, experiment: str) -> None:
        """Let the workers free the objects of an experiment, which is given as JSON."""
        done = [worker.forget.remote(experiment) for worker in self.workers]
        ray.wait(done, num_returns=len(done), timeout=1.0)

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []
