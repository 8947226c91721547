"""The plan of a study: one scale with the command line's keys, which defines every run.

A study has rows and columns, a space that is searched for each row in each column, seeds, and
optional claims. A sweep is a study of one cell.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from fedray.base.errors import UserError
from fedray.config import (
    Experiment,
    Tree,
    flatten,
    parents_first,
    with_used_plugins,
)
from fedray.results.design import Config, Design, Place
from fedray.storage.metric import BEST, VALIDATION, Metric, find_metric
from fedray.studies.space import Axis, corners, draws, grid, parse_space

FRACTION = "data.validation_fraction"
Phase = Literal["tuning", "report"]


@dataclass(frozen=True)
class RunSpec:
    """A run of a study.

    Attributes:
        key: the name of its folder in the store, equal for runs that would give the same numbers.
        place: the cell.
        config: values of the searched keys.
        phase: tuning or report.
        seed: seed of every random stream.
        experiment: the experiment to run.
    """

    key: str
    place: Place
    config: Config
    phase: Phase
    seed: int
    experiment: Experiment = field(compare=False)

    @cached_property
    def name(self) -> str:
        """Equal on all machines for runs that would give the same numbers."""
        root = self.experiment.data.root
        return _digest(self.experiment.identity(), None if root is None else Path(root).name)

    @property
    def cost(self) -> int:
        """Relative cost of the run: rounds times epochs."""
        return self.experiment.rounds * max(1, self.experiment.local_epochs)


class StudyPlan(Design):
    """The plan of a study: everything that defines its runs."""

    @property
    def is_sweep(self) -> bool:
        """True if the study is one cell whose configurations are compared over all seeds."""
        return self.kind == "sweep"

    @property
    def axes(self) -> list[Axis]:
        """Axes of a sweep's space."""
        return self.axes_of(next(iter(self.rows)))

    def axes_of(self, row: str) -> list[Axis]:
        """Return the axes of a row's space."""
        return parse_space(self.rows[row].space)

    @property
    def plugins(self) -> list[Tree]:
        """Plug-ins with their sources."""
        return list(self.base.get("plugins", ()))

    @property
    def how(self) -> str:
        """Label of the round whose numbers count, for example "best on validation"."""
        chosen = self.chosen_by(next(iter(self.rows)))
        if not (chosen.startswith(VALIDATION) or _is_on_test(chosen)):
            return self.at
        on: Literal["validation", "test"] = (
            "validation" if chosen.startswith(VALIDATION) else "test"
        )
        return BEST[on].replace("best", self.at)

    def chosen_by(self, row: str) -> str:
        """Return the metric by which a row's configurations and rounds are chosen.

        Raises:
            UserError: if the metric exists on test images only, and validation images choose.
        """
        return self._choosers[row]

    @cached_property
    def _choosers(self) -> dict[str, str]:
        names = {
            name: row.metrics.get(self.choose) or self.choose for name, row in self.rows.items()
        }
        if self.select != "validation":
            return names
        return {row: objective(name) for row, name in names.items()}

    def experiment_of(self, place: Place, config: Config, phase: Phase, seed: int) -> Experiment:
        """Return the experiment of one run.

        Later keys override earlier ones, in this order: the study's, the row's algorithm, the
        column's, `report.rounds`, the row's, the command line's, `tuning.rounds`, the
        configuration's. So a row that sets rounds reports them, but tunes as long as all others.
        A row or column that names another component drops the parameters that the study sets for
        it; what the command line sets, and in a sweep the study, stays beside every configuration.
        Only the plug-ins that the run uses enter its identity.

        Raises:
            UserError: if the experiment is invalid.
        """
        from fedray.runtime.resolve import from_tree, given_keys

        row = self.rows[place.row]
        layers: list[Iterable[tuple[str, Any]]] = [
            [*self.defaults(), *self.set.items()],
            [] if row.algorithm is None else [("algorithm", row.algorithm)],
            self.columns[place.column].items(),
            [*_rounds(self.report.rounds), *row.set.items()],
            [
                *self.given.items(),
                *_rounds(self.tuning.rounds if phase == "tuning" else None),
                *config.items(),
                ("seed", seed),
            ],
        ]
        if self.is_sweep:
            layers = [chain.from_iterable(layers)]
        pairs = chain.from_iterable(map(parents_first, layers))
        shared = {**self.set, **self.given} if self.is_sweep else {}
        own = {**shared, **row.set, **config}
        if {"algorithm", "algorithm.name"} & config.keys():  # other methods of the space read them
            own = {}
        given = given_keys(parents_first(own.items()))
        return with_used_plugins(from_tree(self.base, pairs, given=given))

    def defaults(self) -> Iterator[tuple[str, Any]]:
        """Yield a study's defaults for keys that the experiment does not set.

        One worker per run, because many concurrent runs use the processors better than one run with
        many workers.
        """
        yield "report.select", self.select
        if "workers" not in self.base:
            yield "workers", 1
        if self.validation_fraction is not None and flatten(self.base).get(FRACTION) is None:
            yield FRACTION, self.validation_fraction

    def run(self, place: Place, config: Config, phase: Phase, seed: int) -> RunSpec:
        """Return a run; equal arguments give the same object.

        Raises:
            UserError: if the experiment is invalid.
        """
        name = place, repr(sorted(config.items())), phase, seed
        if name not in self._runs:
            experiment = self.experiment_of(place, config, phase, seed)
            key = store_key(experiment)
            self._runs[name] = RunSpec(key, place, config, phase, seed, experiment)
        return self._runs[name]

    @cached_property
    def _runs(self) -> dict[tuple[Place, str, Phase, int], RunSpec]:
        return {}

    def __getstate__(self) -> dict[Any, Any]:
        """Return the plan without what is computed from it, which trials need not receive."""
        state = super().__getstate__()
        fields = {name: state["__dict__"][name] for name in type(self).model_fields}
        return {**state, "__dict__": fields}

    @property
    def random_suggestions(self) -> int:
        """The number of random configurations with which Optuna begins."""
        count = self.tuning.configurations or 0
        return min(count, 10, max(4, count // 3))

    @property
    def uses_optuna(self) -> bool:
        """True if Optuna suggests configurations while the study runs."""
        return self.tuning.search == "optuna"

    def configurations(self, row: str) -> list[Config]:
        """Return the configurations tried first for a row; a single one if nothing is searched.

        With Optuna the list is empty, because configurations are suggested while the study runs.
        """
        return self._configurations[row]

    @cached_property
    def _configurations(self) -> dict[str, list[Config]]:
        return {row: self._first_of(row) for row in self.rows}

    def _first_of(self, row: str) -> list[Config]:
        axes, tuning = self.axes_of(row), self.tuning
        if not axes or tuning.search == "grid":
            return grid(axes, tuning.configurations if self.is_sweep else None)
        if tuning.search == "optuna":
            return []
        return draws(axes, tuning.configurations or 1)

    def first_config(self, row: str) -> Config:
        """Return a configuration of a row, for checks of what all its runs share."""
        return next(iter(self.configurations(row) or corners(self.axes_of(row))))


def _rounds(rounds: int | None) -> list[tuple[str, Any]]:
    return [] if rounds is None else [("rounds", rounds)]


def known_metrics() -> tuple[Metric, ...]:
    """Return the declarations of all metrics, including those of methods' analyses."""
    from fedray.core import algorithms
    from fedray.evaluation.metrics import declared_metrics
    from fedray.evaluation.protocols import analysis_metrics

    analyses = [metric for method in algorithms.entries() for metric in analysis_metrics(method)]
    return (*declared_metrics(), *analyses)


def _is_on_test(name: str) -> bool:
    metric = find_metric(name, known_metrics())
    return metric is not None and metric.on == "test"


def objective(name: str) -> str:
    """Return the validation metric of a test metric; any other metric unchanged.

    Raises:
        UserError: if the test metric has no validation metric.
    """
    declaration = find_metric(name, known_metrics())
    if declaration is None or declaration.on != "test":
        return name
    if f"{VALIDATION}{declaration.name}" not in {metric.name for metric in known_metrics()}:
        raise UserError(
            f"metric: {name} exists on test images only; choose by another metric (choose: ...), "
            "or set report: {select: test}"
        )
    return f"{VALIDATION}{name}"


def store_key(experiment: Experiment) -> str:
    """Return the name of a run's folder, equal for runs that would give the same numbers.

    The key includes `data.root`, because before the images are read the identity cannot tell two
    data sets apart.
    """
    return _digest(experiment.identity(), experiment.data.root)


def _digest(*content: str | None) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]
