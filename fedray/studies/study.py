"""The state of one invocation of a study: finished runs, next runs, and their folders.

    <results>/<sweep>/<invocation>/plan.json, trials.csv, sweep.png, best.yaml
    <results>/tables/<table>/<invocation>/plan.json, table.md, table.tex, ...
                                          from-0.json     copy of a table whose runs are reused

A run's folder alone tells whether the run has finished. plan.json holds the plan, the reasons of
failed runs, and the time spent on runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from fedray.config import Tree, validate
from fedray.errors import UserError, named, shown
from fedray.results.labels import config_label
from fedray.results.record import DIVERGED, Measured, TableRecord
from fedray.storage.checkpoint import CheckpointStore
from fedray.storage.entries import check_entries
from fedray.storage.files import read_regular, stores_of, write_json
from fedray.storage.json_files import CHECKSUM, sealed, unsealed
from fedray.storage.metric import Metric
from fedray.storage.run_folder import RunFolder
from fedray.studies.cell import Cell, CellState, RunEnd, RunSpec
from fedray.studies.plan import StudyPlan
from fedray.studies.store import Published, read_measured

FILE = "plan.json"
TRIAL_LOCK = ".trial.lock"
"""File in a run's folder that is locked while a trial runs it."""
FORMAT = 2
DIED = "it died"
"""First words of the reason of a run whose processes died."""
Status = Literal["pending", "running", "finished", "stopped", "failed"]


