"""A federated run as a Trainable of Ray Tune: for sweeps, tables, and the user's own `Tuner`.

A step is a round. The run lies in the store, in a folder named by its content, so a trial of a
finished run ends at once, and one of an interrupted run continues from its checkpoint. With
`reuse_actors=True` the next trial keeps the process with its libraries, shared cache and workers.

The trial's actor is the federation's server, and also its worker if a single CPU worker suffices.
Other workers use the bundles of the trial's placement group.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from filelock import FileLock
from ray import tune
from ray.util import get_current_placement_group

from fedray.base.errors import CodeError, Failure, FedrayError, RunFailed
from fedray.config import Experiment, Tree, read_plugins, received_experiment
from fedray.config.plugins import allow, use
from fedray.results.design import Config
from fedray.results.record import DIVERGED
from fedray.runtime.resources import trial_bundles, worker_bundles
from fedray.storage.metric import Metric, find_metric
from fedray.storage.run import Round
from fedray.storage.run_folder import RunFolder
from fedray.storage.states import StateStore
from fedray.studies.plan import known_metrics, store_key
from fedray.studies.store import TRIAL_LOCK, chosen_round

if TYPE_CHECKING:
    from fedray.federation import Executor
    from fedray.runtime.assembly import Assembly
    from fedray.runtime.pool import WorkerPool


@dataclass(frozen=True)
class Task:
    """What all trials of a `Tuner` share.

    Attributes:
        experiment: returns the experiment of a trial's config.
        chooser: returns the metric that chooses the round of a trial's run.
        store: the folder of all runs.
        at: whether the chosen round is the best or the last one.
        plugins: plug-ins with their sources.
        stopped: keys of runs that a scheduler has stopped and that stay so.
    """

    experiment: Callable[[Config], Experiment]
    chooser: Callable[[Config], str]
    store: Path
    at: Literal["best", "final"] = "best"
    plugins: Sequence[Tree] = ()
    stopped: frozenset[str] = frozenset()


def trainable_of(task: Task) -> type[tune.Trainable]:
    """Return the class of a task's trials, as `tune.Tuner` takes it."""
    return type("Run", (FederatedRun,), {"task": task})


