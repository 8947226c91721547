"""The state of one invocation of a study: finished runs, next runs, and their folders.

    <results>/<sweep>/<invocation>/plan.json, trials.csv, sweep.png, best.yaml
    <results>/tables/<table>/<invocation>/plan.json, table.md, table.tex, ...
                                          from-0.json     a published table whose runs were taken

A run's folder is the truth: it tells whether the run has finished. plan.json has the plan, the runs
that failed, and the time spent on them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from fedray.checkpoint import CheckpointStore
from fedray.compare.labels import config_label
from fedray.config import Tree, validate
from fedray.errors import UserError, named
from fedray.files import write_json
from fedray.records import RunFolder, sealed, unsealed
from fedray.records.checked_json import CHECKSUM
from fedray.studies.cell import Cell, CellState, RunEnd, RunSpec
from fedray.studies.interim_looks import Looks
from fedray.studies.plan import StudyPlan
from fedray.studies.registration import Registration
from fedray.studies.store import Measured, Published, measured

FILE = "plan.json"
FORMAT = 1
DIED = "it died"
"""How the reason begins of a run that failed because its processes died."""
DIVERGED = "it diverged"
"""Likewise, because a number was not finite: that alone speaks against its configuration."""
Status = Literal["pending", "running", "finished", "stopped", "failed"]


@dataclass
class StudyRun:
    """A run as a trial of Ray Tune.

    Attributes:
        number: from 0, in the order in which runs were asked for.
        spec: by the first cell that needs it.
        folder: where it lies.
        status: pending: not begun, or interrupted; stopped: ended early by ASHA.
        objective: what chooses, so far.
        round: where that was measured.
        last_round: the last finished round.
        reason: why it failed.
        seconds: from the start of its actor to its end, over all attempts.
        ray_id: Ray Tune's name of the trial.
    """

    number: int
    spec: RunSpec
    folder: Path
    status: Status = "pending"
    objective: float | None = None
    round: int | None = None
    last_round: int | None = None
    reason: str | None = None
    seconds: float = 0.0
    ray_id: str | None = None

    @property
    def is_over(self) -> bool:
        """Return True if nothing is left to do."""
        return self.status in ("finished", "stopped", "failed")

    @property
    def cost(self) -> int:
        """Return its relative cost: rounds times epochs."""
        experiment = self.spec.experiment
        return experiment.rounds * max(1, experiment.local_epochs)


@dataclass
class Study:
    """One invocation of a study.

    Attributes:
        home: the invocation's folder.
        plan: what is run.
        store: where runs are.
        command: what was typed first.
        asked: what the command line asked for, for who resumes it.
        status: running until every cell has finished.
        began: local time.
        seconds: of the runs of this invocation, start-up included, by key.
        failures: why runs failed, by key, of all rows.
        stopped: the runs that ASHA stopped, by key.
        asked_configurations: what tpe asked for, in order.
        published: tables whose runs are not made again.
        taken: the runs that were taken from there, and from which.
        runs: by number.
        stored: the finished runs that were there before and are not made again, by key.
        registered: the first registration of the plan when the invocation began.
        looks: earlier looks at the verdicts; None: not yet looked for.
    """

    home: Path
    plan: StudyPlan
    store: Path
    command: str = ""
    asked: Tree = field(default_factory=dict)
    status: Literal["running", "finished"] = "running"
    began: str = field(default_factory=lambda: datetime.now().isoformat(timespec="seconds"))
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    asked_configurations: list[Tree] = field(default_factory=list)
    published: Sequence[Published] = ()
    taken: dict[str, Published] = field(default_factory=dict)
    runs: dict[int, StudyRun] = field(default_factory=dict)
    registered: Registration | None = None
    looks: Looks | None = None

    def __post_init__(self) -> None:
        self.cells = [Cell(self.plan, place) for place in self.plan.places]
        if self.plan.tuning.search == "tpe":
            self.cells[0].first = self.asked_configurations
        self._numbers: dict[str, int] = {}
        self._measured: dict[tuple[str, str], Measured] = {}
        self._lacking: dict[tuple[str, str], str] = {}
        self._published_failures: dict[str, str] = {}
        self._states: list[tuple[Cell, CellState]] | None = None
        self.stored: dict[str, RunSpec] = {}

    # --- what runs came to ------------------------------------------------------------------------

    def folder(self, key: str) -> Path:
        """Return where a run lies."""
        return self.store / key

    def measured(self, key: str, row: str) -> Measured | None:
        """Return a run's result for a row; None until it has finished, or with a `reason`."""
        if key in self.failures:
            return None
        if (key, row) in self._measured:
            return self._measured[key, row]
        number = self._numbers.get(key)
        if number is not None and not self.runs[number].is_over:
            return None
        is_over = key in self.stopped or RunFolder(self.folder(key)).is_finished
        if (key, row) in self._lacking or not is_over:
            return None
        return self._take(key, row)

    def _take(self, key: str, row: str) -> Measured | None:
        """Read a finished run's result for a row; other rows may use it."""
        try:
            self._measured[key, row] = measured(self.folder(key), self.plan, row)
        except UserError as error:
            self._lacking[key, row] = str(error)
        return self._measured.get((key, row))

    def reason(self, key: str, row: str) -> str | None:
        """Return why a row has no numbers of a run: it failed, or did not measure them."""
        failed = self.failures.get(key) or self._published_failures.get(key)
        return failed or self._lacking.get((key, row))

    @property
    def reasons(self) -> list[str]:
        """Return every reason once."""
        return list(dict.fromkeys([*self.failures.values(), *self._lacking.values()]))

    def outcome_of(self, spec: RunSpec) -> Measured | str | None:
        """Return a run's result for its row, or why it failed; None until it has finished."""
        key, row = spec.key, spec.place.row
        found = self.measured(key, row)
        if found is not None and not (key in self._numbers or key in self.taken):
            self.stored[key] = spec
        return found or self.reason(key, row) or self._take_over(spec)

    def _take_over(self, spec: RunSpec) -> Measured | str | None:
        """Return the published result of a run that is not here."""
        key, row = spec.key, spec.place.row
        for source in self.published if key not in self._numbers else ():
            found = source.find(spec.experiment, self.plan, row, spec.phase)
            if found is None:
                continue
            self.taken[key] = source
            if isinstance(found, str):
                self._published_failures[key] = found
            elif found.values.keys() == self.plan.measures(row).keys():
                self._measured[key, row] = found  # else a tuning run, which may be reported yet
            return found
        return None

    def measured_runs(self, runs: Iterable[RunSpec]) -> dict[str, Measured]:
        """Return the results of the runs that did not fail, by key.

        A run counts if one row has its numbers, though another misses one of its own.
        """
        found: dict[str, Measured] = {}
        for run in runs:
            if run.key not in found and isinstance(end := self.outcome_of(run), Measured):
                found[run.key] = end
        return found

    def lookup(self, spec: RunSpec) -> RunEnd | None:
        """Return how a run ended."""
        found = self.outcome_of(spec)
        if isinstance(found, Measured):
            return RunEnd(found.score)
        return None if found is None else RunEnd(None, diverged=found.startswith(DIVERGED))

    # --- what comes next --------------------------------------------------------------------------

    def states(self) -> list[tuple[Cell, CellState]]:
        """Return how far every cell is; the runs that have become ready are entered."""
        if self._states is None:
            self._states = [(cell, cell.state(self.lookup)) for cell in self.cells]
            for _, state in self._states:
                for spec in state.pending:
                    self._enter(spec)
        return self._states

    def next(self) -> StudyRun | None:
        """Return the run to begin now: tuning before reports, the longest first; None: none is."""
        self.states()
        ready = [run for run in self.runs.values() if run.status == "pending"]
        if not ready and self._ask():
            return self.next()
        return min(ready, key=_urgency, default=None)

    def _ask(self) -> bool:
        """Ask tpe for a configuration, if the sweep is to try more; return True if there is one."""
        tuning = self.plan.tuning
        if tuning.search != "tpe" or len(self.asked_configurations) >= (tuning.configurations or 0):
            return False
        from fedray.studies.tpe import suggest

        tried = {repr(each.config): each.objective for each in self.states()[0][1].tried}
        known = [(config, tried.get(repr(config))) for config in self.asked_configurations]
        over = [repr(config) in tried for config in self.asked_configurations]
        self.asked_configurations.append(suggest(self.plan, known, over))
        self._states = None
        self.write()
        return True

    @property
    def cells_over(self) -> int:
        """Return how many cells are finished."""
        return sum(state.phase in ("over", "failed") for _, state in self.states())

    @property
    def is_complete(self) -> bool:
        """Return True if every cell is finished."""
        return self.cells_over == len(self.cells)

    def came_through(self, cell: Cell) -> bool:
        """Return True if any run of a cell has a result."""
        state = next(at for each, at in self.states() if each is cell)
        if self.plan.is_sweep:
            return any(each.objective is not None for each in state.tried)
        return state.phase != "failed"

    @property
    def total(self) -> int:
        """Return how many runs there will be, as far as is known."""
        return len(self.runs) + sum(cell.min_further_runs(at) for cell, at in self.states())

    @property
    def left(self) -> int:
        """Return how many runs are left, as far as is known."""
        return self.total - sum(run.is_over for run in self.runs.values())

    def _enter(self, spec: RunSpec) -> None:
        if spec.key not in self._numbers:
            number = self._numbers[spec.key] = len(self.runs)
            self.runs[number] = StudyRun(number, spec, self.folder(spec.key))

    def name_of(self, run: RunSpec) -> str:
        """Return what a run is called in few words."""
        config = f"{config_label(run.config)} " if run.config else ""
        if self.plan.is_sweep:
            return f"{config}seed={run.seed}"
        return f"{run.place}, {run.phase}: {config}seed={run.seed}"

    def settle(self, run: StudyRun) -> None:
        """Enter how a run ended; a failure for good, so that nobody waits for it."""
        key, row = run.spec.key, run.spec.place.row
        self.seconds[key] = self.seconds.get(key, 0.0) + run.seconds
        self._states = None
        self.taken.pop(key, None)
        if run.status == "stopped":
            self.stopped.append(key)
        if run.reason is None:
            found = self._take(key, row)
            run.reason = self.reason(key, row)
            if found is not None:
                run.objective, run.round = found.choice, found.round
            if run.status == "finished":
                CheckpointStore(run.folder, identity="").clear()  # nobody resumes the run
        if run.reason is not None:
            run.status = "failed"
            if (key, row) not in self._lacking:
                self.failures[key] = run.reason

    def try_again(self) -> None:
        """Forget the failures that say nothing of what was run; their cause may be gone."""
        kept = {key: why for key, why in self.failures.items() if why.startswith(DIVERGED)}
        self.failures, self._states = kept, None

    # --- the file ---------------------------------------------------------------------------------

    def write(self) -> None:
        """Replace plan.json in one step."""
        tree = {
            "format": FORMAT,
            "kind": self.plan.kind,
            "name": self.plan.name,
            "status": self.status,
            "began": self.began,
            "command": self.command,
            "asked": self.asked,
            "store": str(self.store),
            "seconds": self.seconds,
            "failures": self.failures,
            "stopped": self.stopped,
            "asked_configurations": self.asked_configurations,
            "from": [each.source for each in self.published],
            "registered": None if self.registered is None else dict(self.registered),
            "looks": None if self.looks is None else self.looks.model_dump(),
            "plan": self.plan.model_dump(mode="json"),
        }
        self.home.mkdir(parents=True, exist_ok=True)
        for number, published in enumerate(self.published):
            if not (kept := self.home / kept_name(number)).exists():
                write_json(kept, sealed(published.tree))
        whole = json.loads(json.dumps(tree))  # as a reader finds it: with texts for all keys
        write_json(self.home / FILE, sealed(whole))

    @classmethod
    def read(cls, home: Path) -> Study:
        """Read what `write` wrote.

        Raises:
            UserError: if it cannot be read.
        """
        path = home / FILE
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            if CHECKSUM in tree:
                tree = unsealed(tree)
            if tree["format"] == FORMAT:
                return cls._of(home, tree)
        except UserError:
            raise
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(f"{path} cannot be read: {named(error)}; start anew") from None
        raise UserError(
            f"{path} has format {tree['format']}, this version reads {FORMAT}; start anew"
        )

    @classmethod
    def _of(cls, home: Path, tree: Tree) -> Study:
        where, entry, looks = str(home / FILE), tree.get("registered"), tree.get("looks")
        return cls(
            home=home,
            registered=None if entry is None else validate(Registration, entry, where),
            looks=None if looks is None else validate(Looks, looks, where),
            plan=validate(StudyPlan, tree["plan"], where),
            store=Path(tree["store"]),
            command=tree["command"],
            asked=tree.get("asked", {}),
            status=tree["status"],
            began=tree["began"],
            seconds=dict(tree["seconds"]),
            failures=dict(tree["failures"]),
            stopped=list(tree.get("stopped", ())),
            asked_configurations=list(tree.get("asked_configurations", ())),
            published=[
                Published.read(source, home / kept_name(number))
                for number, source in enumerate(tree.get("from", ()))
            ],
        )


def kept_name(number: int) -> str:
    """Return the copy of a published table, which stays as it was when the invocation began."""
    return f"from-{number}.json"


def _urgency(run: StudyRun) -> tuple[bool, int, int]:
    """Order tuning first, as reports wait for it, then the longest."""
    return run.spec.phase == "report", -run.cost, run.number


def unfinished(folder: Path, kind: str) -> Path:
    """Return the latest invocation below a study's folder that is not finished.

    Raises:
        UserError: if there is none.
    """
    for path in sorted(folder.glob(f"*/{FILE}"), reverse=True):
        if _status(path) == "running":
            return path.parent
    raise UserError(f"--resume: no {kind} below {folder} is unfinished; start without --resume")


def _status(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("status")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
