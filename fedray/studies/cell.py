"""The runs that a cell of a study needs next.

Every cell tunes, chooses a configuration and reports independently of the other cells. The state of
a cell is computed from its finished runs only, so an interrupted study recomputes the same state.

Each reported seed searches by itself and chooses by its own validation images: the configurations
that it tries, extensions of the grid included, depend on no other seed. A sweep has no report
phase: its result is the comparison of its configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

from fedray.base.errors import UserError
from fedray.config import Experiment
from fedray.data.validation import gives_validation
from fedray.results.design import Config, Place
from fedray.results.labels import config_label
from fedray.results.record import Edge
from fedray.studies.plan import Phase, StudyPlan, name_of, store_key
from fedray.studies.space import continue_grid, corners, merge_edges, parse_space

DECIMALS = 12
"""Objectives are rounded to this many decimals: the order of a sum must not change a ranking."""


@dataclass(frozen=True)
class RunSpec:
    """A run that a cell needs.

    Attributes:
        key: equal for runs that would give the same numbers.
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
        return name_of(self.experiment)


@dataclass(frozen=True)
class RunEnd:
    """The end of a run.

    Attributes:
        score: the value that ranks configurations, larger is better; None if the run failed.
        diverged: True if the run failed because a number was not finite. Other failures (a dead
            process, no memory, a full disk) say nothing about the configuration.
    """

    score: float | None
    diverged: bool = False


Lookup = Callable[[RunSpec], RunEnd | None]
"""Returns the end of a run, or None if the run has not ended."""


@dataclass(frozen=True)
class TriedConfig:
    """A configuration and its tuning scores.

    Attributes:
        config: values of the searched keys.
        scores: score by the tuning seed that tried it, larger is better; None if the run failed.
        added: True if the grid was extended by this configuration.
    """

    config: Config
    scores: Mapping[int, float | None]
    added: bool = False

    @property
    def objective(self) -> float | None:
        """Mean score over the seeds that tried it; None if a run failed."""
        scores = [score for score in self.scores.values() if score is not None]
        return sum(scores) / len(scores) if scores and len(scores) == len(self.scores) else None


@dataclass(frozen=True)
class DroppedChoice:
    """A chosen configuration that diverged when it was reported.

    Attributes:
        config: the configuration.
        seeds: the report seeds on which it diverged.
    """

    config: Config
    seeds: Sequence[int]


@dataclass(frozen=True)
class CellState:
    """The progress of a cell.

    Attributes:
        phase: tuning, report, over, or failed (every configuration failed).
        tried: the configurations with finished tuning runs.
        choices: the reported configuration by report seed; empty before the choice.
        edges: edges of the space at which the choice lies; empty before the choice.
        pending: unfinished runs of the phase.
        dropped: better-ranked choices that diverged in the report, best first.
    """

    phase: Literal["tuning", "report", "over", "failed"]
    tried: Sequence[TriedConfig] = ()
    choices: Mapping[int, Config] = field(default_factory=dict)
    edges: Sequence[Edge] = ()
    pending: Sequence[RunSpec] = ()
    dropped: Sequence[DroppedChoice] = ()

    @property
    def chosen(self) -> Config | None:
        """The configuration that most seeds chose; ties go to the earlier seed."""
        choices = list(self.choices.values())
        return max(choices, key=choices.count, default=None)


@dataclass(frozen=True)
class Search:
    """The search of one seed.

    Attributes:
        tried: the configurations with finished runs.
        edges: edges of the space at which the best one lies.
        pending: unfinished runs.
    """

    tried: Sequence[TriedConfig]
    edges: Sequence[Edge] = ()
    pending: Sequence[RunSpec] = ()


def rank(tried: Sequence[TriedConfig]) -> list[Config]:
    """Return the configurations without failed ones, best first; ties keep the order of `tried`."""
    scores = [(t.config, t.objective) for t in tried]
    rounded = [(config, round(score, DECIMALS)) for config, score in scores if score is not None]
    return [config for config, _ in sorted(rounded, key=lambda pair: -pair[1])]


