"""Workers that a run leaves to the next run in its process.

Ray Tune reuses a trial's actor and placement group for the next trial with the same resources. The
process keeps its imported libraries and the shared cache (`runtime.cache`); this module keeps its
workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from fedray.config import Experiment
    from fedray.federation import Executor
    from fedray.runtime.assembly import Assembly
    from fedray.runtime.pool import WorkerPool

    MakeExecutor: TypeAlias = Callable[[Assembly], Executor]


class WarmProcess:
    """The worker pool of a process, reused by consecutive runs; at most one pool exists."""

    def __init__(self) -> None:
        self._pool: WorkerPool | None = None
        self._fits: Any = None

    @contextmanager
    def executor(self, experiment: Experiment) -> Iterator[MakeExecutor]:
        """Yield a factory of a run's executor, on the workers of the previous run if they fit.

        A single CPU worker would only alternate with the trial's own process, so that process runs
        the client steps itself.

        The workers end if the run raises an error. They stay if ASHA stops the run between two
        rounds by closing the generator.
        """
        import torch

        torch.set_num_threads(experiment.threads)
        try:
            yield self._executor(experiment)
        except Exception:
            self.close()
            raise

    def _executor(self, experiment: Experiment) -> MakeExecutor:
        import torch

        from fedray.runtime.ray_executor import RayExecutor
        from fedray.runtime.serial import SerialExecutor

        if runs_in_process(experiment):
            self._end_workers()
            return lambda assembly: SerialExecutor(assembly, torch.device("cpu"))
        pool = self._workers(experiment)
        return lambda assembly: RayExecutor(assembly, pool)

    def close(self) -> None:
        """End the workers and clear the shared cache."""
        from fedray.runtime.cache import shared

        self._end_workers()
        shared.clear()

    def _end_workers(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = self._fits = None

    def _workers(self, experiment: Experiment) -> WorkerPool:
        from ray.util import get_current_placement_group

        from fedray.runtime.resources import worker_bundles

        group = get_current_placement_group()
        place = None if group is None else group.id.hex()
        fits = (place, worker_bundles(experiment), experiment.threads, experiment.faults)
        if self._pool is None or fits != self._fits:
            self._end_workers()
            self._pool, self._fits = pool_of(experiment), fits
        else:
            self._pool.begin(experiment)
        return self._pool


def pool_of(experiment: Experiment) -> WorkerPool:
    """Start a trial's workers, each in its own bundle of the trial's placement group."""
    from ray.util import get_current_placement_group

    from fedray.runtime.pool import WorkerPool
    from fedray.runtime.ray_executor import Worker

    return WorkerPool(Worker, experiment, get_current_placement_group())


def runs_in_process(experiment: Experiment) -> bool:
    """Return True if a trial's own process runs the client steps."""
    return experiment.workers == 1 and experiment.gpus == 0


warm = WarmProcess()
"""The worker pool of this process."""
