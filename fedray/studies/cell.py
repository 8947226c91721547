"""What is to be run next: every cell tunes, chooses and reports by itself, none waits for another.

The state of a cell follows from the runs that are over, and from nothing else: after an
interruption it is worked out again.

Each reported seed tries every configuration and chooses by its own validation images; with
`tuning.once` the mean over these seeds chooses once for all. A sweep has nothing to report: its
configurations are what it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from fedray.compare.labels import config_label
from fedray.config import Experiment
from fedray.data.validation import gives_validation
from fedray.errors import UserError
from fedray.studies.plan import Phase, Place, StudyPlan, run_key
from fedray.studies.space import Config, Edge, continue_grid, corners

DECIMALS = 12
"""Of an objective. Sums of the same numbers in another order differ by less."""


@dataclass(frozen=True)
class Wanted:
    """A run that a cell needs.

    Attributes:
        key: the same for runs that would give the same numbers.
        place: the cell.
        config: the searched keys' values.
        phase: what for.
        seed: of every random stream.
        experiment: what is run.
    """

    key: str
    place: Place
    config: Config
    phase: Phase
    seed: int
    experiment: Experiment = field(compare=False)


@dataclass(frozen=True)
class Ended:
    """How a run ended.

    Attributes:
        score: what is chosen by, larger is better; None if the run failed.
        diverged: whether it failed because a number was not finite; no other failure (processes
            that died, memory or a disk that was used up) says anything of its configuration.
    """

    score: float | None
    diverged: bool = False


Lookup = Callable[[Wanted], Ended | None]
"""How a run ended; None: it has not."""


@dataclass(frozen=True)
class Tried:
    """A configuration and its result in tuning.

    Attributes:
        config: the searched keys' values.
        scores: by tuning seed what is chosen by; larger is better; None if the run failed.
        added: whether the grid was continued for it.
    """

    config: Config
    scores: Mapping[int, float | None]
    added: bool = False

    @property
    def objective(self) -> float | None:
        """The mean over tuning seeds; None if a run failed."""
        known = [score for score in self.scores.values() if score is not None]
        return sum(known) / len(known) if known and len(known) == len(self.scores) else None


@dataclass(frozen=True)
class Dropped:
    """A choice that diverged when it was reported.

    Attributes:
        config: the configuration.
        seeds: the report seeds on which it did.
    """

    config: Config
    seeds: Sequence[int]


@dataclass(frozen=True)
class CellState:
    """How far a cell is.

    Attributes:
        phase: tuning, report, over; failed: no configuration came through.
        tried: the configurations that were tuned over.
        choices: by report seed the configuration that is reported; empty before that is known.
        edges: where the choice lies at an edge, once it is made.
        wanted: the runs of the phase that are not over.
        dropped: better choices that diverged when they were reported, the best first.
        diverged: whether all choices of some seed did, so that its first one is reported.
    """

    phase: Literal["tuning", "report", "over", "failed"]
    tried: Sequence[Tried] = ()
    choices: Mapping[int, Config] = field(default_factory=dict)
    edges: Sequence[Edge] = ()
    wanted: Sequence[Wanted] = ()
    dropped: Sequence[Dropped] = ()
    diverged: bool = False

    @property
    def chosen(self) -> Config | None:
        """The configuration that most seeds chose; of equals the first seed's."""
        choices = list(self.choices.values())
        return max(choices, key=choices.count, default=None)


def rank(tried: Sequence[Tried], seed: int | None) -> list[Config]:
    """Return the configurations, the best first, equal ones as they were tried; without failures.

    Args:
        tried: the configurations.
        seed: whose scores count; None: the mean over all.
    """
    scores = [(t.config, t.objective if seed is None else t.scores.get(seed)) for t in tried]
    known = [(config, round(score, DECIMALS)) for config, score in scores if score is not None]
    return [config for config, _ in sorted(known, key=lambda pair: -pair[1])]


