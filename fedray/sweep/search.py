"""Where configurations come from: a grid, or one of Optuna's samplers, behind Ray Tune's interface.

Optuna's study is made from the ledger, so a resumed sweep asks the sampler what it would have been
asked without the interruption; every suggestion has a random stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from fedray.streams import Streams
from fedray.sweep.ledger import Ledger, Trial
from fedray.sweep.spec import Axis, SweepPlan, corners

JOURNAL = "optuna.journal"
BEFORE = "optuna.journal.before"


def entry(trial: Trial) -> dict[str, Any]:
    """What the trainable gets as its config."""
    return {"number": trial.number, "values": trial.config}


def tune_config(
    ledger: Ledger, order: Sequence[Trial], concurrent: int
) -> tuple[dict[str, Any], tune.TuneConfig]:
    """Ray Tune's parameter space and its configuration, for what is left to do.

    Args:
        ledger: which trials were suggested and which are finished.
        order: in which a grid's trials begin; a search has its own.
        concurrent: trials at a time.
    """
    plan = ledger.plan
    scheduler = None
    if plan.asha is not None:
        tried = [*corners(plan.axes), *(trial.config for trial in ledger.ordered)]
        rounds = max(plan.experiment_of(config, plan.seeds[0]).rounds for config in tried)
        scheduler = ASHAScheduler(
            time_attr="round",
            max_t=rounds,
            grace_period=min(plan.asha.grace_rounds, rounds),
            reduction_factor=plan.asha.reduction_factor,
        )
    common = {"metric": "objective", "mode": plan.mode, "scheduler": scheduler}
    common |= {"max_concurrent_trials": concurrent, "trial_dirname_creator": _dirname}
    common |= {"reuse_actors": True}
    if plan.search == "grid":
        space = {"trial": tune.grid_search([entry(trial) for trial in order])}
        return space, tune.TuneConfig(**common)
    samples = ledger.left
    return {}, tune.TuneConfig(search_alg=OptunaTrials(ledger), num_samples=samples, **common)


def _dirname(trial: Any) -> str:
    return f"trial_{trial.config['trial']['number']:05d}"


class OptunaTrials(OptunaSearch):  # type: ignore[misc]
    """Ray Tune's Optuna search, whose trials are numbered and recorded in the ledger.

    Args:
        ledger: finished trials are given to the study, unfinished ones are asked for first.
    """

    def __init__(self, ledger: Ledger) -> None:
        plan = ledger.plan
        space = distributions(plan.axes)
        self._ledger = ledger
        self._study, storage = make_study(ledger, space)
        super().__init__(
            space=space,
            metric="objective",
            mode=plan.mode,
            sampler=self._study.sampler,
            study_name=self._study.study_name,
            storage=storage,
        )

    def suggest(self, trial_id: str) -> dict[str, Any]:
        """The next configuration, with its number."""
        before = {trial.number for trial in self._running()}
        values = super().suggest(trial_id)
        number = next(t.number for t in self._running() if t.number not in before)
        trial = self._ledger.add(number, values)
        self._ledger.write()
        return {"trial": entry(trial)}

    def _running(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell Optuna; a trial that reported why it failed is a failure, not a bad value."""
        failed = error or bool(result and "failed" in result)
        super().on_trial_complete(trial_id, None if failed else result, failed)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Nothing: no pruner looks at intermediate values."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing to keep: the ledger is what a sweep is resumed from."""
        Path(checkpoint_path).touch()


def _journal(home: Path) -> tuple[BaseStorage, dict[int, dict[str, Any]]]:
    """A new journal in the invocation's folder, and what the one before knew of its trials.

    That one stays beside it until the new one has all of them.

    Returns:
        The storage, and by trial number what the sampler had noted (CMA-ES: its state).
    """
    path, before = home / JOURNAL, home / BEFORE
    notes: dict[int, dict[str, Any]] = {}
    if before.exists():  # a start was killed before it had entered all trials anew
        path.unlink(missing_ok=True)
    elif path.exists():
        path.replace(before)
    if before.exists():
        (home / f"{JOURNAL}.lock").unlink(missing_ok=True)
        old = JournalStorage(JournalFileBackend(str(before)))
        for study in optuna.get_all_study_names(old):
            for trial in optuna.load_study(study_name=study, storage=old).get_trials():
                notes[trial.number] = trial.system_attrs
    return JournalStorage(JournalFileBackend(str(path))), notes


def make_study(ledger: Ledger, space: dict[str, BaseDistribution]) -> tuple[Study, BaseStorage]:
    """An Optuna study that holds the ledger's trials under their numbers."""
    plan = ledger.plan
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage, notes = _journal(ledger.home)
    study = optuna.create_study(
        storage=storage,
        study_name=f"{plan.sweep}/{ledger.home.name}",
        sampler=PerTrialSampler(lambda seed: _sampler(plan, seed), plan.search_seed),
        direction="maximize" if plan.mode == "max" else "minimize",
    )
    for trial in ledger.ordered:
        note = notes.get(trial.number, {})
        if not trial.is_over:  # what `enqueue_trial` does, with the sampler's notes
            note = {**note, "fixed_params": trial.config}
            study.add_trial(create_trial(state=TrialState.WAITING, system_attrs=note))
            continue
        failed = trial.status == "failed"
        study.add_trial(
            create_trial(
                state=TrialState.FAIL if failed else TrialState.COMPLETE,
                value=None if failed else trial.objective,
                params=trial.config,
                distributions=space,
                system_attrs=note,
            )
        )
    (ledger.home / BEFORE).unlink(missing_ok=True)
    return study, storage


def distributions(axes: Sequence[Axis]) -> dict[str, BaseDistribution]:
    """The axes as Optuna knows them."""

    def one(axis: Axis) -> BaseDistribution:
        if axis.is_listed:
            return CategoricalDistribution(axis.values)
        low, high = axis.values
        if axis.distribution == "randint":
            return IntDistribution(low, high)
        return FloatDistribution(low, high, log=axis.distribution == "loguniform")

    return {axis.key: one(axis) for axis in axes}


def _sampler(plan: SweepPlan, seed: int) -> BaseSampler:
    if plan.search == "random":
        return RandomSampler(seed=seed)
    if plan.search == "cmaes":
        return CmaEsSampler(seed=seed, warn_independent_sampling=False)
    startup = min(10, max(4, (plan.num_samples or 0) // 3))
    return TPESampler(n_startup_trials=startup, seed=seed)


class PerTrialSampler(BaseSampler):
    """A sampler whose random numbers depend on the trial's number, not on how many were drawn.

    Args:
        make: makes the sampler from a seed.
        seed: the search's seed.
    """

    def __init__(self, make: Callable[[int], BaseSampler], seed: int) -> None:
        self._make = make
        self._streams = Streams(seed)
        self._sampler = make(0)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Begin a new stream."""
        self._sampler = self._make(self._streams.entropy("search", round_=trial.number) % 2**32)
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """As the sampler does."""
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """As the sampler does."""
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """As the sampler does."""
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """As the sampler does."""
        self._sampler.after_trial(study, trial, state, values)
