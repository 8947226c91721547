"""A study on Ray Tune: a `Tuner` over `FederatedRun`, and the searcher that hands out its runs.

The config of a trial holds the dotted keys that are searched and the seed, and in a table the row,
the column and the phase. Optuna suggests through `OptunaSearch`, and through `Repeater` if there
are several seeds. Trials do not connect to MLflow: another process follows the runs' folders.
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
MOST_TRIES = 10
"""Suggestions of Optuna for each configuration that is wanted, known ones included."""
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
    """The searcher of a study: hands out its runs, or those that another searcher suggests.

    Args:
        study: the study, which records how its runs end.
        show: the progress display.
        write_page: called when a cell has finished, so that a long table can be read meanwhile.
        has_begun: called after each round and each end of a run.
        inner: suggests configurations; None: the runs that the study needs.
    """

    def __init__(
        self,
        study: Study,
        show: Progress,
        write_page: Callable[[], object],
        has_begun: Callable[[], object] = lambda: None,
        inner: Searcher | None = None,
    ) -> None:
        metric = None if inner is None else inner.metric
        super().__init__(metric=metric, mode=None if inner is None else inner.mode)
        self._study, self._show, self._inner = study, show, inner
        self._write_page, self._has_begun = write_page, has_begun
        self._trials: dict[str, StudyRun] = {}
        self._began: dict[str, float] = {}
        self._lost = Counter[str]()
        self._cells_over, self._written = self._count_over(), -math.inf

    def suggest(self, trial_id: str) -> Any:
        """Return the next trial's config; None while none is ready; FINISHED at the end."""
        study = self._study
        if self._inner is not None:
            if self._has_enough():
                return Searcher.FINISHED
            config = self._inner.suggest(trial_id)
            spec = spec_of(config, study.plan)
            study.suggest(spec.config)
        elif (next_spec := study.ask()) is not None:
            spec, config = next_spec, config_of(next_spec, study.plan)
        else:
            none_runs = all(run.is_over for run in study.runs.values())
            is_over = none_runs if study.plan.is_sweep else study.is_complete
            return Searcher.FINISHED if is_over else None
        self._trials[trial_id] = study.runs.setdefault(spec.key, StudyRun(spec))
        self._began[trial_id] = time.monotonic()
        self._write()
        return config

    def _has_enough(self) -> bool:
        """Return True if Optuna has suggested all configurations, or only known ones for long."""
        study, seeds = self._study, len(self._study.plan.report.seeds)
        if len(self._trials) % seeds:  # of a configuration's repetitions, some are missing
            return False
        count = study.plan.tuning.configurations or 0
        if len(self._trials) >= MOST_TRIES * seeds * count:
            study.end_suggestions()
        return study.to_suggest == 0

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Show a new round."""
        if self._inner is not None:
            self._inner.on_trial_result(trial_id, result)
        run, chooser = self._trials[trial_id], self._chooser(trial_id)
        run.last_round, run.round = result["round"], result["best_round"]
        run.objective = None if math.isnan(result[chooser]) else result[chooser]
        self._show.round(run)
        self._has_begun()

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record the end of a run: by itself, by a scheduler, or because its processes died."""
        if self._inner is not None:
            self._inner.on_trial_complete(trial_id, result=result, error=error)
        run, study = self._trials[trial_id], self._study
        if run.is_over:  # a configuration that Optuna suggested again
            return
        run.seconds = time.monotonic() - self._began[trial_id]
        result = result or {}
        if error and self._begins_again(run.spec):
            return
        if error:
            study.tell(run.spec, f"{DIED}; see Ray's logs")
        elif "failed" in result:
            study.tell(run.spec, result["failed"])
        else:
            run.last_round = result.get("round", run.last_round)
            is_finished = RunFolder(study.folder(run.spec.key)).is_finished
            study.tell(run.spec, is_stopped=not is_finished)
        self._show.end(run)
        self._has_begun()
        self._write(at_once=True)
        if self._count_over() > self._cells_over:
            self._cells_over = self._count_over()
            if not study.is_complete:  # the last page follows
                self._write_page()

    def _begins_again(self, spec: RunSpec) -> bool:
        """Let a lost run be asked for again, at most `faults.max_failures` times.

        Ray Tune itself gives up a trial whose process dies while it takes the process over.
        """
        self._lost[spec.key] += 1
        if self._inner is not None or self._lost[spec.key] > spec.experiment.faults.max_failures:
            return False
        del self._study.runs[spec.key]
        return True

    def _chooser(self, trial_id: str) -> str:
        return self._study.plan.chosen_by(self._trials[trial_id].spec.place.row)

    def _count_over(self) -> int:
        return sum(state.phase in ("over", "failed") for state in self._study.states)

    def _write(self, *, at_once: bool = False) -> None:
        if at_once or time.monotonic() - self._written >= WRITE_SECONDS:
            self._study.write()
            write_tracking(self._study)
            self._written = time.monotonic()

    def save(self, checkpoint_path: str) -> None:
        """Store nothing; the same command continues from the runs' folders."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""


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
    inner = optuna_search(study) if plan.uses_optuna else None
    losses = [run.experiment.faults.max_failures for run in study.needed.values()]
    metric, mode = objective_of(plan) if plan.is_sweep else (None, None)
    tuner = tune.Tuner(
        trainable_of(task_of(study)),
        tune_config=tune.TuneConfig(
            search_alg=StudySearch(study, show, write_page, has_begun, inner),
            scheduler=scheduler(study),
            metric=metric,
            mode=mode,
            num_samples=-1,
            max_concurrent_trials=concurrent,
            reuse_actors=True,
            trial_dirname_creator=lambda trial: str(trial.trial_id),
        ),
        run_config=tune.RunConfig(
            name=FOLDER,
            storage_path=str(study.home),
            verbose=0,
            stop=StopIfRayDied(how_to_go_on),
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


def optuna_search(study: Study) -> Searcher:
    """Return Optuna's sampler, which first repeats its suggestions of an earlier command.

    Their runs end at once if they have finished. Its random numbers are other than before, which
    would give the first suggestions again.
    """
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    plan, seeds = study.plan, len(study.plan.report.seeds)
    streams = Streams(0)
    domains = {
        axis.key: tune.choice(list(axis.values))
        if axis.is_listed
        else getattr(tune, axis.distribution)(*axis.values)
        for axis in plan.axes
    }
    metric, mode = objective_of(plan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna would only fail to store lists in a database
        space = OptunaSearch.convert_search_space(domains)
    search = OptunaSearch(
        space,
        metric=metric,
        mode=mode,
        points_to_evaluate=[_joined(config, plan) for config in study.suggested],
        sampler=optuna.samplers.TPESampler(
            n_startup_trials=plan.random_suggestions,
            seed=streams.entropy("search", round_=len(study.suggested)) % 2**32,
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
