"""Suggest the next configuration of a sweep with Optuna's TPE sampler.

The sampler keeps no state between suggestions: each suggestion has its own random stream, so a
resumed sweep gets the same suggestions as an uninterrupted one.
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

from fedray.base.streams import Streams
from fedray.results.design import Config
from fedray.studies.plan import StudyPlan
from fedray.studies.space import Axis, points

MOST_TRIES = 10


def suggest(
    plan: StudyPlan, results: Sequence[tuple[Config, float | None]], finished: Sequence[bool]
) -> Config:
    """Return the next configuration of a sweep, none of those so far.

    A sampler of a space with few points suggests the best of them repeatedly. It is asked again
    with other random numbers; after `MOST_TRIES`, the first point not tried is returned.

    Args:
        plan: the sweep.
        results: the configurations so far with their objectives, larger is better; None if a
            configuration failed or has not finished.
        finished: for each configuration, whether it has finished.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    known = [config for config, _ in results]
    for again in range(MOST_TRIES):
        config = _ask(plan, results, finished, again)
        if config not in known:
            return config
    return next((config for config in points(plan.axes) if config not in known), config)


def _ask(
    plan: StudyPlan,
    results: Sequence[tuple[Config, float | None]],
    finished: Sequence[bool],
    again: int,
) -> Config:
    """Return what the sampler suggests, possibly a known configuration; see `suggest`."""
    streams = Streams(plan.tuning.search_seed)
    purpose = f"search, try {again}" if again else "search"
    seed = streams.entropy(purpose, round_=len(results)) % 2**32
    startup = min(10, max(4, (plan.tuning.configurations or 0) // 3))
    sampler = optuna.samplers.TPESampler(n_startup_trials=startup, seed=seed)
    study = optuna.create_study(sampler=sampler, direction="maximize")
    space = {axis.key: distribution(axis) for axis in plan.axes}
    for (config, value), is_finished in zip(results, finished, strict=True):
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        study.add_trial(
            create_trial(
                state=state if is_finished else TrialState.RUNNING,
                value=value,
                params=config,
                distributions=space,
            )
        )
    return dict(study.ask(space).params)


def distribution(axis: Axis) -> BaseDistribution:
    """Convert an axis to an Optuna distribution."""
    if axis.is_listed:
        return CategoricalDistribution(axis.values)
    low, high = axis.values
    if axis.distribution == "randint":
        return IntDistribution(low, high)
    return FloatDistribution(low, high, log=axis.distribution == "loguniform")
