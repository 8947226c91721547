"""The runs of a table: which are over, which come next, and where they lie.

    <results>/tables/runs/<key>/result.json ...    a run, the same for every table that needs it
    <results>/tables/<table>/<invocation>/plan.json, table.md, table.tex, ...
                                          from-0.json     a published table whose runs were taken

A run's folder is the truth: whether it is over is read from it. plan.json has the plan, which runs
failed, and what was spent on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from fedray.checkpoint import CheckpointStore
from fedray.config import Experiment, Tree, validate
from fedray.errors import UserError
from fedray.files import write_json
from fedray.records import BEST, RunFolder, sealed
from fedray.sweep.ledger import DIVERGED, Trial, read_state, write_state
from fedray.sweep.seeds import MergedRound, merge
from fedray.sweep.spec import words
from fedray.tables.agenda import Cell, Ended, Standing, Wanted
from fedray.tables.measured import Measured, measured
from fedray.tables.plan import TablePlan
from fedray.tables.published import Published

FILE = "plan.json"
FORMAT = 1


@dataclass
class RunTrial(Trial):
    """A run as a trial of Ray Tune.

    Attributes:
        wanted: by the first cell that needs it.
        folder: where it lies.
    """

    wanted: Wanted | None = None
    folder: Path = field(default_factory=Path)

    @property
    def name(self) -> str:
        """What it is called in the tracker."""
        assert self.wanted is not None
        return f"{self.wanted.place}, {self.wanted.phase}: {words(self.config)}"


@dataclass
class Book:
    """The state of one invocation of a table; what Ray Tune's watcher enters the trials in.

    Attributes:
        home: the invocation's folder.
        plan: what is run.
        store: where runs are.
        command: what was typed first.
        status: running until every cell is over.
        began: local time.
        seconds: of the trials of this table's invocation, start-up included.
        failures: why runs failed, by key, whatever row they are of.
        published: tables whose runs are not made again.
        taken: the runs that were taken from there, and from which.
        stored: the finished runs that were there before and are not made again, by key.
        trials: by number, in the order in which they were asked for.
    """

    home: Path
    plan: TablePlan
    store: Path
    command: str = ""
    status: Literal["running", "finished"] = "running"
    began: str = field(default_factory=lambda: datetime.now().isoformat(timespec="seconds"))
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    published: Sequence[Published] = ()
    taken: dict[str, Published] = field(default_factory=dict)
    trials: dict[int, Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cells = [Cell(self.plan, place) for place in self.plan.places]
        self._numbers: dict[str, int] = {}
        self._measured: dict[tuple[str, str], Measured] = {}
        self._lacking: dict[tuple[str, str], str] = {}
        self._published_failures: dict[str, str] = {}
        self._standings: list[tuple[Cell, Standing]] | None = None
        self.stored: dict[str, Wanted] = {}

    # --- which runs -------------------------------------------------------------------------------

    def folder(self, key: str) -> Path:
        """Where a run lies."""
        return self.store / key

    def measured(self, key: str, row: str) -> Measured | None:
        """What a run came to for a row; None while it is not over, or where there is a `reason`."""
        if key in self.failures:
            return None
        if (key, row) in self._measured:
            return self._measured[key, row]
        number = self._numbers.get(key)
        if number is not None and not self.trials[number].is_over:
            return None
        if (key, row) in self._lacking or not RunFolder(self.folder(key)).is_finished:
            return None
        return self._take(key, row)

    def _take(self, key: str, row: str) -> Measured | None:
        """Read what a run that is over came to for a row; the other rows may find it there."""
        try:
            self._measured[key, row] = measured(self.folder(key), self.plan, row)
        except UserError as error:
            self._lacking[key, row] = str(error)
        return self._measured.get((key, row))

    def reason(self, key: str, row: str) -> str | None:
        """Why a row has no numbers of a run that is over: it failed, or did not measure them."""
        return self.failure(key) or self._lacking.get((key, row))

    def failure(self, key: str) -> str | None:
        """Why a run failed, here or where it was taken from, whatever row it is of."""
        return self.failures.get(key) or self._published_failures.get(key)

    @property
    def reasons(self) -> list[str]:
        """Every reason once."""
        return list(dict.fromkeys([*self.failures.values(), *self._lacking.values()]))

    def came_to(self, wanted: Wanted) -> Measured | str | None:
        """What a run came to for its row, or why it failed; None while it is not over."""
        key, row = wanted.key, wanted.place.row
        found = self.measured(key, row)
        if found is not None and not (key in self._numbers or key in self.taken):
            self.stored[key] = wanted
        return found or self.reason(key, row) or self._take_over(wanted)

    def _take_over(self, wanted: Wanted) -> Measured | str | None:
        """What a run that is not here came to in a published table."""
        key, row = wanted.key, wanted.place.row
        for source in self.published if key not in self._numbers else ():
            found = source.find(wanted.experiment, self.plan, row, wanted.phase)
            if found is None:
                continue
            self.taken[key] = source
            if isinstance(found, str):
                self._published_failures[key] = found
            elif found.values.keys() == self.plan.measures(row).keys():
                self._measured[key, row] = found  # else a tuning run, which may be reported yet
            return found
        return None

    def measured_runs(self, runs: Iterable[Wanted]) -> dict[str, Measured]:
        """What those of the runs came to that came through, by key: a run that rows share once.

        It counts where one row has its numbers, though another misses one of its own.
        """
        found: dict[str, Measured] = {}
        for run in runs:
            if run.key not in found and isinstance(end := self.came_to(run), Measured):
                found[run.key] = end
        return found

    def lookup(self, wanted: Wanted) -> Ended | None:
        """How a run ended."""
        found = self.came_to(wanted)
        if isinstance(found, Measured):
            return Ended(found.score)
        return None if found is None else Ended(None, diverged=found.startswith(DIVERGED))

    def standings(self) -> list[tuple[Cell, Standing]]:
        """Where every cell stands; the runs that have become ready are entered."""
        if self._standings is None:
            self._standings = [(cell, cell.standing(self.lookup)) for cell in self.cells]
            for _, standing in self._standings:
                for wanted in standing.wanted:
                    self._enter(wanted)
        return self._standings

    def next(self) -> RunTrial | None:
        """The run to begin now, tuning before reports; None when nothing is ready."""
        self.standings()
        ready = [trial for trial in self.ordered if trial.status == "pending"]
        runs = [trial for trial in ready if isinstance(trial, RunTrial)]
        return min(runs, key=_urgency, default=None)

    @property
    def cells_over(self) -> int:
        """How many cells are over."""
        return sum(standing.phase in ("over", "failed") for _, standing in self.standings())

    @property
    def is_complete(self) -> bool:
        """Whether every cell is over."""
        return self.cells_over == len(self.cells)

    def _enter(self, wanted: Wanted) -> None:
        if wanted.key in self._numbers:
            return
        number = self._numbers[wanted.key] = len(self.trials)
        place, columns = wanted.place, len(self.plan.columns)
        config = {"row": place.row} | ({"column": place.column} if columns > 1 else {})
        config |= wanted.config | {"seed": wanted.seed}
        folder = self.folder(wanted.key)
        self.trials[number] = RunTrial(number, config, wanted=wanted, folder=folder)

    # --- what the watcher asks --------------------------------------------------------------------

    @property
    def ordered(self) -> list[Trial]:
        """All trials by number."""
        return [self.trials[number] for number in sorted(self.trials)]

    @property
    def open(self) -> list[Trial]:
        """The runs that are ready or running."""
        return [trial for trial in self.ordered if not trial.is_over]

    @property
    def total(self) -> int:
        """How many runs there will be, as far as is known."""
        to_come = sum(cell.to_come(at) for cell, at in self.standings())
        return len(self.trials) + to_come

    @property
    def leading(self) -> Trial | None:
        """None: which run has the highest number says nothing."""
        return None

    @property
    def seeds_of_a_trial(self) -> int:
        """One."""
        return 1

    @property
    def stops_early(self) -> bool:
        """Never."""
        return False

    @property
    def usual_rounds(self) -> int:
        """Rounds of a reported run."""
        cell = self.cells[0]
        return cell.wanted(cell.first[0], "report", self.plan.report.seeds[0]).experiment.rounds

    @property
    def how(self) -> str:
        """What marks a run's number."""
        return BEST[self.plan.select].replace("best", self.plan.at)

    def experiment_of(self, trial: Trial) -> Experiment:
        """A run's experiment."""
        return wanted_of(trial).experiment

    def rounds_of(self, trial: Trial) -> list[MergedRound]:
        """The rounds that a run has finished, from its folder."""
        rounds = RunFolder(folder_of(trial)).rounds()
        watched = watched_of(self.plan, wanted_of(trial))
        return [merge([done], *watched) for done in rounds]

    def is_whole(self, trial: Trial) -> bool:
        """Whether a run has done all its rounds."""
        return RunFolder(folder_of(trial)).is_finished

    def measure(self, trial: Trial, rounds: Sequence[MergedRound]) -> None:
        """Record what a run came to; a failure for good, so that nobody waits for it."""
        wanted = wanted_of(trial)
        key, row = wanted.key, wanted.place.row
        self.seconds[key] = self.seconds.get(key, 0.0) + trial.seconds
        self._standings = None
        self.taken.pop(key, None)
        if trial.reason is not None:
            self.failures[key] = trial.reason
            return
        found = self._take(key, row)
        trial.reason = self.reason(key, row)
        if found is not None:
            trial.objective, trial.best_rounds = found.choice, [found.round]
        if rounds:
            trial.last_round = rounds[-1].round
            CheckpointStore(folder_of(trial), identity="").clear()  # nobody resumes the run

    def try_again(self) -> None:
        """Forget the failures that say nothing of what was run; their cause may be gone."""
        kept = {key: why for key, why in self.failures.items() if why.startswith(DIVERGED)}
        self.failures, self._standings = kept, None

    # --- the file ---------------------------------------------------------------------------------

    def write(self) -> None:
        """Replace plan.json in one step."""
        tree = {
            "format": FORMAT,
            "table": self.plan.table,
            "status": self.status,
            "began": self.began,
            "command": self.command,
            "store": str(self.store),
            "seconds": self.seconds,
            "failures": self.failures,
            "from": [each.source for each in self.published],
            "plan": self.plan.model_dump(mode="json"),
        }
        self.home.mkdir(parents=True, exist_ok=True)
        for number, published in enumerate(self.published):
            if not (kept := self.home / kept_name(number)).exists():
                write_json(kept, sealed(published.tree))
        write_state(self.home / FILE, tree)

    @classmethod
    def read(cls, home: Path) -> Book:
        """Read what `write` wrote.

        Raises:
            UserError: when it cannot be read.
        """
        return read_state(home / FILE, FORMAT, lambda tree: cls._of(home, tree))

    @classmethod
    def _of(cls, home: Path, tree: Tree) -> Book:
        return cls(
            home=home,
            plan=validate(TablePlan, tree["plan"], str(home / FILE)),
            store=Path(tree["store"]),
            command=tree["command"],
            status=tree["status"],
            began=tree["began"],
            seconds=dict(tree["seconds"]),
            failures=dict(tree["failures"]),
            published=[
                Published.read(source, home / kept_name(number))
                for number, source in enumerate(tree.get("from", ()))
            ],
        )