class Cell:
    """One cell of a study: a search, or the result of another cell's search, then reported runs.

    Args:
        plan: the study.
        place: the row and column of the cell.

    Attributes:
        leader: the cell whose choice this cell reports; None if the cell tunes by itself.
        first: the configurations tried first; with tpe, those suggested so far.
        seeds: the seeds, each of which chooses and reports.
    """

    def __init__(self, plan: StudyPlan, place: Place) -> None:
        self.place = place
        self.plan = plan
        self._axes = parse_space(plan.rows[place.row].space)
        leader = plan.leader(place)
        self.leader = None if leader == place else Cell(plan, leader)
        self.first = plan.configurations(place.row)
        self.seeds = plan.report.seeds
        self._specs: dict[tuple[str, Phase, int], RunSpec] = {}

    @property
    def is_tuned(self) -> bool:
        """Return True if there is more than one configuration."""
        return len(self.first) > 1

    def run_spec(self, config: Config, phase: Phase, seed: int) -> RunSpec:
        """Return a run of this cell.

        Raises:
            UserError: if the experiment is invalid.
        """
        name = (repr(sorted(config.items())), phase, seed)
        if name not in self._specs:
            experiment = self.plan.experiment_of(self.place, config, phase, seed)
            key = store_key(experiment)
            self._specs[name] = RunSpec(key, self.place, config, phase, seed, experiment)
        return self._specs[name]

    def state(self, lookup: Lookup) -> CellState:
        """Return the cell's progress, computed from the ends of its runs."""
        if self.leader is not None:
            return self._follow_leader(self.leader.state(lookup), lookup)
        if not self.is_tuned:
            return self._report_state([], dict.fromkeys(self.seeds, self.first[:1]), (), lookup)
        return self._search_state(lookup)

    def _follow_leader(self, leader: CellState, lookup: Lookup) -> CellState:
        """Return the progress of a cell that reports the choices of another cell."""
        if not leader.choices:
            return CellState(leader.phase, pending=leader.pending)
        choices = {seed: [leader.choices[seed]] for seed in self.seeds if seed in leader.choices}
        return replace(self._report_state((), choices, (), lookup), edges=leader.edges)

    def _search_state(self, lookup: Lookup) -> CellState:
        """Return the progress of the searches or, after all of them, of the report."""
        searches = {seed: self._search(seed, lookup) for seed in self.seeds}
        tried = _merge_tried(searches.values())
        pending = {run.key: run for search in searches.values() for run in search.pending}
        if pending:
            return CellState("tuning", tried, pending=list(pending.values()))
        rankings = {seed: rank(search.tried) for seed, search in searches.items()}
        edges = merge_edges({seed: search.edges for seed, search in searches.items()})
        return self._report_state(tried, rankings, edges, lookup)

    def _search(self, seed: int, lookup: Lookup) -> Search:
        """Return the search of a seed, as far as its runs have ended."""
        tried: list[TriedConfig] = []
        configs, edges = list(self.first), list[Edge]()
        while configs:
            runs = [self.run_spec(config, "tuning", seed) for config in configs]
            if unfinished := [run for run in runs if lookup(run) is None]:
                return Search(tried, pending=unfinished)
            tried += [self._result(config, [seed], lookup, bool(tried)) for config in configs]
            known, ranked = [result.config for result in tried], rank(tried)
            configs, edges = self._continue(known, ranked[0], seed) if ranked else ([], [])
        return Search(tried, edges)

    def _continue(
        self, tried: Sequence[Config], best: Config, seed: int, budget: int | None = None
    ) -> tuple[list[Config], list[Edge]]:
        """Return what `continue_grid` returns; `budget` is by default that of the plan."""
        tuning = self.plan.tuning

        def is_valid(config: Config) -> bool:
            try:
                self.run_spec(config, "tuning", seed)
            except UserError:
                return False
            return True

        most = tuning.configurations or 0 if budget is None else budget
        return continue_grid(tried, best, self._axes, most, is_valid, extend=tuning.extend)

    def _report_state(
        self,
        tried: Sequence[TriedConfig],
        rankings: Mapping[int, Sequence[Config]],
        edges: Sequence[Edge],
        lookup: Lookup,
    ) -> CellState:
        """Return the progress of the report: for each seed, the best choice that does not diverge.

        If all choices diverge, the first is reported.
        """
        choices: dict[int, Config] = {}
        dropped: list[DroppedChoice] = []
        unfinished: list[RunSpec] = []
        for seed, ranked in rankings.items():
            better, run = self._first_finite(ranked, seed, lookup)
            if run is None and better:
                run = self.run_spec(better.pop(0), "report", seed)
            for config in better:
                _drop(dropped, config, seed)
            if run is not None:
                choices[seed] = run.config
                unfinished += [run] if lookup(run) is None else []
        if not choices:
            return CellState("failed", tried)
        phase: Literal["report", "over"] = "report" if unfinished else "over"
        if dropped:
            late = {seed for choice in dropped for seed in choice.seeds}
            edges = self._edges_after(tried, choices, late)
        return CellState(phase, tried, choices, edges, unfinished, dropped)

    def _first_finite(
        self, ranked: Iterable[Config], seed: int, lookup: Lookup
    ) -> tuple[list[Config], RunSpec | None]:
        """Return the choices that diverged on a seed, and the run of the next; None without one."""
        diverged: list[Config] = []
        for config in ranked:
            run = self.run_spec(config, "report", seed)
            end = lookup(run)
            if end is None or not end.diverged:
                return diverged, run
            diverged.append(config)
        return diverged, None

    def _edges_after(
        self, tried: Sequence[TriedConfig], choices: Mapping[int, Config], late: Collection[int]
    ) -> list[Edge]:
        """Return the edges of choices; grids are not extended for the seeds that dropped one."""
        by_seed = {}
        for seed, config in choices.items():
            configs = [result.config for result in tried if seed in result.scores]
            _, edges = self._continue(configs, config, seed, len(configs))
            by_seed[seed] = [
                replace(edge, why="late") if edge.why == "budget" and seed in late else edge
                for edge in edges
            ]
        return merge_edges(by_seed)

    def all_runs(self, state: CellState) -> list[RunSpec]:
        """Return the runs needed so far: tuning runs first, then reported runs."""
        runs: list[RunSpec] = []
        if self.leader is None and self.is_tuned:
            runs += [run for config in self.first for run in self._tuning_runs(config)]
            for added in (result for result in state.tried if result.added):
                runs += self._tuning_runs(added.config, list(added.scores))
            runs += [run for run in state.pending if run.phase == "tuning"]
        for choice in state.dropped:
            runs += [self.run_spec(choice.config, "report", seed) for seed in choice.seeds]
        runs += [self.run_spec(c, "report", seed) for seed, c in state.choices.items()]
        return list({run.key: run for run in runs}.values())

    def usual_runs(self) -> list[RunSpec]:
        """Return one configuration's runs with all seeds, for checks of what all runs share."""
        config = self.first[0] if self.first else self._corner
        return [self.run_spec(config, "report", seed) for seed in self.seeds]

    @property
    def _corner(self) -> Config:
        return corners(self._axes)[0]

    def min_further_runs(self, state: CellState) -> int:
        """Return the least number of runs that follow the pending ones."""
        if state.phase != "tuning":
            return 0
        if self.leader is None:
            phases, first = get_args(Phase), self.first[0]
            tuned, reported = (self.run_spec(first, phase, self.seeds[0]) for phase in phases)
            return 0 if tuned.key == reported.key else len(self.seeds)
        return len(self.seeds)

    def _tuning_runs(self, config: Config, seeds: Sequence[int] | None = None) -> list[RunSpec]:
        """Return a configuration's tuning runs; `seeds` are by default all seeds."""
        return [
            self.run_spec(config, "tuning", s) for s in (self.seeds if seeds is None else seeds)
        ]

    def _result(
        self, config: Config, seeds: Sequence[int], lookup: Lookup, added: bool = False
    ) -> TriedConfig:
        ends = {run.seed: lookup(run) for run in self._tuning_runs(config, seeds)}
        return TriedConfig(
            config, {s: end.score if end else None for s, end in ends.items()}, added
        )