@dataclass
class StudyRun:
    """A run as a trial of Ray Tune.

    Attributes:
        number: index from 0, in the order in which cells needed the runs.
        spec: the run, as the first cell that needs it describes it.
        folder: the run's folder.
        status: pending: not begun, or interrupted; stopped: ended early by ASHA.
        objective: the value that chooses, so far.
        round: the round of `objective`.
        last_round: the last finished round.
        reason: why the run failed.
        seconds: time from the start of its actor to its end, over all attempts.
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
        """True if the run has ended: finished, stopped or failed."""
        return self.status in ("finished", "stopped", "failed")

    @property
    def cost(self) -> int:
        """Relative cost of the run: rounds times epochs."""
        experiment = self.spec.experiment
        return experiment.rounds * max(1, experiment.local_epochs)


@dataclass
class Study:
    """One invocation of a study.

    Attributes:
        home: the invocation's folder.
        plan: the plan.
        store: the folder of all runs.
        command: the command that began the invocation.
        arguments: the keys of that command, which a resuming command must repeat or leave out.
        status: running until every cell has finished; failed: runs that may succeed when repeated
            have failed, and --resume tries them again.
        began: local time.
        seconds: time of this invocation's runs by key, start-up included.
        failures: reasons of failed runs by key; they hold for all rows.
        stopped: keys of the runs that ASHA stopped.
        suggested: configurations suggested by tpe, in order.
        published: published tables whose runs are reused.
        taken: the published table by key of each reused run.
        runs: runs of this invocation by number.
        begun: Ray Tune's names of the trials that the process of the last `write` began, by key of
            the run.
        stored: finished runs of earlier invocations that are reused, by key.
        declared: declarations of the metrics of the results that were read, by name.
    """

    home: Path
    plan: StudyPlan
    store: Path
    command: str = ""
    arguments: Tree = field(default_factory=dict)
    status: Literal["running", "failed", "finished"] = "running"
    began: str = field(default_factory=lambda: datetime.now().isoformat(timespec="seconds"))
    seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    suggested: list[Tree] = field(default_factory=list)
    published: Sequence[Published] = ()
    taken: dict[str, Published] = field(default_factory=dict)
    runs: dict[int, StudyRun] = field(default_factory=dict)
    begun: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cells = [Cell(self.plan, place) for place in self.plan.places]
        if self.plan.tuning.search == "tpe":
            self.cells[0].first = self.suggested
        self._numbers: dict[str, int] = {}
        self._measured: dict[tuple[str, str], Measured] = {}
        self.declared: dict[str, Metric] = {}
        self._lacking: dict[tuple[str, str], str] = {}
        self._published_failures: dict[str, str] = {}
        self._states: list[tuple[Cell, CellState]] | None = None
        self.stored: dict[str, RunSpec] = {}

    # --- results of runs --------------------------------------------------------------------------

    def folder(self, key: str) -> Path:
        """Return the folder of a run."""
        return self.store / key

    def measured(self, key: str, row: str) -> Measured | None:
        """Return a run's result for a row; None if it has not finished or has a `reason`."""
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
        return self._read_result(key, row)

    def _read_result(self, key: str, row: str) -> Measured | None:
        """Read a finished run's result for a row; record why if the row cannot use it."""
        try:
            self._measured[key, row], metrics = read_measured(self.folder(key), self.plan, row)
            self.declared |= metrics
        except UserError as error:
            self._lacking[key, row] = str(error)
        return self._measured.get((key, row))

    def reason(self, key: str, row: str) -> str | None:
        """Return why a row has no numbers of a run: the run failed, or lacks a metric."""
        failed = self.failures.get(key) or self._published_failures.get(key)
        return failed or self._lacking.get((key, row))

    def unmeasured_folders(self) -> list[Path]:
        """Return the folders of needed runs without a result that their row can use."""
        keys = [*self._numbers, *(key for key, _ in self._lacking)]
        return [self.folder(key) for key in dict.fromkeys(keys) if key not in self.failures]

    @property
    def reasons(self) -> list[str]:
        """All distinct reasons of missing results."""
        return list(dict.fromkeys([*self.failures.values(), *self._lacking.values()]))

    def outcome_of(self, spec: RunSpec) -> Measured | str | None:
        """Return a run's result for its row, or why it failed; None until it has finished."""
        key, row = spec.key, spec.place.row
        result = self.measured(key, row)
        if result is not None and not (key in self._numbers or key in self.taken):
            self.stored[key] = spec
        return result or self.reason(key, row) or self._find_published(spec)

    def _find_published(self, spec: RunSpec) -> Measured | str | None:
        """Return the result of a run from a published table; None if no table has the run."""
        key, row = spec.key, spec.place.row
        for source in self.published if key not in self._numbers else ():
            result = source.find(spec, self.plan)
            if result is None:
                continue
            self.taken[key] = source
            self.declared |= source.record.metrics
            if isinstance(result, str):
                self._published_failures[key] = result
            elif {*self.plan.measures(row).values()} <= result.values.keys():
                self._measured[key, row] = result  # a partial result may be of tuning only
            return result
        return None

    def lookup(self, spec: RunSpec) -> RunEnd | None:
        """Return the end of a run, or None if the run has not ended."""
        result = self.outcome_of(spec)
        if isinstance(result, Measured):
            return RunEnd(result.score)
        return None if result is None else RunEnd(None, diverged=result.startswith(DIVERGED))

    # --- the next runs ----------------------------------------------------------------------------

    def states(self) -> list[tuple[Cell, CellState]]:
        """Return the progress of every cell, and add the runs that have become ready."""
        if self._states is None:
            self._states = [(cell, cell.state(self.lookup)) for cell in self.cells]
            for _, state in self._states:
                for spec in state.pending:
                    self._add_run(spec)
        return self._states

    def next(self) -> StudyRun | None:
        """Return the run to begin now, or None; tuning before reports, longest first."""
        self.states()
        ready = [run for run in self.runs.values() if run.status == "pending"]
        if not ready and self._ask_tpe():
            return self.next()
        return min(ready, key=_priority, default=None)

    def _ask_tpe(self) -> bool:
        """Add a configuration suggested by tpe; return False if the sweep needs no more."""
        tuning = self.plan.tuning
        if tuning.search != "tpe" or len(self.suggested) >= (tuning.configurations or 0):
            return False
        from fedray.studies.tpe import suggest

        objectives = {repr(result.config): result.objective for result in self.states()[0][1].tried}
        results = [(config, objectives.get(repr(config))) for config in self.suggested]
        finished = [repr(config) in objectives for config in self.suggested]
        self.suggested.append(suggest(self.plan, results, finished))
        self._states = None
        self.write()
        return True

    @property
    def cells_over(self) -> int:
        """Number of finished cells."""
        return sum(state.phase in ("over", "failed") for _, state in self.states())

    @property
    def is_complete(self) -> bool:
        """True if every cell is finished."""
        return self.cells_over == len(self.cells)

    def has_result(self, cell: Cell) -> bool:
        """Return True if any run of a cell has a result."""
        state = next(cell_state for owner, cell_state in self.states() if owner is cell)
        if self.plan.is_sweep:
            return any(result.objective is not None for result in state.tried)
        return state.phase != "failed"

    @property
    def total(self) -> int:
        """Number of runs, as far as known."""
        return len(self.runs) + sum(cell.min_further_runs(state) for cell, state in self.states())

    @property
    def remaining_runs(self) -> int:
        """Number of runs that have not ended, as far as known."""
        return self.total - sum(run.is_over for run in self.runs.values())

    def _add_run(self, spec: RunSpec) -> None:
        if spec.key not in self._numbers:
            number = self._numbers[spec.key] = len(self.runs)
            self.runs[number] = StudyRun(number, spec, self.folder(spec.key))

    def name_of(self, run: RunSpec) -> str:
        """Return a short name of a run for messages."""
        config = f"{config_label(run.config)} " if run.config else ""
        if self.plan.is_sweep:
            return f"{config}seed={run.seed}"
        return f"{run.place}, {run.phase}: {config}seed={run.seed}"

    def settle(self, run: StudyRun) -> None:
        """Record the end of a run; a failure is final, so that no cell waits for the run."""
        key, row = run.spec.key, run.spec.place.row
        self.seconds[key] = self.seconds.get(key, 0.0) + run.seconds
        self._states = None
        self.taken.pop(key, None)
        if run.status == "stopped":
            self.stopped.append(key)
        if run.reason is None:
            result = self._read_result(key, row)
            run.reason = self.reason(key, row)
            if result is not None:
                run.objective, run.round = result.choice, result.round
            if run.status == "finished":
                CheckpointStore(run.folder, identity="").clear()  # a finished run is not resumed
        if run.reason is not None:
            run.status = "failed"
            if (key, row) not in self._lacking:
                self.failures[key] = run.reason

    def give_up(self, spec: RunSpec, why: str) -> None:
        """Record that a run that cells need cannot begin."""
        run = self.runs[self._numbers[spec.key]]
        run.status, run.reason = "failed", why
        self.settle(run)

    def needs(self, spec: RunSpec) -> bool:
        """Return True if a cell waits for a run that has not ended."""
        number = self._numbers.get(spec.key)
        return number is not None and not self.runs[number].is_over

    @property
    def repeatable(self) -> list[str]:
        """Keys of the runs that failed, but did not diverge, and may succeed when repeated."""
        return [key for key, why in self.failures.items() if not why.startswith(DIVERGED)]

    def forget_failures(self) -> None:
        """Forget failures other than divergence, whose causes may be gone, so that runs restart."""
        for key in self.repeatable:
            del self.failures[key]
        self._states = None

    # --- the file ---------------------------------------------------------------------------------

    def write(self) -> None:
        """Replace plan.json in one step."""
        begun = [run for run in self.runs.values() if run.status != "pending"]
        tree = {
            "format": FORMAT,
            "kind": self.plan.kind,
            "name": self.plan.name,
            "status": self.status,
            "began": self.began,
            "command": self.command,
            "asked": self.arguments,
            "store": str(self.store),
            "seconds": self.seconds,
            "failures": self.failures,
            "stopped": self.stopped,
            "begun": {run.spec.key: run.ray_id or "" for run in begun},
            "asked_configurations": self.suggested,
            "from": [table.source for table in self.published],
            "plan": self.plan.model_dump(mode="json"),
        }
        self.home.mkdir(parents=True, exist_ok=True)
        for number, published in enumerate(self.published):
            if not (copy := self.home / published_copy(number)).exists():
                write_json(copy, sealed(published.record.tree()))
        parsed = json.loads(json.dumps(tree))  # as read from a file: all keys are strings
        write_json(self.home / FILE, sealed(parsed))

    @classmethod
    def read(cls, home: Path) -> Study:
        """Read an invocation's plan.json.

        Raises:
            UserError: if the file cannot be read.
        """
        path = home / FILE
        if home.is_dir():
            check_entries(home, os.scandir(home))
        try:
            tree = json.loads(read_regular(path))
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

    def reread(self) -> Study:
        """Return the study as its plan.json is now, with the results that have been read."""
        now = Study.read(self.home)
        now._measured, now.declared = self._measured, self.declared
        return now

    @classmethod
    def _of(cls, home: Path, tree: Tree) -> Study:
        return cls(
            home=home,
            plan=validate(StudyPlan, tree["plan"], str(home / FILE)),
            store=_store_of(home, tree["store"]),
            command=tree["command"],
            arguments=tree.get("asked", {}),
            status=tree["status"],
            began=tree["began"],
            seconds=dict(tree["seconds"]),
            failures=dict(tree["failures"]),
            stopped=list(tree.get("stopped", ())),
            begun=dict(tree.get("begun", {})),
            suggested=list(tree.get("asked_configurations", ())),
            published=[
                Published(source, TableRecord.read(home / published_copy(number)))
                for number, source in enumerate(tree.get("from", ()))
            ],
        )