class Cell:
    """One cell of a study: its own search, or that of another cell, then the reported runs.

    Args:
        plan: the study.
        place: which cell.

    Attributes:
        first: the configurations that are tried first; of tpe those that were asked for so far.
        seeds: those that are reported.
        tuning_seeds: those that configurations are compared on.
    """

    def __init__(self, plan: StudyPlan, place: Place) -> None:
        self.place = place
        self.plan = plan
        self._axes = plan.rows[place.row].axes
        leader = plan.leader(place)
        self.leader = None if leader == place else Cell(plan, leader)
        self.first = plan.configurations(place.row)
        self.seeds = plan.seeds_of(place.row)
        self.tuning_seeds = self.seeds if plan.tuning.once is None else plan.tuning.once
        self._known: dict[tuple[str, Phase, int], Wanted] = {}

    @property
    def is_tuned(self) -> bool:
        """Return True if there is more than one configuration."""
        return len(self.first) > 1

    def wanted(self, config: Config, phase: Phase, seed: int) -> Wanted:
        """Return a run of this cell.

        Raises:
            UserError: if the experiment is out of bounds.
        """
        name = (repr(sorted(config.items())), phase, seed)
        if name not in self._known:
            experiment = self.plan.experiment_of(self.place, config, phase, seed)
            key = run_key(experiment)
            self._known[name] = Wanted(key, self.place, config, phase, seed, experiment)
        return self._known[name]

    def state(self, lookup: Lookup) -> CellState:
        """Return how far the cell is, given how runs ended."""
        if self.leader is not None:
            return self._following(self.leader.state(lookup), lookup)
        if self.plan.is_sweep:
            return self._compared(lookup)
        if not self.is_tuned:
            return self._reported([], lambda seed: self.first[:1], (), lookup)
        return self._tuned(lookup)

    def _following(self, leader: CellState, lookup: Lookup) -> CellState:
        """Return how far a cell is that takes over what another one reports.

        If that diverges here, the next configurations there follow.
        """
        if not leader.choices:
            return CellState(leader.phase, wanted=leader.wanted)
        gone = [each.config for each in leader.dropped]

        def order(seed: int) -> list[Config]:
            first = leader.choices.get(seed)
            ranked = rank(leader.tried, self._by(seed))
            others = [each for each in ranked if each != first and each not in gone]
            return others if first is None else [first, *others]

        return self._reported(leader.tried, order, leader.edges, lookup, shows=[])

    def _compared(self, lookup: Lookup) -> CellState:
        """Return how far a sweep is."""
        runs = [(config, self._runs(config)) for config in self.first]
        left = [run for _, each in runs for run in each if lookup(run) is None]
        over = [(c, each) for c, each in runs if all(lookup(run) is not None for run in each)]
        tried = [self._as_tried(config, lookup) for config, _ in over]
        asked = self.plan.tuning.search != "tpe" or (
            len(self.first) == self.plan.tuning.configurations
        )
        return CellState("tuning" if left or not asked else "over", tried, wanted=left)

    def _tuned(self, lookup: Lookup) -> CellState:
        """Return how far the search is, and then the report."""
        tried: list[Tried] = []
        configs, edges = list(self.first), list[Edge]()
        tuning = self.plan.tuning
        while configs:
            runs = [run for config in configs for run in self._runs(config)]
            if left := [run for run in runs if lookup(run) is None]:
                return CellState("tuning", tried, wanted=left)
            tried += [self._as_tried(config, lookup, bool(tried)) for config in configs]
            configs, edges = continue_grid(
                [each.config for each in tried],
                self._best(tried),
                self._axes,
                tuning.configurations or 0,
                self._is_valid,
                extend=tuning.extend,
            )
        return self._reported(tried, lambda seed: rank(tried, self._by(seed)), edges, lookup)

    def _by(self, seed: int) -> int | None:
        """Return whose scores choose for a report seed."""
        return seed if self.plan.tuning.once is None else None

    def _best(self, tried: Sequence[Tried]) -> list[Config]:
        """Return the best configuration of each choice."""
        choosers = self.seeds if self.plan.tuning.once is None else [None]
        return [ranked[0] for by in choosers if (ranked := rank(tried, by))]

    def _reported(
        self,
        tried: Sequence[Tried],
        order: Callable[[int], list[Config]],
        edges: Sequence[Edge],
        lookup: Lookup,
        shows: Sequence[Tried] | None = None,
    ) -> CellState:
        """Return how far the report is: of each seed's first choice that does not diverge.

        Chosen once, a configuration is given up for all seeds if it diverges on one; all seeds are
        run before, so that what is said of it does not depend on which one ended first. If all
        choices diverge, the first is reported.
        """
        seeds = self.seeds
        groups = [[seed] for seed in seeds] if self.plan.tuning.once is None else [list(seeds)]
        choices: dict[int, Config] = {}
        dropped: list[Dropped] = []
        left: list[Wanted] = []
        diverged = False
        for group in groups:
            at = self._first_through(group, order(group[0]), lookup)
            choices |= {seed: at.chosen for seed in group if at.chosen is not None}
            _add(dropped, at.dropped)
            left += at.wanted
            diverged = diverged or at.diverged
        if not choices:
            return CellState("failed", tried)
        phase: Literal["report", "over"] = "report" if left else "over"
        if dropped:
            edges = self._late_edges(tried, choices)
        shown = tried if shows is None else shows
        return CellState(phase, shown, choices, edges, left, dropped, diverged)

    def _first_through(self, seeds: list[int], ranked: list[Config], lookup: Lookup) -> CellState:
        """Return the report of the first choice that diverges on none of some seeds."""
        dropped: list[Dropped] = []
        for config in ranked:
            runs = [self.wanted(config, "report", seed) for seed in seeds]
            ends = [lookup(run) for run in runs]
            left = [run for run, end in zip(runs, ends, strict=True) if end is None]
            lost = [r.seed for r, end in zip(runs, ends, strict=True) if end and end.diverged]
            if left or not lost:
                choices = dict.fromkeys(seeds, config)
                return CellState("report", (), choices, wanted=left, dropped=dropped)
            dropped.append(Dropped(config, lost))
        choices = dict.fromkeys(seeds, ranked[0]) if ranked else {}
        return CellState("over", (), choices, dropped=dropped[1:], diverged=bool(ranked))

    def _late_edges(self, tried: Sequence[Tried], choices: Mapping[int, Config]) -> list[Edge]:
        """Return the edges of choices that were not all the first ones; grids do not go on."""
        known = [each.config for each in tried]
        chosen = [*choices.values()] if self.plan.tuning.once is None else [*choices.values()][:1]
        extend = self.plan.tuning.extend
        _, edges = continue_grid(
            known, chosen, self._axes, len(known), self._is_valid, extend=extend
        )
        return [
            Edge(edge.key, edge.value, edge.end, "late") if edge.why == "budget" else edge
            for edge in edges
        ]

    def all_runs(self, state: CellState) -> list[Wanted]:
        """Return the runs that are known by now: what chooses, then what is reported."""
        plan, leads = self.plan, self.leader is None
        runs: list[Wanted] = []
        if leads and (plan.is_sweep or self.is_tuned):
            added = [each.config for each in state.tried if each.added]
            runs += [run for config in [*self.first, *added] for run in self._runs(config)]
            runs += [run for run in state.wanted if run.phase == "tuning"]
        for each in state.dropped:
            runs += [self.wanted(each.config, "report", seed) for seed in self._group(each.seeds)]
        runs += [self.wanted(c, "report", seed) for seed, c in state.choices.items()]
        return list({run.key: run for run in runs}.values())

    def usual_runs(self) -> list[Wanted]:
        """Return the first configuration's runs with all seeds, for what all runs read."""
        config = self.first[0] if self.first else self._corner
        return [self.wanted(config, "report", seed) for seed in self.seeds]

    @property
    def _corner(self) -> Config:
        return corners(self._axes)[0]

    def _group(self, seeds: Sequence[int]) -> Sequence[int]:
        """Return the seeds that report a choice which some of them dropped."""
        return seeds if self.plan.tuning.once is None else self.seeds

    def to_come(self, state: CellState) -> int:
        """Return how many runs come at least after those that are wanted now."""
        plan = self.plan
        if plan.is_sweep and plan.tuning.search == "tpe":
            more = (plan.tuning.configurations or 0) - len(self.first)
            return more * len(self.seeds)
        if state.phase != "tuning" or plan.is_sweep:
            return 0
        seed = self.tuning_seeds[0]
        config = self.first[0]
        if plan.tuning.once is None and self.leader is None:
            tuned, reported = (self.wanted(config, phase, seed) for phase in get_args(Phase))
            return 0 if tuned.key == reported.key else len(self.seeds)
        return len(self.seeds)

    def _runs(self, config: Config) -> list[Wanted]:
        return [self.wanted(config, "tuning", seed) for seed in self.tuning_seeds]

    def _as_tried(self, config: Config, lookup: Lookup, added: bool = False) -> Tried:
        ends = {run.seed: lookup(run) for run in self._runs(config)}
        return Tried(config, {s: end.score if end else None for s, end in ends.items()}, added)

    def _is_valid(self, config: Config) -> bool:
        try:
            self._runs(config)
        except UserError:
            return False
        return True