class FederatedRun(tune.Trainable):  # type: ignore[misc]
    """One run in the store.

    A report holds the metrics of the round chosen so far under their names, those of this round
    under `round/`, and `round`, `best_round` and `folder`. A run that failed, and would fail again,
    reports `failed`, the reason; its metric that chooses is then NaN. If processes died, the error
    is raised, so that Ray Tune can begin the trial again.
    """

    task: ClassVar[Task]

    @classmethod
    def default_resource_request(cls, config: Config) -> tune.PlacementGroupFactory:
        """Return the bundles of the run's server and workers."""
        return tune.PlacementGroupFactory(trial_bundles(cls.task.experiment(dict(config))))

    def setup(self, config: Config) -> None:
        """Begin the first run of this process."""
        os.chdir(os.environ.get("TUNE_ORIG_WORKING_DIR", "."))  # Ray Tune leaves it on a cluster
        self._pool: WorkerPool | None = None
        self._fits: Any = None
        self._begin(config)

    def reset_config(self, new_config: Config) -> bool:
        """Leave the run of this process, and begin another one."""
        self._steps.close()
        self._begin(new_config)
        return True

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Return the run's folder, which holds its checkpoint."""
        return {"folder": self._last.get("folder")}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Do nothing: the next step continues from the run's folder."""

    def cleanup(self) -> None:
        """Leave the run, end the workers and clear the shared cache."""
        from fedray.runtime.assembly import forget_shared

        self._steps.close()
        self._end_workers()
        forget_shared()

    def _begin(self, config: Config) -> None:
        self._last: dict[str, Any] = {"round": 0}
        self._chooser = Metric(self.task.chooser(config))
        self._steps = self._run(config)

    def step(self) -> dict[str, Any]:
        """Run one round, and return its report."""
        try:
            self._last = next(self._steps)
        except (Exception, SystemExit) as error:  # a plug-in may call sys.exit()
            self._end_workers()
            if isinstance(error, RunFailed):
                raise
            if "folder" in self._last and not isinstance(error, CodeError):  # which is kept
                RunFolder(Path(self._last["folder"])).keep_error(Failure.of(error).traceback)
            reason = reason_of(error)
            self._last |= {self._chooser.name: math.nan, "failed": reason, "done": True}
        return {"training_iteration": max(self._last["round"], 1), **self._last}

    def _run(self, config: Config) -> Generator[dict[str, Any], None, None]:
        """Run or continue the experiment of a config in its folder; yield the reports."""
        began, plugins = time.time(), read_plugins(self.task.plugins)
        allow(plugins)
        use(plugins)
        found = self.task.experiment(dict(config))
        experiment = received_experiment(found.model_dump_json(by_alias=True))
        self._chooser = find_metric(self._chooser.name, known_metrics()) or self._chooser
        folder = RunFolder(self.task.store / store_key(experiment))
        self._last["folder"] = str(folder.path)
        folder.path.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.path / TRIAL_LOCK):  # another study may have begun the same run
            done = list(folder.rounds())
            if not folder.is_finished and folder.path.name not in self.task.stopped:
                done = yield from self._train(experiment, folder, done, began)
                StateStore(folder.states).clear()  # a finished run is not resumed
        yield {**self._report(done), "done": True}

    def _train(
        self, experiment: Experiment, folder: RunFolder, done: list[Round], began: float
    ) -> Generator[dict[str, Any], None, list[Round]]:
        """Yield the reports of the rounds but for the last one; return all rounds."""
        from fedray.runtime.session import Session

        executor = self._executor(experiment)
        session = Session(experiment, folder.path, executor, began, "none")
        with closing(session.rounds()) as rounds:
            for last in rounds:
                done = [*(earlier for earlier in done if earlier.round < last.round), last]
                if 0 < last.round < experiment.rounds:
                    yield self._report(done)
        return done

    def _report(self, done: Sequence[Round]) -> dict[str, Any]:
        """Return the report after the rounds in `done`."""
        chosen = chosen_round(done, self._chooser, self.task.at)
        return {
            self._chooser.name: math.nan,  # until it is measured
            **({} if chosen is None else chosen.metrics),
            **{f"round/{name}": value for name, value in done[-1].metrics.items()},
            "round": done[-1].round,
            "best_round": None if chosen is None else chosen.round,
            "folder": self._last["folder"],
        }

    # --- workers ----------------------------------------------------------------------------------

    def _executor(self, experiment: Experiment) -> Callable[[Assembly], Executor]:
        """Return a factory of the run's executor, on the workers of the last run if they fit.

        A single CPU worker would only alternate with this process, which then takes the client
        steps itself.
        """
        import torch

        from fedray.runtime.ray_executor import RayExecutor
        from fedray.runtime.serial import SerialExecutor

        if experiment.workers == 1 and experiment.gpus == 0:
            self._end_workers()
            return lambda assembly: SerialExecutor(assembly, torch.device("cpu"))
        pool = self._workers(experiment)
        return lambda assembly: RayExecutor(assembly, pool)

    def _workers(self, experiment: Experiment) -> WorkerPool:
        fits = worker_bundles(experiment), experiment.threads, experiment.faults
        if self._pool is None or fits != self._fits:
            self._end_workers()
            self._pool, self._fits = pool_of(experiment), fits
        else:
            self._pool.begin(experiment)
        return self._pool

    def _end_workers(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._pool = self._fits = None


def pool_of(experiment: Experiment) -> WorkerPool:
    """Start a trial's workers, each in its own bundle of the trial's placement group."""
    from fedray.runtime.pool import WorkerPool
    from fedray.runtime.ray_executor import Worker

    return WorkerPool(Worker, experiment, get_current_placement_group())


def reason_of(error: BaseException) -> str:
    """Return why a run failed in one sentence, which begins with `DIVERGED` if it diverged."""
    failure = Failure.of(error)
    reason = str(error) if isinstance(error, FedrayError) else failure.cause
    return f"{DIVERGED}: {reason}" if failure.diverged else reason