class SweepCell(Cell):
    """The only cell of a sweep, whose configurations all run with every seed."""

    def state(self, lookup: Lookup) -> CellState:
        """Return the cell's progress; failed if every configuration failed."""
        runs = {i: self._tuning_runs(config) for i, config in enumerate(self.first)}
        waiting = {i: [run for run in of if lookup(run) is None] for i, of in runs.items()}
        tried = [self._result(self.first[i], self.seeds, lookup) for i in runs if not waiting[i]]
        pending = [run for of in waiting.values() for run in of]
        if pending or self._unknown():
            return CellState("tuning", tried, pending=pending)
        failed = all(result.objective is None for result in tried)
        return CellState("failed" if failed else "over", tried)

    def all_runs(self, state: CellState) -> list[RunSpec]:
        """Return the runs of all configurations so far."""
        return [run for config in self.first for run in self._tuning_runs(config)]

    def min_further_runs(self, state: CellState) -> int:
        """Return the number of runs of the configurations that tpe has not suggested yet."""
        return self._unknown() * len(self.seeds)

    def _unknown(self) -> int:
        tuning = self.plan.tuning
        return (tuning.configurations or 0) - len(self.first) if tuning.search == "tpe" else 0


def cell_of(plan: StudyPlan, place: Place) -> Cell:
    """Return a cell of a study."""
    return (SweepCell if plan.is_sweep else Cell)(plan, place)


