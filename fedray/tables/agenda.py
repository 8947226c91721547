"""What is to be run next: every cell tunes, chooses and reports by itself, none waits for another.

Where a cell stands follows from the runs that are over, and from nothing else: after an
interruption it is worked out again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from fedray.config import Experiment
from fedray.data.validation import gives_validation
from fedray.errors import UserError
from fedray.sweep.spec import Config
from fedray.tables.plan import Phase, Place, TablePlan, run_key
from fedray.tables.search import Edge, Tried, configurations, continued, ranked


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
        score: what is chosen by, larger is better; None where the run failed.
        diverged: whether it failed because a number was not finite; no other failure (processes
            that died, memory or a disk that was used up) says anything of its configuration.
    """

    score: float | None
    diverged: bool = False


Lookup = Callable[[Wanted], Ended | None]
"""How a run ended; None: it has not."""


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
class Standing:
    """Where a cell stands.

    Attributes:
        phase: tuning, report, over; failed: no configuration came through.
        tried: the configurations that were tuned over, with their objectives.
        chosen: the configuration that is reported; None before that is known.
        edges: where the choice lies at an edge, once it is made.
        wanted: the runs of the phase that are not over.
        dropped: better choices that diverged when they were reported, the best first; where none
            came through, the first is `chosen`, and these are the others.
        diverged: whether `chosen` did, too, since all choices do.
    """

    phase: Literal["tuning", "report", "over", "failed"]
    tried: Sequence[Tried]
    chosen: Config | None
    edges: Sequence[Edge]
    wanted: Sequence[Wanted]
    dropped: Sequence[Dropped] = ()
    diverged: bool = False


