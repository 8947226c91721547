"""Execution of a study's runs with Ray Tune, which here is a placement queue with warm actors.

The searcher hands out the runs that cells need, each in a placement group of its own, and trials
with equal resources reuse their actors. Configurations, results and resuming are the study's; a run
whose processes were lost is handed out again, as a new trial, and resumes from its checkpoint.

The trial's actor is the federation's server, and also its worker if a single CPU worker suffices.
Other workers use the bundles of the trial's placement group; this module creates no further group.
Trials do not connect to MLflow: another process reads plan.json and the folders of the runs.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import ray
from filelock import FileLock
from ray import tune
from ray.air.execution.resources import placement_group
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import Searcher

from fedray.base.errors import CodeError, Failure, FedrayError, RayDied, RunFailed
from fedray.config import Experiment, received_experiment
from fedray.runtime.cluster import Liveness, cause_of
from fedray.runtime.resources import trial_bundles
from fedray.storage.metric import best_round, find_metric
from fedray.storage.run import Round
from fedray.storage.run_folder import RunFolder
from fedray.storage.states import StateStore
from fedray.studies.plan import StudyPlan, known_metrics
from fedray.studies.progress import Progress
from fedray.studies.store import sign_of
from fedray.studies.study import DIED, DIVERGED, TRIAL_LOCK, EndStatus, Study, StudyRun
from fedray.studies.tracking import write_tracking

FOLDER = "tune"
STOPPED_SECONDS = 60
"""Maximum time that the next trial waits until a stopped trial has left the process."""
WRITE_SECONDS = 1.0
"""Minimum time between two writes of the study's file, unless a run fails or is stopped."""


# --- in the trial's actor -------------------------------------------------------------------------


def run_trial(config: Mapping[str, Any], at: str) -> None:
    """Run one experiment in its folder; the trainable of a study.

    Each new round is reported to Ray Tune. An error that would occur again is reported as "failed"
    and ends the trial. If processes died, the error is raised.

    Args:
        config: under "trial", the result of `config_of`.
        at: "best" or "final", the round that counts.
    """
    trial = config["trial"]
    os.chdir(os.environ.get("TUNE_ORIG_WORKING_DIR", "."))  # Ray Tune leaves it on a cluster
    os.environ.setdefault("TUNE_FUNCTION_THREAD_TIMEOUT_S", str(STOPPED_SECONDS))
    try:
        with closing(_fail_on_exit(reports(trial, at))) as all_reports:
            for values in all_reports:
                tune.report(values)  # raises SystemExit if ASHA stops the trial
    except RunFailed:
        raise
    except Exception as error:
        RunFolder(Path(trial["folder"])).keep_error(Failure.of(error).traceback)
        tune.report({"failed": reason_of(error)})


def _fail_on_exit(
    all_reports: Generator[dict[str, Any], None, None],
) -> Generator[dict[str, Any], None, None]:
    """Yield all reports; convert `sys.exit` in user code into a failure.

    Raises:
        CodeError: instead of SystemExit.
    """
    try:
        with closing(all_reports):
            yield from all_reports
    except SystemExit as error:
        raise CodeError(Failure.of(error)) from error


def reason_of(error: Exception) -> str:
    """Return why a run failed in one sentence, which begins with `DIVERGED` if it diverged."""
    failure = Failure.of(error)
    reason = str(error) if isinstance(error, FedrayError) else failure.cause
    return f"{DIVERGED}: {reason}" if failure.diverged else reason


def reports(trial: Mapping[str, Any], at: str) -> Generator[dict[str, Any], None, None]:
    """Run or resume an experiment in its folder; yield a report of each new round.

    If no round is left, yield a report of the last one.
    """
    from fedray.runtime.session import Session
    from fedray.studies.warm import warm

    began, folder = time.time(), RunFolder(Path(trial["folder"]))
    experiment = received_experiment(trial["experiment"])
    folder.path.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.path / TRIAL_LOCK):  # another study may have begun the same run
        done = list(folder.rounds()) if folder.has_run else []
        if folder.is_finished:
            yield _report(trial, experiment, done, at)
            return
        with (
            warm.executor(experiment) as executor,
            closing(Session(experiment, folder.path, executor, began, "none").rounds()) as rounds,
        ):
            last = None
            for last in rounds:
                done = [*(earlier for earlier in done if earlier.round < last.round), last]
                yield _report(trial, experiment, done, at)
        StateStore(folder.states).clear()  # a finished run is not resumed
        if last is None:  # an earlier process was killed after its last round
            yield _report(trial, experiment, done, at)