def _add(dropped: list[Dropped], more: Iterable[Dropped]) -> None:
    """Add choices that were dropped; one that other seeds dropped, too, gets their seeds."""
    for each in more:
        for number, known in enumerate(dropped):
            if known.config == each.config:
                dropped[number] = Dropped(each.config, [*known.seeds, *each.seeds])
                break
        else:
            dropped.append(each)


# --- before anything starts -----------------------------------------------------------------------


def check_cells(cells: Iterable[Cell]) -> list[Experiment]:
    """Check every configuration of every cell, and return each cell's first experiment.

    Raises:
        UserError: naming the cell.
    """
    found = []
    for cell in cells:
        try:
            found.append(_check_cell(cell))
        except UserError as error:
            named = "" if cell.plan.is_sweep else f"{cell.place}: "
            raise type(error)(f"{named}{error}") from None
    return found


def _check_cell(cell: Cell) -> Experiment:
    plan, row = cell.plan, cell.place.row
    configs = cell.first or corners(plan.axes)  # of tpe the ends of every range
    for config in configs:
        try:
            tuned = cell.wanted(config, "tuning", plan.tuning_seeds[0]).experiment
            check_metrics(plan, row, tuned)
        except UserError as error:
            said = f"{config_label(config)}: " if config else ""
            raise type(error)(f"{said}{error}") from None
    first = cell.wanted(configs[0], "report", plan.report.seeds[0]).experiment
    check_metrics(plan, row, first)
    return first


