"""The runs that a study needs next, as a function of its plan and of how runs ended.

Each reported seed of a cell searches by itself and chooses by its own validation images: the
configurations that it tries, those beyond the end of a grid included, depend on no other seed and
no other cell. A sweep has no report phase: its result is the comparison of its configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from fedray.base.errors import UserError
from fedray.config import Experiment
from fedray.data.validation import gives_validation
from fedray.results.design import Config, Place
from fedray.results.labels import config_label
from fedray.results.record import Measured
from fedray.studies.plan import RunSpec, StudyPlan
from fedray.studies.space import beyond, corners

DECIMALS = 12
"""Objectives are rounded to this many decimals: the order of a sum must not change a ranking."""
Ends = Callable[[RunSpec], Measured | str | None]
"""Returns the result of a run, or why it has none; None if the run has not ended."""


@dataclass(frozen=True)
class TriedConfig:
    """A configuration and its tuning scores.

    Attributes:
        config: values of the searched keys.
        scores: score by the seed that tried it, larger is better; None if the run failed.
    """

    config: Config
    scores: Mapping[int, float | None]

    @property
    def objective(self) -> float | None:
        """Mean score over the seeds that tried it; None if a run failed."""
        scores = [score for score in self.scores.values() if score is not None]
        return sum(scores) / len(scores) if scores and len(scores) == len(self.scores) else None


@dataclass(frozen=True)
class Search:
    """The search of one seed, as far as its runs have ended.

    Attributes:
        tried: the configurations with an end.
        runs: all runs needed so far.
        pending: those that have not ended.
        best: the best configuration; None while runs are pending, or if all failed.
    """

    tried: Sequence[TriedConfig] = ()
    runs: Sequence[RunSpec] = ()
    pending: Sequence[RunSpec] = ()
    best: Config | None = None


@dataclass(frozen=True)
class CellState:
    """What a cell has tried, chosen and reported so far.

    Attributes:
        place: the cell.
        runs: all runs needed so far.
        pending: those that have not ended.
        tried: the configurations with finished tuning runs.
        choices: the reported configuration by seed.
        lost: the seeds of which every configuration failed.
        further: the least number of runs that follow the pending ones.
    """

    place: Place
    runs: list[RunSpec]
    pending: list[RunSpec]
    tried: Sequence[TriedConfig] = ()
    choices: Mapping[int, Config] = field(default_factory=dict)
    lost: Sequence[int] = ()
    further: int = 0

    @property
    def phase(self) -> Literal["tuning", "report", "over", "failed"]:
        """The phase of the cell; failed: every configuration failed."""
        if self.further or any(run.phase == "tuning" for run in self.pending):
            return "tuning"
        has_result = self.choices or any(tried.objective is not None for tried in self.tried)
        return "report" if self.pending else "over" if has_result else "failed"


def next_runs(plan: StudyPlan, ends: Ends) -> list[RunSpec]:
    """Return the runs that a study needs now: tuning before reports, then the longest first."""
    configs = plan.configurations(plan.places[0].row)
    pending: dict[str, RunSpec] = {}
    for run in (run for state in cell_states(plan, ends, configs) for run in state.pending):
        pending.setdefault(run.key, run)  # two cells may need the same run
    return sorted(pending.values(), key=lambda run: (run.phase == "report", -run.cost))


def cell_states(
    plan: StudyPlan, ends: Ends, configs: Sequence[Config], to_suggest: int = 0
) -> list[CellState]:
    """Return the state of every cell of a study.

    Args:
        plan: the study.
        ends: how runs ended.
        configs: the configurations of a sweep so far.
        to_suggest: the number of those that Optuna has still to suggest.
    """
    if plan.is_sweep:
        return [_sweep_state(plan, ends, configs, to_suggest)]
    return [_cell_state(plan, place, ends) for place in plan.places]


def _cell_state(plan: StudyPlan, place: Place, ends: Ends) -> CellState:
    """Return the state of a table's cell."""
    leader, seeds = plan.leader(place), plan.report.seeds
    searches = {seed: _search(plan, leader, seed, ends) for seed in seeds}
    choices = {seed: found.best for seed, found in searches.items() if found.best is not None}
    reported = [plan.run(place, config, "report", seed) for seed, config in choices.items()]
    runs = [run for found in searches.values() for run in found.runs]
    pending = [run for found in searches.values() for run in found.pending]
    searching = {run.seed for run in pending}
    config = plan.first_config(leader.row)
    tuned = plan.run(leader, config, "tuning", seeds[0])
    report = plan.run(place, config, "report", seeds[0])
    return CellState(
        place,
        list({run.key: run for run in [*(runs if leader == place else ()), *reported]}.values()),
        [*pending, *(run for run in reported if ends(run) is None)],
        _merge_tried(searches.values()) if leader == place else (),
        choices,
        [seed for seed in seeds if seed not in choices and seed not in searching],
        len(searching) if tuned.key != report.key else 0,
    )


