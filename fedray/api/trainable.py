"""`trainable`: an experiment as a Trainable for the user's own `ray.tune.Tuner`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.tune.search.repeater import TRIAL_INDEX

from fedray.api.experiment import Experiment
from fedray.config import Experiment as Resolved
from fedray.storage.files import store_home
from fedray.storage.metric import HEADLINE, VALIDATION
from fedray.studies.space import split_keys
from fedray.studies.trainable import Task, trainable_of

if TYPE_CHECKING:
    from ray import tune


def trainable(
    base: str | Path | Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    *,
    choose: str | None = None,
    seeds: Sequence[int] | None = None,
    store: str | Path | None = None,
    plugins: str | Path | Sequence[str | Path] = (),
    **keys: Any,
) -> type[tune.Trainable]:
    """Return a class for `ray.tune.Tuner` whose config holds dotted keys of the experiment.

    A report holds the metrics of the round chosen so far under their names, those of this round
    under `round/`, and `round`, `best_round` and `folder`. A finished run of the store is not
    repeated, and an interrupted one continues.

    Args:
        base: as for `Experiment`.
        settings: overrides by dotted key.
        choose: the metric that chooses the round; None: the accuracy on the images of
            `report.select`.
        seeds: the seeds of the repetitions of `ray.tune.search.Repeater`; None: 0, 1, ...
        store: the folder of all runs; None: that of sweeps and tables.
        plugins: your files, folders or modules.
        **keys: further overrides.

    Raises:
        UserError: if a key or value is invalid.
    """
    experiment = Experiment(base, settings, plugins=plugins, **keys)
    resolved = experiment._resolved
    test = resolved.report.select == "test"
    chooser = choose or (HEADLINE if test else f"{VALIDATION}{HEADLINE}")

    def experiment_of(config: Mapping[str, Any]) -> Resolved:
        overrides = split_keys(config)
        index = overrides.pop(TRIAL_INDEX, None)
        if index is not None:
            overrides.setdefault("seed", index if seeds is None else seeds[index])
        return experiment.but(overrides)._resolved

    return trainable_of(
        Task(
            experiment_of,
            chooser=lambda config: chooser,
            store=store_home() if store is None else Path(store).expanduser().resolve(),
            plugins=[vars(plugin) for plugin in resolved.plugins],
        )
    )