def kept_name(number: int) -> str:
    """The copy of a published table, which stays as it was when the invocation began."""
    return f"from-{number}.json"


def wanted_of(trial: Trial) -> Wanted:
    """What a trial of a table runs."""
    assert isinstance(trial, RunTrial)
    assert trial.wanted is not None
    return trial.wanted


def folder_of(trial: Trial) -> Path:
    """Where a trial of a table runs."""
    assert isinstance(trial, RunTrial)
    return trial.folder


def _urgency(trial: RunTrial) -> tuple[bool, int]:
    """Tuning first: reports wait for it."""
    return wanted_of(trial).phase == "report", trial.number


def watched_of(plan: TablePlan, wanted: Wanted) -> tuple[str, str]:
    """The number that chooses, and the one that is reported, of a run's row."""
    row = wanted.place.row
    return plan.chosen_by(row), plan.measures(row)[plan.metrics[0]]


def entry(trial: RunTrial, plan: TablePlan) -> Mapping[str, Any]:
    """What the trainable gets as its config."""
    wanted = wanted_of(trial)
    chooser, metric = watched_of(plan, wanted)
    return {
        "number": trial.number,
        "folder": str(trial.folder),
        "experiment": wanted.experiment.model_dump_json(by_alias=True),
        "chooser": chooser,
        "metric": metric,
    }