def _store_of(home: Path, recorded: str) -> Path:
    """Return the folder of a study's runs: the recorded one, or that of moved results.

    Raises:
        UserError: if a record of a stranger would read or write runs elsewhere.
    """
    stores = stores_of(home)
    if (store := Path(recorded).resolve()) in stores:
        return store
    results = home.resolve().parent.parent
    moved = (results.parent if results.name == "tables" else results) / "store"
    if moved in stores and moved.is_dir():
        return moved
    results = Path(recorded).parent
    remedy = f"set FEDRAY_RESULTS={results} if that is your results folder, or start anew"
    raise UserError(
        f"{home / FILE} names the runs in {shown(recorded)}, which is not the store of its results "
        f"folder; {remedy if Path(recorded).name == 'store' else 'start anew'}"
    )


def published_copy(number: int) -> str:
    """Return the file name of an invocation's copy of a published table."""
    return f"from-{number}.json"


def _priority(run: StudyRun) -> tuple[bool, int, int]:
    """Return a sort key: tuning runs first, because reports need them, then the longest."""
    return run.spec.phase == "report", -run.cost, run.number


def latest_unfinished(folder: Path, kind: str) -> Path:
    """Return the invocation in a study's folder to resume: the latest one that is unfinished.

    If all have ended, it is the latest one, provided that runs of it have failed.

    Raises:
        UserError: if every invocation is finished.
    """
    paths = sorted(folder.glob(f"*/{FILE}"), reverse=True)
    for path in paths:
        if _status(path) == "running":
            return path.parent
    if paths and _status(paths[0]) == "failed":
        return paths[0].parent
    raise UserError(f"--resume: no {kind} below {folder} is unfinished; start without --resume")


def _status(path: Path) -> Any:
    try:
        return json.loads(read_regular(path)).get("status")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
