"""A study on Ray Tune: a `Tuner` over `FederatedRun`, whose searcher hands out the study's runs.

The config of a trial holds the dotted keys that are searched and the seed, and in a table the row,
the column and the phase. Of a sweep with Optuna the searcher is `OptunaSearch`, within `Repeater`
if there are several seeds. Trials do not connect to MLflow: another process follows their folders.
"""

from __future__ import annotations

import logging
import math
import shutil
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import ray
from ray import tune
from ray.exceptions import OutOfMemoryError
from ray.tune.experiment import Trial
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import Repeater, Searcher
from ray.tune.search.repeater import TRIAL_INDEX

from fedray.base.errors import RayDied, RunFailed, named
from fedray.base.streams import Streams
from fedray.results.design import Config, Place
from fedray.runtime.cluster import LOST, Liveness, cause_of
from fedray.storage.metric import find_metric
from fedray.storage.run_folder import RunFolder
from fedray.studies.plan import RunSpec, StudyPlan, known_metrics
from fedray.studies.progress import Progress
from fedray.studies.space import split_keys
from fedray.studies.study import Study, StudyRun
from fedray.studies.tracking import write_tracking
from fedray.studies.trainable import Task, trainable_of

FOLDER = "tune"
"""Ray Tune's folder in a study's folder."""
WRITE_SECONDS = 1.0
"""Minimum time between two writes of the study's files, unless a run fails or is stopped."""
DIED = "its processes died"
"""First words of the reason of a run that was lost too often."""


def config_of(spec: RunSpec, plan: StudyPlan) -> Config:
    """Return a trial's config, from which `spec_of` finds the run."""
    if plan.is_sweep:
        return {**spec.config, "seed": spec.seed}
    place = {"row": spec.place.row, "column": spec.place.column, "phase": spec.phase}
    return {**place, **spec.config, "seed": spec.seed}


def spec_of(config: Config, plan: StudyPlan) -> RunSpec:
    """Return the run of a trial's config, in which Repeater's index may stand for the seed."""
    keys, first = dict(config), plan.places[0]
    place = Place(keys.pop("row", first.row), keys.pop("column", first.column))
    phase, index = keys.pop("phase", "tuning"), keys.pop(TRIAL_INDEX, 0)
    seed = keys.pop("seed", plan.report.seeds[index])
    searched = [key for axis in plan.axes_of(place.row) for key in axis.keys]
    split = split_keys(keys)
    return plan.run(place, {key: split[key] for key in searched if key in split}, phase, seed)


def task_of(study: Study) -> Task:
    """Return what all trials of a study share."""
    plan = study.plan
    return Task(
        experiment=lambda config: spec_of(config, plan).experiment,
        chooser=lambda config: plan.chosen_by(config.get("row", plan.places[0].row)),
        store=study.store,
        at=plan.at,
        plugins=plan.plugins,
        stopped=frozenset(study.stopped),
    )