def _report(
    trial: Mapping[str, Any], experiment: Experiment, done: Sequence[Round], at: str
) -> dict[str, Any]:
    """Return the report to Ray Tune after the rounds in `done`."""
    chooser, sign = trial["chooser"], trial["sign"]
    curve = {r.round: r.metrics[chooser] for r in done if r.round > 0 and chooser in r.metrics}
    best = (
        best_round(curve, "max" if sign > 0 else "min")
        if at == "best"
        else max(curve, default=None)
    )
    objective = math.nan if best is None else curve[best]
    return {
        "round": done[-1].round,
        "rounds": experiment.rounds,
        "objective": objective,
        "score": sign * objective,
        "best_round": best,
    }


# --- in the driver --------------------------------------------------------------------------------


class Runs(Searcher):  # type: ignore[misc]
    """Ray Tune's searcher: suggests the runs that are ready, and waits while none is.

    Args:
        study: the study.
    """

    def __init__(self, study: Study) -> None:
        super().__init__(metric="score", mode="max")
        self._study = study

    def suggest(self, trial_id: str) -> Any:
        """Return the next run's config; None while no run is ready; FINISHED at the end."""
        run = self._study.ask()
        if run is not None:
            run.status = "running"
            return {"trial": config_of(run, self._study.plan)}
        return Searcher.FINISHED if self._study.is_complete else None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Do nothing; the watcher records the end in the study."""

    def save(self, checkpoint_path: str) -> None:
        """Store nothing; a study is resumed from the runs' folders."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""


def config_of(run: StudyRun, plan: StudyPlan) -> dict[str, Any]:
    """Return the trainable's config for a run, and the bundles of its placement group."""
    chooser = plan.chosen_by(run.spec.place.row)
    metric = find_metric(chooser, known_metrics())
    return {
        "key": run.spec.key,
        "folder": str(run.folder),
        "experiment": run.spec.experiment.model_dump_json(by_alias=True),
        "chooser": chooser,
        "sign": 1 if metric is None else sign_of(metric),
        "bundles": trial_bundles(run.spec.experiment),
    }


class Watcher(tune.Callback):  # type: ignore[misc]
    """Ray Tune's callback: records starts and ends of runs, shows progress.

    Args:
        study: the study that records the runs.
        show: the progress display.
        write_page: called when a cell has finished, so that a long table can be read meanwhile.
        has_begun: called after each round and each end of a run.
    """

    def __init__(
        self,
        study: Study,
        show: Progress,
        write_page: Callable[[], object],
        has_begun: Callable[[], object] = lambda: None,
    ) -> None:
        self._study = study
        self._show = show
        self._write_page = write_page
        self._has_begun = has_begun
        self._cells_over = study.cells_over
        self._started: dict[int, float] = {}
        self._losses: dict[int, tuple[int, int]] = {}  # the last round, and losses since
        self._written = -math.inf
        self._is_written = True

    def __getstate__(self) -> dict[str, Any]:
        """Return an empty state; Ray Tune pickles callbacks for a restore that is not used."""
        return {}

    def on_step_begin(self, iteration: int, trials: Any, **info: Any) -> None:
        """Write the study's file if it is out of date for long enough."""
        if not self._is_written and time.monotonic() - self._written >= WRITE_SECONDS:
            self._write()

    def _write(self) -> None:
        self._study.write()
        write_tracking(self._study)
        self._written, self._is_written = time.monotonic(), True

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Record that a run's actor has started or restarted."""
        run = self._run(trial)
        self._add_time(run)
        run.status, run.ray_id = "running", trial.trial_id
        self._show.begin(run)
        self._is_written = False

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Record that a run has finished a round, or why it failed."""
        run = self._run(trial)
        if "failed" in result:
            run.reason = str(result["failed"])
            return
        if "round" not in result:
            return
        run.objective = None if math.isnan(result["objective"]) else result["objective"]
        run.round, run.last_round = result["best_round"], result["round"]
        self._show.round(run)
        if run.last_round > 0:
            self._has_begun()

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Record that a run has ended: at its last round, by ASHA, or by an error."""
        run = self._run(trial)
        if RunFolder(run.folder).is_finished or run.reason is not None:
            self._settle(run, "finished", run.reason or "")
        elif self._study.plan.tuning.asha is not None:
            self._settle(run, "stopped")

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Let a run whose processes died begin again, unless it dies too often.

        It is given up after more than `faults.max_failures` losses in a row without a new round.
        Ray Tune itself restarts nothing (`FailureConfig`), because it would also count losses that
        were followed by new rounds.
        """
        run = self._run(trial)
        most = run.spec.experiment.faults.max_failures
        reached = -1 if run.last_round is None else run.last_round
        last, count = self._losses.get(run.number, (-1, 0))
        count = count + 1 if reached <= last else 1
        self._losses[run.number] = max(last, reached), count
        if count > most:
            error = cause_of(_error_of(trial))
            died = f"{DIED} {count} time(s) (faults.max_failures={most}): {error}"
            self._settle(run, "failed", died)
        else:
            run.status = "pending"

    def _run(self, trial: Any) -> StudyRun:
        return self._study.runs[trial.config["trial"]["key"]]

    def _add_time(self, run: StudyRun) -> None:
        """Add the time since the last call to the run's seconds."""
        now = time.monotonic()
        run.seconds += now - self._started.get(run.number, now)
        self._started[run.number] = now

    def _settle(self, run: StudyRun, status: EndStatus, reason: str = "") -> None:
        self._add_time(run)
        self._study.tell(run, status, reason)
        self._is_written = False
        if run.status != "finished":  # which no folder tells
            self._write()
        self._show.end(run)
        self._has_begun()
        if self._study.cells_over > self._cells_over:
            self._cells_over = self._study.cells_over
            if not self._study.is_complete:  # the last page follows
                self._write_page()