def _merge_tried(searches: Iterable[Search]) -> list[TriedConfig]:
    """Return the configurations of all searches, those of the first grid first, with all scores."""
    merged: dict[str, TriedConfig] = {}
    for result in (result for search in searches for result in search.tried):
        earlier = merged.setdefault(repr(result.config), result)
        merged[repr(result.config)] = replace(earlier, scores={**earlier.scores, **result.scores})
    return sorted(merged.values(), key=lambda result: result.added)


def _drop(dropped: list[DroppedChoice], config: Config, seed: int) -> None:
    """Record that a configuration diverged on a seed."""
    for number, earlier in enumerate(dropped):
        if earlier.config == config:
            dropped[number] = DroppedChoice(config, [*earlier.seeds, seed])
            return
    dropped.append(DroppedChoice(config, [seed]))


# --- checks before the first run ------------------------------------------------------------------


def check_cells(cells: Iterable[Cell]) -> list[Experiment]:
    """Check every configuration of every cell, and return each cell's first experiment.

    Raises:
        UserError: naming the cell.
    """
    experiments = []
    for cell in cells:
        try:
            experiments.append(_check_cell(cell))
        except UserError as error:
            named = "" if cell.plan.is_sweep else f"{cell.place}: "
            raise type(error)(f"{named}{error}") from None
    return experiments


def _check_cell(cell: Cell) -> Experiment:
    plan, row = cell.plan, cell.place.row
    configs = cell.first or corners(plan.axes)  # tpe: check the ends of every range
    for config in configs:
        try:
            tuned = cell.run_spec(config, "tuning", plan.report.seeds[0]).experiment
            check_metrics(plan, row, tuned)
        except UserError as error:
            prefix = f"{config_label(config)}: " if config else ""
            raise type(error)(f"{prefix}{error}") from None
    first = cell.run_spec(configs[0], "report", plan.report.seeds[0]).experiment
    check_metrics(plan, row, first)
    return first


def check_rows_differ(cells: Iterable[Cell]) -> None:
    """Raise an error if two rows have the same runs in a column, and so compare nothing.

    Raises:
        UserError: naming the rows.
    """
    rows: dict[tuple[str, frozenset[str], str], str] = {}
    for cell in cells:
        seed = cell.plan.report.seeds[0]
        keys = frozenset(cell.run_spec(config, "report", seed).key for config in cell.first)
        measures = repr(sorted(cell.plan.rows[cell.place.row].metrics.items()))
        other = rows.setdefault((cell.place.column, keys, measures), cell.place.row)
        if other != cell.place.row:
            raise UserError(
                f"rows {other} and {cell.place.row} of table {cell.plan.name} would run the same "
                "experiments; give one of them another algorithm or other keys, or leave it out"
            )


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
            "data.validation_fraction, for example 0.1, or select=test to choose on test images as "
            "papers do"
        )
    for metric, name in [(plan.choose, chooser), *plan.measures(row).items()]:
        check_spelling(method, name)
        if not lacks(method, name):
            continue
        if plan.is_sweep:
            if metric != plan.choose:
                continue  # a column of a sweep may be empty
            raise UserError(f"{method.name} has no {name}; set another metric in the sweep's file")
        needed = metric in (plan.choose, plan.metrics[0])
        raise UserError(
            f"{method.name} has no {name}; name another metric in its row with "
            f"`metrics: {{{metric}: NAME}}`{'' if needed else ', or null to leave it out'}"
        )