def check_rows_differ(cells: Iterable[Cell]) -> None:
    """Refuse rows that compare a method with itself: the same runs in the same column.

    Raises:
        UserError: naming the rows.
    """
    found: dict[tuple[str, frozenset[str], str], str] = {}
    for cell in cells:
        seed = cell.plan.report.seeds[0]
        keys = frozenset(cell.wanted(config, "report", seed).key for config in cell.first)
        measures = repr(sorted(cell.plan.rows[cell.place.row].metrics.items()))
        other = found.setdefault((cell.place.column, keys, measures), cell.place.row)
        if other != cell.place.row:
            raise UserError(
                f"rows {other} and {cell.place.row} of table {cell.plan.name} would run the same "
                "experiments; give one of them another algorithm or other keys, or leave it out"
            )


def check_metrics(plan: StudyPlan, row: str, experiment: Experiment) -> None:
    """Refuse a row that will not have the number it is to be chosen by, or one that it is to show.

    Raises:
        UserError: naming the number.
    """
    from fedray.core import algorithms
    from fedray.evaluation.metrics import check_spelling, lacks

    method, chooser = algorithms.get(experiment.algorithm.name), plan.chosen_by(row)
    if chooser.startswith("validation/") and not gives_validation(experiment.data):
        raise UserError(
            f"{chooser} chooses, and no client has validation images; set "
            "data.validation_fraction, for example 0.1, or select=test to choose on the test as "
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
            f"{method.name} has no {name}; `metrics: {{{metric}: NAME}}` in its row says what "
            f"stands for it{'' if needed else ', and null that nothing does'}"
        )
