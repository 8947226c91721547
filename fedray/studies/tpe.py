"""Optuna's TPE sampler: the next configuration of a sweep, from the finished ones.

Nothing is kept between two suggestions: each has a random stream of its own, so a resumed sweep
asks what it would have asked without the interruption.
"""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState, create_trial

from fedray.streams import Streams
from fedray.studies.plan import StudyPlan
from fedray.studies.space import Axis, Config


def suggest(
    plan: StudyPlan, known: Sequence[tuple[Config, float | None]], over: Sequence[bool]
) -> Config:
    """Return the next configuration of a sweep.

    Args:
        plan: the sweep.
        known: the configurations so far and their objectives, larger is better; None: it failed,
            or is not over.
        over: whether each has finished.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    seed = Streams(plan.tuning.search_seed).entropy("search", round_=len(known)) % 2**32
    startup = min(10, max(4, (plan.tuning.configurations or 0) // 3))
    sampler = optuna.samplers.TPESampler(n_startup_trials=startup, seed=seed)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    space = {axis.key: distribution(axis) for axis in plan.axes}
    for (config, value), is_over in zip(known, over, strict=True):
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        study.add_trial(
            create_trial(
                state=state if is_over else TrialState.RUNNING,
                value=value,
                params=config,
                distributions=space,
            )
        )
    return dict(study.ask(space).params)


def distribution(axis: Axis) -> BaseDistribution:
    """Return an axis as Optuna knows it."""
    if axis.is_listed:
        return CategoricalDistribution(axis.values)
    low, high = axis.values
    if axis.distribution == "randint":
        return IntDistribution(low, high)
    return FloatDistribution(low, high, log=axis.distribution == "loguniform")