class StudySearch(Searcher):  # type: ignore[misc]
    """The searcher of tables, grids and random draws: hands out the runs that a study needs."""

    def __init__(self, study: Study) -> None:
        super().__init__()
        self._study = study

    def suggest(self, trial_id: str) -> Any:
        """Return the next trial's config; None while none is ready; FINISHED at the end."""
        study = self._study
        if (spec := study.ask()) is not None:
            study.runs[spec.key] = StudyRun(spec)
            return config_of(spec, study.plan)
        is_over = study.is_complete and all(run.is_over for run in study.runs.values())
        return Searcher.FINISHED if is_over else None

    def on_trial_complete(self, trial_id: str, *_: Any, **__: Any) -> None:
        """Do nothing; `Recorder` tells the study."""

    def save(self, checkpoint_path: str) -> None:
        """Store nothing; the same command continues from the runs' folders."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""


class Recorder(tune.Callback):  # type: ignore[misc]
    """Records in a study how its trials end, and shows their progress.

    Args:
        study: the study.
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
        self._study, self._show = study, show
        self._write_page, self._has_begun = write_page, has_begun
        self._began: dict[str, float] = {}
        self._lost = Counter[str]()
        self._known = len(study.suggested)
        self._cells_over, self._written = self._count_over(), -math.inf

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Ray Tune stores its callbacks, and the display cannot be stored."""
        return {}

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Begin a run, which Optuna may have suggested."""
        if trial.trial_id in self._began:  # its process was lost
            return
        self._began[trial.trial_id] = time.monotonic()
        spec = spec_of(trial.config, self._study.plan)
        if self._study.plan.uses_optuna and not trial.config.get(TRIAL_INDEX):
            if self._known:  # an earlier command has recorded it
                self._known -= 1
            else:
                self._study.suggest(spec.config)
        self._study.runs.setdefault(spec.key, StudyRun(spec))
        self._write()

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """Show a new round; `on_trial_complete` shows the last one."""
        if result.get("done"):
            return
        run = self._run_of(trial)
        value = result[self._study.plan.chosen_by(run.spec.place.row)]
        run.last_round, run.round = result["round"], result["best_round"]
        run.objective = None if math.isnan(value) else value
        self._show.round(run)
        self._has_begun()

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Record that a run ended by itself, or that a scheduler stopped it."""
        run, result = self._run_of(trial), trial.last_result or {}
        run.last_round = result.get("round", run.last_round)
        is_finished = RunFolder(self._study.folder(run.spec.key)).is_finished
        reason = result.get("failed", "")
        self._end(trial, reason, is_stopped=not reason and not is_finished)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Record that a run's processes died; let it be asked for again, but not without end.

        Ray Tune itself gives up a trial whose process dies while it takes the process over.
        """
        spec, study = self._run_of(trial).spec, self._study
        self._lost[spec.key] += 1
        if study.plan.uses_optuna or self._lost[spec.key] > spec.experiment.faults.max_failures:
            self._end(trial, f"{DIED}; see Ray's logs")
        else:
            del study.runs[spec.key]

    def _run_of(self, trial: Trial) -> StudyRun:
        return self._study.runs[spec_of(trial.config, self._study.plan).key]

    def _end(self, trial: Trial, reason: str, *, is_stopped: bool = False) -> None:
        run, study = self._run_of(trial), self._study
        if run.is_over:  # a configuration that Optuna suggested again
            return
        run.seconds = time.monotonic() - self._began[trial.trial_id]
        study.tell(run.spec, reason, is_stopped=is_stopped)
        self._show.end(run)
        self._has_begun()
        self._write(at_once=True)
        if self._count_over() > self._cells_over:
            self._cells_over = self._count_over()
            if not study.is_complete:  # the last page follows
                self._write_page()

    def _count_over(self) -> int:
        return sum(state.phase in ("over", "failed") for state in self._study.states)

    def _write(self, *, at_once: bool = False) -> None:
        if at_once or time.monotonic() - self._written >= WRITE_SECONDS:
            self._study.write()
            write_tracking(self._study)
            self._written = time.monotonic()


