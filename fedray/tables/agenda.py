"""What is to be run next: every cell tunes, chooses and reports by itself, none waits for another.

Where a cell stands follows from the runs that are over, and from nothing else: after an
interruption it is worked out again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fedray.config import Experiment
from fedray.errors import UserError
from fedray.sweep.spec import Config
from fedray.tables.plan import Phase, Place, TablePlan, run_key
from fedray.tables.search import Edge, Tried, best_of, configurations, continued


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
    """

    score: float | None


Lookup = Callable[[Wanted], Ended | None]
"""How a run ended; None: it has not."""


@dataclass(frozen=True)
class Standing:
    """Where a cell stands.

    Attributes:
        phase: tuning, report, over; failed: no configuration came through.
        tried: the configurations that were tuned over, with their objectives.
        chosen: the configuration that is reported; None before that is known.
        edges: where the choice lies at an edge, once it is made.
        wanted: the runs of the phase that are not over.
    """

    phase: Literal["tuning", "report", "over", "failed"]
    tried: Sequence[Tried]
    chosen: Config | None
    edges: Sequence[Edge]
    wanted: Sequence[Wanted]


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
            at = self._leader.standing(lookup)
            if at.chosen is None:
                return Standing(at.phase, [], None, [], at.wanted)
            return self._reported([], at.chosen, [], lookup)
        if not self.is_tuned:
            return self._reported([], self.first[0], [], lookup)
        tried: list[Tried] = []
        configs, added, edges = list(self.first), False, list[Edge]()
        while configs:
            runs = [self._tuning(config) for config in configs]
            if left := [run for each in runs for run in each if lookup(run) is None]:
                return Standing("tuning", tried, None, [], left)
            for config, each in zip(configs, runs, strict=True):
                tried.append(Tried(config, _objective(each, lookup), added))
            added = True
            tuning = self.plan.tuning
            configs, edges = continued(
                tried, self._axes, tuning.configurations, self._is_valid, extend=tuning.extend
            )
        best = best_of(tried)
        if best is None:
            return Standing("failed", tried, None, edges, [])
        return self._reported(tried, best.config, edges, lookup)

    def to_come(self, standing: Standing) -> int:
        """How many runs come at least after those that are wanted now."""
        return len(self.plan.report.seeds) if standing.phase == "tuning" else 0

    def _reported(
        self, tried: Sequence[Tried], chosen: Config, edges: Sequence[Edge], lookup: Lookup
    ) -> Standing:
        runs = [self.wanted(chosen, "report", seed) for seed in self.plan.report.seeds]
        left = [run for run in runs if lookup(run) is None]
        return Standing("report" if left else "over", tried, chosen, edges, left)

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