class _Alive(tune.Callback):  # type: ignore[misc]
    """Ray Tune's callback that ends a study if Ray has died, and reports stopped processes."""

    def __init__(self) -> None:
        self._liveness = Liveness()

    def on_step_begin(self, iteration: int, trials: Any, **info: Any) -> None:
        """Check Ray; raises a `RayDied` if it has died."""
        try:
            self._liveness.check()
        except RayDied:  # Ray Tune cleans up, and would wait for the dead head
            placement_group.remove_placement_group = lambda group: None
            raise


def _error_of(trial: Any) -> Exception:
    """Return the error that last ended a trial's actor."""
    with suppress(OSError, TypeError, ImportError, AttributeError):
        error = trial.get_pickled_error()
        cause = getattr(error, "cause", None) or error  # a task's error wraps the exception
        if isinstance(cause, Exception):
            return cause
    return RunFailed("its processes died; see Ray's logs")


def run_trials(study: Study, watcher: Watcher, concurrent: int) -> None:
    """Run the remaining runs with Ray Tune, each in its own placement group, in reused processes.

    Args:
        study: the study.
        watcher: the callback.
        concurrent: maximum number of concurrent runs.

    Raises:
        RayDied: if Ray itself dies.
    """
    plan = study.plan
    _disable_callback_statistics()
    _treat_out_of_memory_as_death()
    for name in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the study records all events
    shutil.rmtree(study.home / FOLDER, ignore_errors=True)
    placed = tune.with_resources(
        functools.partial(run_trial, at=plan.at),
        lambda given: tune.PlacementGroupFactory(given["trial"]["bundles"]),
    )
    tuner = tune.Tuner(
        placed,
        tune_config=tune.TuneConfig(
            search_alg=Runs(study),
            scheduler=_scheduler(study),
            num_samples=-1,
            max_concurrent_trials=concurrent,
            metric="score",
            mode="max",
            trial_dirname_creator=lambda trial: str(trial.trial_id),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name=FOLDER,
            storage_path=str(study.home),
            verbose=0,
            callbacks=[watcher, _Alive()],
            failure_config=tune.FailureConfig(max_failures=0),  # the watcher counts losses
        ),
    )
    remove = placement_group.remove_placement_group
    try:
        tuner.fit()
    except RayDied:
        placement_group.remove_placement_group = remove
        ray.shutdown()  # so that this process can start or join another Ray
        raise
    shutil.rmtree(study.home / FOLDER, ignore_errors=True)


class _Asha(ASHAScheduler):  # type: ignore[misc]
    """ASHA that stops no run in its last round, before its folder is finished."""

    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Return whether the run continues; a run in its last round always does."""
        if result.get("round") == result.get("rounds"):
            return str(self.CONTINUE)
        return str(super().on_trial_result(controller, trial, result))


def _scheduler(study: Study) -> ASHAScheduler | None:
    asha = study.plan.tuning.asha
    if asha is None:
        return None
    runs = [run for cell, state in study.states() for run in state.pending or cell.usual_runs()]
    rounds = max(run.experiment.rounds for run in runs)
    if study.ends:
        print(
            "ASHA compares the runs from now on; those that ended before are not in its rungs, "
            "so it may stop others than in an undisturbed sweep"
        )
    return _Asha(
        time_attr="round",
        max_t=rounds,
        grace_period=min(asha.grace_rounds, rounds),
        reduction_factor=asha.reduction_factor,
    )


def _disable_callback_statistics() -> None:
    """Turn off a usage statistic of Ray that would import MLflow before the first trial."""
    from ray.air._internal import usage

    usage.tag_callbacks = lambda callbacks: False


def _treat_out_of_memory_as_death() -> None:
    """Make Ray Tune treat a trial's process that was killed for memory as one that died.

    Ray raises an OutOfMemoryError, which is no RayActorError; Ray Tune would end all trials.
    """
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.exceptions import ActorDiedError, OutOfMemoryError

    failed = RayActorManager._actor_task_failed
    if hasattr(failed, "__wrapped__"):
        return

    @functools.wraps(failed)
    def with_memory(manager: Any, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, OutOfMemoryError):
            died = ActorDiedError()
            died.error_msg, exception = str(exception), died
        failed(manager, tracked_actor_task, exception)

    RayActorManager._actor_task_failed = with_memory
