"""The Ray workers of one run or trial.

Ray restarts a worker whose process or node is lost, on any node with room. Until that worker
answers, the others run its clients' steps.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fedray.config import Experiment
from fedray.errors import RunFailed, one_line
from fedray.runtime.resources import worker_bundles

log = logging.getLogger(__name__)

GATHER_SECONDS = 30.0
"""How long a new run waits for further workers once one is ready."""


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
        self._start_timeout = experiment.faults.start_timeout_s
        self._nodes: dict[Any, str] = {}
        self._pings: dict[Any, Any] = {}
        self._has_begun = False
        self.workers: list[Any] = []
        for number, bundle in enumerate(worker_bundles(experiment)):
            options: dict[str, Any] = {
                "num_cpus": bundle.get("CPU", 0),
                "num_gpus": bundle.get("GPU", 0),
                "max_restarts": -1,
            }
            if group is not None:
                options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                    group,
                    placement_group_bundle_index=len(group.bundle_specs)
                    - experiment.workers
                    + number,
                )
            start = ray.remote(actor).options(**options).remote
            worker = start(experiment.threads, bundle.get("GPU", 0), number)
            self.workers.append(worker)
            self.suspend(worker)

    def ready(self, needed: int) -> list[Any]:
        """Return the workers that answer, in their order.

        At the first call, wait for `needed` workers, but no longer than `GATHER_SECONDS` once one
        answers. Later calls wait only while no worker answers.

        Raises:
            RunFailed: if no worker answers within `faults.start_timeout_s`, or one cannot start.
            UserError: if a worker does not find its accelerator.
        """
        needed = 1 if self._has_begun else min(needed, len(self.workers))
        deadline = time.monotonic() + self._start_timeout
        is_gathering = False
        self._collect(0.0)
        while (
            len(ready := [worker for worker in self.workers if worker not in self._pings]) < needed
        ):
            if ready and not is_gathering:
                is_gathering, deadline = True, min(deadline, time.monotonic() + GATHER_SECONDS)
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            self._collect(remaining)
        if not ready:
            raise RunFailed(
                f"no worker could be started or reached within {self._start_timeout:g} s "
                "(faults.start_timeout_s); start another node, or lower cpus or gpus"
            )
        if len(ready) < needed:
            log.warning(
                "%d of %d workers have not started yet; the run continues without them for now",
                len(self.workers) - len(ready),
                len(self.workers),
            )
        self._has_begun = True
        return ready

    def suspend(self, worker: Any) -> None:
        """Send a worker no calls until it answers: it is starting, or a call to it was lost."""
        self._pings[worker] = worker.node.options(max_task_retries=-1).remote()

    def node_of(self, worker: Any) -> str:
        """Return the id of the node of a worker that has answered."""
        return self._nodes[worker]

    def prefetch(self, experiment: Experiment) -> None:
        """Let the workers load an experiment's data in the background."""
        text = experiment.model_dump_json(by_alias=True)
        for worker in self.workers:
            worker.prefetch.remote(text)

    def forget(self, experiment: str) -> None:
        """Let the workers free the objects of an experiment, which is given as JSON."""
        for worker in self.workers:
            worker.forget.remote(experiment)

    def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            ray.kill(worker)
        self.workers = []
        self._pings.clear()

    def _collect(self, seconds: float) -> None:
        """Wait at most `seconds` for a suspended worker to answer; resume those that answered."""
        refs = list(self._pings.values())
        if not refs or not ray.wait(refs, timeout=seconds)[0]:
            return
        answered, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        for worker, ref in list(self._pings.items()):
            if ref in answered:
                try:
                    self._nodes[worker] = ray.get(ref)
                except RayTaskError as error:
                    raise error.cause from None
                except RayActorError as error:
                    reason = str(error).strip().splitlines()[-1]
                    raise RunFailed(f"a worker cannot start: {one_line(reason)}") from error
                del self._pings[worker]