def _sweep_state(
    plan: StudyPlan, ends: Ends, configs: Sequence[Config], to_suggest: int
) -> CellState:
    """Return the state of a sweep, whose configurations all run with every seed."""
    place, runs, pending, tried = plan.places[0], list[RunSpec](), list[RunSpec](), []
    for config in configs:
        of_config = [plan.run(place, config, "tuning", seed) for seed in plan.report.seeds]
        waiting = [run for run in of_config if ends(run) is None]
        runs += of_config
        pending += waiting
        if not waiting:
            scores = {run.seed: _score(ends(run)) for run in of_config}
            tried.append(TriedConfig(config, scores))
    return CellState(place, runs, pending, tried, further=to_suggest * len(plan.report.seeds))


def _search(plan: StudyPlan, place: Place, seed: int, ends: Ends) -> Search:
    """Return the search of a seed, which continues grids at their ends while its budget lasts."""
    configs, runs, tried = plan.configurations(place.row), list[RunSpec](), list[TriedConfig]()
    if len(configs) == 1:
        return Search(best=configs[0])
    best: Config | None = None
    while configs:
        new = [plan.run(place, config, "tuning", seed) for config in configs]
        runs += new
        if pending := [run for run in new if ends(run) is None]:
            return Search(tried, runs, pending)
        tried += [TriedConfig(run.config, {seed: _score(ends(run))}) for run in new]
        best = next(iter(rank(tried)), None)
        configs = [] if best is None else _continue(plan, place, seed, tried, best)
    return Search(tried, runs, (), best)


def _continue(
    plan: StudyPlan, place: Place, seed: int, tried: Sequence[TriedConfig], best: Config
) -> list[Config]:
    """Return the next configurations beyond the ends of grids at which the best one lies."""
    known, more = [result.config for result in tried], list[Config]()
    budget = plan.tuning.configurations or 0
    for _, config in beyond(plan.axes_of(place.row), known, best):
        with suppress(UserError):  # the next value is out of bounds
            plan.run(place, config, "tuning", seed)
            if config not in more and len(known) + len(more) < budget:
                more.append(config)
    return more


def _score(end: Measured | str | None) -> float | None:
    return end.score if isinstance(end, Measured) else None


def rank(tried: Iterable[TriedConfig]) -> list[Config]:
    """Return the configurations without failed ones, best first; ties keep the order of `tried`."""
    scores = [(t.config, t.objective) for t in tried]
    rounded = [(config, round(score, DECIMALS)) for config, score in scores if score is not None]
    return [config for config, _ in sorted(rounded, key=lambda pair: -pair[1])]


def _merge_tried(searches: Iterable[Search]) -> list[TriedConfig]:
    """Return the configurations of all searches, with all scores."""
    merged: dict[str, TriedConfig] = {}
    for result in (result for search in searches for result in search.tried):
        earlier = merged.setdefault(repr(result.config), result)
        merged[repr(result.config)] = replace(earlier, scores={**earlier.scores, **result.scores})
    return list(merged.values())


# --- checks before the first run ------------------------------------------------------------------


def check_cells(plan: StudyPlan) -> list[Experiment]:
    """Check every configuration of every cell, and return each cell's first experiment.

    Raises:
        UserError: naming the cell.
    """
    experiments = []
    for place in plan.places:
        try:
            experiments.append(_check_cell(plan, place))
        except UserError as error:
            named = "" if plan.is_sweep else f"{place}: "
            raise type(error)(f"{named}{error}") from None
    return experiments


def _check_cell(plan: StudyPlan, place: Place) -> Experiment:
    seed = plan.report.seeds[0]
    configs = plan.configurations(place.row) or corners(plan.axes)  # optuna: the ends of ranges
    for config in configs:
        try:
            tuned = plan.run(place, config, "tuning", seed).experiment
            check_metrics(plan, place.row, tuned)
        except UserError as error:
            prefix = f"{config_label(config)}: " if config else ""
            raise type(error)(f"{prefix}{error}") from None
    first = plan.run(place, configs[0], "report", seed).experiment
    check_metrics(plan, place.row, first)
    return first


def check_metrics(plan: StudyPlan, row: str, experiment: Experiment) -> None:
    """Raise an error if a row's method lacks the metric that chooses or one that is shown.

    Raises:
        UserError: naming the metric.
    """
    from fedray.core import algorithms
    from fedray.evaluation.metrics import check_spelling, lacks

    method, chooser = algorithms.get(experiment.algorithm.name), plan.chosen_by(row)
    if chooser.startswith("validation/") and not gives_validation(experiment.data):
        raise UserError(
            f"{chooser} needs validation images, and no client has any; set "
            "data.validation_fraction, for example 0.1, or report.select=test to choose on test "
            "images as papers do"
        )
    for metric, name in [(plan.choose, chooser), *plan.measures(row).items()]:
        check_spelling(method, name)
        if lacks(method, name) and (not plan.is_sweep or metric == plan.choose):
            raise UserError(
                f"{method.name} has no {name}; name another metric, in a table for its row: "
                f"`metrics: {{{metric}: NAME}}`, or null to leave it out"
            )