class StopIfRayDied(tune.Stopper):  # type: ignore[misc]
    """Ends a `Tuner` if Ray has died, for which Ray Tune would wait.

    Args:
        how_to_go_on: printed with the cause at once, because Ray may abort the process meanwhile.
    """

    def __init__(self, how_to_go_on: str = "") -> None:
        self._liveness, self._how_to_go_on = Liveness(), how_to_go_on

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return False: no trial ends by its results."""
        return False

    def stop_all(self) -> bool:
        """Raise a `RayDied` if Ray has died; Ray Tune asks between any two events."""
        try:
            self._liveness.check()
        except RayDied as error:
            print(f"failed: {error}; {self._how_to_go_on}", file=sys.stderr, flush=True)
            raise
        return False


def run_trials(
    study: Study,
    show: Progress,
    concurrent: int,
    write_page: Callable[[], object],
    has_begun: Callable[[], object],
    how_to_go_on: str = "",
) -> tune.ResultGrid:
    """Run the remaining runs of a study, and return Ray Tune's results.

    Args:
        study: the study.
        show: the progress display.
        concurrent: maximum number of concurrent runs.
        write_page: called when a cell has finished.
        has_begun: called after each round and each end of a run.
        how_to_go_on: the command that goes on, for a message.

    Raises:
        RayDied: if Ray itself dies.
        RunFailed: if the actor of a trial was killed for lack of memory.
    """
    plan = study.plan
    for name in ("ray.tune", "ray.train", "ray.air"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the study records all events
    shutil.rmtree(study.home / FOLDER, ignore_errors=True)
    losses = [run.experiment.faults.max_failures for run in study.needed.values()]
    metric, mode = objective_of(plan) if plan.is_sweep else (None, None)
    trials = (plan.tuning.configurations or 0) * len(plan.report.seeds)
    tuner = tune.Tuner(
        trainable_of(task_of(study)),
        param_space=domains(plan) if plan.uses_optuna else None,
        tune_config=tune.TuneConfig(
            search_alg=optuna_search(study) if plan.uses_optuna else StudySearch(study),
            scheduler=scheduler(study),
            metric=metric,
            mode=mode,
            num_samples=trials if plan.uses_optuna else -1,
            max_concurrent_trials=concurrent,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: str(trial.trial_id),
        ),
        run_config=tune.RunConfig(
            name=FOLDER,
            storage_path=str(study.home),
            verbose=0,
            stop=StopIfRayDied(how_to_go_on),
            callbacks=[Recorder(study, show, write_page, has_begun)],
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # the store has all
            failure_config=tune.FailureConfig(max_failures=max(losses, default=0)),
        ),
    )
    try:
        results = tuner.fit()
    except RayDied:
        ray.shutdown()  # so that this process can start or join another Ray
        raise
    except OutOfMemoryError as error:
        raise RunFailed(f"the process of a run was killed for lack of memory: {error}") from None
    _keep_causes(study, results)
    return results


def _keep_causes(study: Study, results: tune.ResultGrid) -> None:
    """Record why runs were lost, which Ray Tune tells at the end."""
    for result in results:
        if result.error is None or result.config is None:
            continue
        spec, error = spec_of(result.config, study.plan), result.error
        if spec.key in study.failures:
            died = f"{DIED}: {cause_of(error)}" if isinstance(error, LOST) else ""
            study.failures[spec.key] = died or named(getattr(error, "cause", None) or error)


def domains(plan: StudyPlan) -> dict[str, Any]:
    """Return a sweep's space as Ray Tune has it."""
    return {
        axis.key: tune.choice(list(axis.values))
        if axis.is_listed
        else getattr(tune, axis.distribution)(*axis.values)
        for axis in plan.axes
    }


def optuna_search(study: Study) -> Searcher:
    """Return Optuna's sampler, which first repeats its suggestions of an earlier command.

    Their runs end at once if they have finished. Its random numbers are other than before, which
    would give the first suggestions again.
    """
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", "Choices for a categorical", module="optuna")  # of lists
    plan, seeds = study.plan, len(study.plan.report.seeds)
    search = OptunaSearch(
        points_to_evaluate=[_joined(config, plan) for config in study.suggested],
        sampler=optuna.samplers.TPESampler(
            n_startup_trials=plan.random_suggestions,
            seed=Streams(0).entropy("search", round_=len(study.suggested)) % 2**32,
        ),
    )
    return Repeater(search, repeat=seeds) if seeds > 1 else search


def objective_of(plan: StudyPlan) -> tuple[str, Literal["min", "max"]]:
    """Return the metric that chooses in a sweep, and whether it is minimised or maximised."""
    name = plan.chosen_by(plan.places[0].row)
    metric = find_metric(name, known_metrics())
    return name, "min" if metric is not None and metric.direction == "min" else "max"


def _joined(config: Config, plan: StudyPlan) -> Config:
    """Return a configuration with the values of joint keys as lists, as its space has them."""
    values = {axis.key: [config[key] for key in axis.keys] for axis in plan.axes}
    return {key: of_key if "," in key else of_key[0] for key, of_key in values.items()}


def scheduler(study: Study) -> ASHAScheduler | None:
    """Return ASHA, whose clock is the round, if the sweep asks for it."""
    asha = study.plan.tuning.asha
    if asha is None:
        return None
    rounds = max(run.experiment.rounds for run in study.needed.values())
    if any(study.end_of(run) is not None for run in study.needed.values()):
        print(
            "ASHA compares the runs from now on, and those that ended before only by their last "
            "round, so it may stop others than in an undisturbed sweep"
        )
    return ASHAScheduler(
        time_attr="round",
        max_t=rounds,
        grace_period=min(asha.grace_rounds, rounds),
        reduction_factor=asha.reduction_factor,
    )
