"""What a trial leaves to the next one in its process: workers, and surroundings as they were.

Ray Tune lets a trial's actor, with its placement group, go on to the next trial that asks for the
same resources. The libraries that the process has imported stay, and so does what runs share
(`runtime.cache`); here are the workers. Whatever else a trial changed is set back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedray.config import Experiment
    from fedray.runtime.isolation import Surroundings
    from fedray.runtime.pool import WorkerPool


class WarmProcess:
    """The one of a process: at most one pool of workers, used by one trial at a time."""

    def __init__(self) -> None:
        self._pool: WorkerPool | None = None
        self._fits: Any = None
        self._surroundings: Surroundings | None = None

    @contextmanager
    def trial(self, experiment: Experiment) -> Iterator[WorkerPool]:
        """The workers for a trial: those of the trial before, where they fit.

        The process's surroundings are afterwards what they were before the first trial. A trial
        that raises an error leaves nothing to the next. One that is stopped between two rounds
        (ASHA, by closing the generator that uses this) does.

        Args:
            experiment: says what workers it needs.
        """
        import torch

        from fedray.runtime.isolation import Surroundings

        if self._surroundings is None:
            self._surroundings = Surroundings(torch.device("cpu"))
        with self._surroundings.kept():
            torch.set_num_threads(experiment.threads)
            try:
                yield self._workers(experiment)
            except Exception:
                self.close()
                raise

    def close(self) -> None:
        """End the workers and forget what runs share."""
        from fedray.runtime.cache import shared

        if self._pool is not None:
            self._pool.close()
        self._pool = self._fits = None
        shared.clear()

    def _workers(self, experiment: Experiment) -> WorkerPool:
        from ray.util import get_current_placement_group

        from fedray.runtime.pool import WorkerPool
        from fedray.runtime.resources import first_worker_bundle, worker_bundles

        group, first = get_current_placement_group(), first_worker_bundle(experiment)
        place = None if group is None else group.id.hex()
        fits = (place, first, worker_bundles(experiment), experiment.threads, experiment.faults)
        if self._pool is None or fits != self._fits:
            if self._pool is not None:
                self._pool.close()
            self._pool = WorkerPool(experiment, group=group, first_bundle=first)
            self._fits = fits
        return self._pool


warm = WarmProcess()
"""This process's."""