class Cell:
    """One cell of a table: its own search, or that of another cell, then the reported runs.

    Args:
        plan: the table.
        place: which cell.

    Attributes:
        first: the configurations that are tried first.
    """

    def __init__(self, plan: TablePlan, place: Place) -> None:
        self.place = place
        self.plan = plan
        self._axes = plan.rows[place.row].axes
        tuning, leader = plan.tuning, plan.leader(place)
        self._leader = None if leader == place else Cell(plan, leader)
        self.first = configurations(
            self._axes, tuning.search, tuning.configurations, tuning.search_seed
        )
        self._known: dict[tuple[str, Phase, int], Wanted] = {}

    @property
    def is_tuned(self) -> bool:
        """Whether there is anything to choose from."""
        return len(self.first) > 1

    def wanted(self, config: Config, phase: Phase, seed: int) -> Wanted:
        """A run of this cell.

        Raises:
            UserError: when the experiment is out of bounds.
        """
        name = (repr(sorted(config.items())), phase, seed)
        if name not in self._known:
            experiment = self.plan.experiment_of(self.place, config, phase, seed)
            key = run_key(experiment)
            self._known[name] = Wanted(key, self.place, config, phase, seed, experiment)
        return self._known[name]

    def standing(self, lookup: Lookup) -> Standing:
        """Where the cell stands, given how runs ended."""
        if self._leader is not None:
            return self._following(self._leader.standing(lookup), lookup)
        if not self.is_tuned:
            return self._reported(Standing("report", [], None, [], []), self.first[:1], [], lookup)
        at = self._tuned(lookup)
        if at.phase != "report":
            return at
        choices = [each.config for each in ranked(at.tried)]
        return self._reported(at, choices, at.tried, lookup)

    def _following(self, leader: Standing, lookup: Lookup) -> Standing:
        """Where the cell stands that takes over what another one reports.

        If that diverges here, it goes on with the configurations that come next there.
        """
        if leader.chosen is None:
            return Standing(leader.phase, [], None, [], leader.wanted)
        known = [leader.chosen, *(each.config for each in leader.dropped)]
        others = [each.config for each in ranked(leader.tried) if each.config not in known]
        at = Standing("report", [], None, leader.edges, [])
        return self._reported(at, [leader.chosen, *others], leader.tried, lookup)

    def _tuned(self, lookup: Lookup) -> Standing:
        """The search: what was tried, and the runs that are left of it."""
        tried: list[Tried] = []
        configs, edges = list(self.first), list[Edge]()
        tuning = self.plan.tuning
        while configs:
            runs = [self._tuning(config) for config in configs]
            if left := [run for each in runs for run in each if lookup(run) is None]:
                return Standing("tuning", tried, None, [], left)
            added = bool(tried)
            for config, each in zip(configs, runs, strict=True):
                tried.append(Tried(config, _objective(each, lookup), added))
            configs, edges = continued(
                tried, self._axes, tuning.configurations, self._is_valid, extend=tuning.extend
            )
        return Standing("report" if ranked(tried) else "failed", tried, None, edges, [])

    def _reported(
        self, at: Standing, choices: Sequence[Config], tried: Sequence[Tried], lookup: Lookup
    ) -> Standing:
        """The report of the first choice that diverges on no seed; of the first, where all do.

        All seeds of a choice are run before it is given up, so that what is said of it does not
        depend on which one ended first.
        """
        dropped: list[Dropped] = []
        for config in choices:
            runs = [self.wanted(config, "report", seed) for seed in self.plan.report.seeds]
            ends = [lookup(run) for run in runs]
            left = [run for run, end in zip(runs, ends, strict=True) if end is None]
            lost = [r.seed for r, end in zip(runs, ends, strict=True) if end and end.diverged]
            if left or not lost:
                phase: Literal["report", "over"] = "report" if left else "over"
                edges = self._edges(tried, config) if dropped else at.edges
                return Standing(phase, at.tried, config, edges, left, dropped)
            dropped.append(Dropped(config, lost))
        return replace(at, phase="over", chosen=choices[0], dropped=dropped[1:], diverged=True)

    def _edges(self, tried: Sequence[Tried], chosen: Config) -> list[Edge]:
        """Where a choice lies at an edge that was not the first one."""
        worse = [each if each.config == chosen else replace(each, objective=None) for each in tried]
        _, edges = continued(
            worse, self._axes, len(worse), self._is_valid, extend=self.plan.tuning.extend
        )
        return [replace(e, why="late") if e.why == "budget" else e for e in edges]

    def to_come(self, standing: Standing) -> int:
        """How many runs come at least after those that are wanted now."""
        return len(self.plan.report.seeds) if standing.phase == "tuning" else 0

    def _tuning(self, config: Config) -> list[Wanted]:
        return [self.wanted(config, "tuning", seed) for seed in self.plan.tuning.seeds]

    def _is_valid(self, config: Config) -> bool:
        try:
            self._tuning(config)
        except UserError:
            return False
        return True


def _objective(runs: Sequence[Wanted], lookup: Lookup) -> float | None:
    """The mean over tuning seeds; None where one of them failed."""
    scores = []
    for run in runs:
        ended = lookup(run)
        if ended is None or ended.score is None:
            return None
        scores.append(ended.score)
    return sum(scores) / len(scores)


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
                f"rows {other} and {cell.place.row} of table {cell.plan.table} would run the same "
                "experiments; give one of them another algorithm or other keys, or leave it out"
            )


def check_metrics(plan: TablePlan, row: str, experiment: Experiment) -> None:
    """Refuse a row that will not have the number it is to be chosen by, or one that it is to show.

    Raises:
        UserError: naming the number.
    """
    from fedray.core import algorithms
    from fedray.evaluation.metrics import check_spelling, lacks

    if plan.select == "validation" and not gives_validation(experiment.data):
        raise UserError(
            "it is chosen on validation images, and no client has any; set "
            "data.validation_fraction, for example 0.1, or select=test to choose on the test as "
            "papers do"
        )
    method, chooser = algorithms.get(experiment.algorithm.name), plan.chosen_by(row)
    for metric, name in [(plan.choose, chooser), *plan.measures(row).items()]:
        check_spelling(method, name)
        if not lacks(method, name):
            continue
        needed = metric in (plan.choose, plan.metrics[0])
        raise UserError(
            f"{method.name} has no {name}; `metrics: {{{metric}: NAME}}` in its row says what "
            f"stands for it{'' if needed else ', and null that nothing does'}"
        )
